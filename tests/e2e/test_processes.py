"""Processes come and go: signals, `kill -9`, restarts; nobody is left behind and the survivors are
clean."""

import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.service import (
    Process,
    Service,
    alive,
    by_command,
    free_port,
    split,
    wait_for,
    wait_ready,
)

pytestmark = pytest.mark.timeout(180)
PROMPT = list(range(1, 60))
POOLS = ("--kv-pages", "300")


@pytest.fixture
def service(tmp_path: Path, tiny: Path) -> Iterator[Service]:
    with split(tmp_path, tiny, prefill=POOLS, decode=POOLS) as s:
        yield s


@pytest.fixture
def commands(tmp_path: Path, tiny: Path) -> Iterator[Service]:
    """A service whose processes were started as users start them."""
    with split(tmp_path, tiny, prefill=POOLS, decode=POOLS, begin=by_command) as s:
        yield s


class Stream(threading.Thread):
    """A client that reads a stream to its end."""

    def __init__(self, service: Service, max_tokens: int = 2000, **sampling: object) -> None:
        super().__init__(daemon=True)
        self.lines: list[str] = []
        self.ended_at = 0.0
        self.error = ""
        self._service, self._max, self._sampling = service, max_tokens, sampling
        self.start()

    @property
    def text(self) -> str:
        """The answer so far."""
        return "".join(
            json.loads(line.removeprefix("data: "))["choices"][0]["text"]
            for line in self.lines
            if line != "data: [DONE]"
        )

    def wait_done(self, seconds: float) -> str:
        """Wait for the whole answer, and return its text."""
        self.join(seconds)
        assert not self.is_alive(), "the stream did not end"
        assert self.lines[-1] == "data: [DONE]", self.lines[-1]
        return self.text

    def run(self) -> None:
        body = {
            "model": "m",
            "prompt": PROMPT,
            "max_tokens": self._max,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            **self._sampling,
        }
        try:
            with httpx.stream(
                "POST",
                f"http://127.0.0.1:{self._service.port}/v1/completions",
                json=body,
                timeout=60,
            ) as answer:
                for line in answer.iter_lines():
                    if line:
                        self.lines.append(line)
        except httpx.HTTPError as error:
            self.error = repr(error)
        self.ended_at = time.monotonic()

    def wait_streaming(self) -> None:
        wait_for(lambda: len(self.lines) > 3, seconds=20, why="streaming")

    def wait_error(self, code: str, seconds: float) -> None:
        self.join(seconds)
        assert not self.is_alive(), "the stream did not end"
        assert f'"code":"{code}"' in self.lines[-1].replace(" ", ""), self.lines[-1]
        assert "data: [DONE]" not in self.lines


@pytest.mark.parametrize("victim", ["decode", "prefill"])
@pytest.mark.parametrize(
    "sampling", [{}, {"temperature": 0.8, "seed": 7}], ids=["greedy", "seeded"]
)
def test_an_answer_goes_on_with_the_successor_of_a_killed_worker(
    service: Service, victim: str, sampling: dict[str, float]
) -> None:
    """No token is missing, repeated or another one; a stream past its prefill does not wait."""
    expected = Stream(service, 400, **sampling).wait_done(60)
    stream = Stream(service, 400, **sampling)
    stream.wait_streaming()
    service.processes[victim].kill()
    if victim == "prefill":
        assert stream.wait_done(60) == expected
    service.start_worker(victim, *POOLS, name=victim)
    assert stream.wait_done(60) == expected
    service.wait_ready()
    assert Stream(service, 400, **sampling).wait_done(60) == expected
    service.wait_clean()


def test_an_answer_that_may_not_wait_ends_with_an_error(tmp_path: Path, tiny: Path) -> None:
    flags = ("--failover", "fail")
    with split(tmp_path, tiny, prefill=POOLS, decode=POOLS, gateway=flags) as service:
        stream = Stream(service)
        stream.wait_streaming()
        service.processes["decode"].kill()
        stream.wait_error("worker_lost", 5)


@pytest.mark.parametrize("victim", ["decode", "prefill"])
def test_a_request_given_to_a_worker_that_is_dead_already_is_answered_by_its_successor(
    service: Service, victim: str
) -> None:
    """The gateway has not noticed yet; when it does, whoever has heard nothing of an answer waits
    for the next worker."""
    expected = service.ids(PROMPT, max_tokens=5)
    service.processes[victim].kill()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.ids, PROMPT, max_tokens=5)
        wait_for(
            lambda: service.http.get("/ready").status_code == 503,
            seconds=5,
            why="the gateway notices",
        )
        assert asked.running()
        service.start_worker(victim, *POOLS, name=victim)
        assert asked.result(60) == expected
    service.wait_clean()


def test_a_request_that_comes_while_there_are_no_workers_waits_for_them(service: Service) -> None:
    expected = service.ids(PROMPT, max_tokens=5)
    service.processes["decode"].kill()
    wait_for(
        lambda: service.http.get("/ready").status_code == 503, seconds=5, why="the gateway notices"
    )
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.ids, PROMPT, max_tokens=5)
        service.start_worker("decode", *POOLS, name="decode")
        assert asked.result(60) == expected
    service.wait_clean()


@pytest.mark.parametrize("victim", ["decode", "prefill"])
def test_a_killed_worker_is_noticed_by_its_connections_not_by_its_silence(
    service: Service, victim: str
) -> None:
    other = "prefill" if victim == "decode" else "decode"
    assert service.ids(PROMPT, max_tokens=5)
    service.processes[victim].kill()
    for name in ("gateway", other):
        wait_for(lambda n=name: "peer_lost" in service.log(n), seconds=10, why=f"{name} notices")
        (line,) = [line for line in service.log(name).splitlines() if "peer_lost" in line]
        assert "its connection has ended" in line


def test_a_killed_gateway_leaves_the_workers_clean_and_they_find_its_successor(
    service: Service,
) -> None:
    expected = service.ids(PROMPT, max_tokens=5)
    stream = Stream(service)
    stream.wait_streaming()
    pids = [service.processes[n].pid for n in ("prefill", "decode")]
    service.processes["gateway"].kill()
    stream.join(5)
    assert not stream.is_alive()
    service.start_gateway()
    service.wait_ready()
    assert [service.processes[n].pid for n in ("prefill", "decode")] == pids
    service.wait_clean(5)
    assert service.ids(PROMPT, max_tokens=5) == expected


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_every_process_in_time(commands: Service, number: signal.Signals) -> None:
    stream = Stream(commands)
    stream.wait_streaming()
    for name in ("gateway", "prefill", "decode"):
        commands.processes[name].popen.send_signal(number)
    for name in ("gateway", "prefill", "decode"):
        assert commands.processes[name].popen.wait(5) in (0, 130), commands.log(name)[-2000:]
    stream.join(5)
    assert not stream.is_alive()


def test_a_gateway_that_is_to_end_goes_on_with_its_streams_until_a_second_signal(
    service: Service,
) -> None:
    service.processes["gateway"].end()
    gateway = service.start_gateway("--shutdown-timeout", "86400")
    service.wait_ready()
    stream = Stream(service, max_tokens=4000)
    stream.wait_streaming()
    gateway.popen.terminate()
    wait_for(
        lambda: "shutting_down" in service.log("gateway"),
        seconds=10,
        why="the first signal is heard",
    )
    said = len(stream.lines)
    wait_for(lambda: len(stream.lines) > said + 10, seconds=20, why="the stream goes on")
    gateway.popen.terminate()
    stream.wait_error("shutting_down", 10)
    assert gateway.popen.wait(10) == 0


class Serve:
    """`baton serve` itself, started when it is not running."""

    def __init__(self, model: Path, directory: Path) -> None:
        self._model, self._log = model, directory / "serve.log"
        self._process: Process | None = None
        self._port = 0

    def running(self) -> tuple[subprocess.Popen, int]:
        if self._process is None or self._process.popen.poll() is not None:
            self._port = free_port()
            flags = [
                "--port",
                str(self._port),
                "--dtype",
                "float32",
                "--kv-pages",
                "100",
                "--served-model-name",
                "m",
            ]
            self._process = by_command(
                "serve", ["-m", "baton.cli.main", "serve", str(self._model), *flags], self._log
            )
            with httpx.Client(base_url=f"http://127.0.0.1:{self._port}") as http:
                wait_ready(http, [self._process])
        return self._process.popen, self._port

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()


@pytest.fixture(scope="module")
def serves(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    with closing(Serve(tiny, tmp_path_factory.mktemp("serve"))) as serve:
        yield serve


@pytest.fixture
def serve(serves: Serve) -> tuple[subprocess.Popen, int]:
    return serves.running()


def children(process: subprocess.Popen) -> list[int]:
    return [p.pid for p in psutil.Process(process.pid).children(recursive=True)]


def test_serve_restarts_a_killed_worker(serve: tuple[subprocess.Popen, int]) -> None:
    process, port = serve

    def ask() -> httpx.Response:
        body = {
            "model": "m",
            "prompt": PROMPT,
            "max_tokens": 5,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        return httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)

    expected = ask().json()["choices"][0]["token_ids"]
    decode = next(
        p
        for p in psutil.Process(process.pid).children(recursive=True)
        if any("decode-0" in a for a in p.cmdline())
    )
    decode.kill()

    def ledger() -> dict:
        return httpx.get(f"http://127.0.0.1:{port}/debug/ledger", timeout=10).json()

    def restarted() -> bool:
        pids = {
            rank["pid"] for w in ledger()["workers"] if w["role"] == "decode" for rank in w["ranks"]
        }
        return bool(pids - {decode.pid})

    wait_for(restarted, seconds=40, why="restarted")
    assert ask().json()["choices"][0]["token_ids"] == expected, (
        "at once: whether or not the loss has been seen"
    )
    wait_for(lambda: ledger()["clean"], seconds=5, why="clean")


def test_nobody_is_refused_while_the_gateway_is_restarted(
    serve: tuple[subprocess.Popen, int],
) -> None:
    process, port = serve
    (gateway,) = (
        p for p in psutil.Process(process.pid).children(recursive=True) if "gateway" in p.cmdline()
    )
    gateway.kill()
    body = {"model": "m", "prompt": PROMPT, "max_tokens": 5, "ignore_eos": True}
    answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 5


def test_kill_9_of_serve_leaves_no_process_and_no_port(serve: tuple[subprocess.Popen, int]) -> None:
    process, port = serve
    pids = children(process)
    assert len(pids) >= 3
    process.kill()
    wait_for(lambda: not any(alive(p) for p in pids), seconds=5, why="all children gone")
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/health")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_serve_ends_all_in_five_seconds(
    serve: tuple[subprocess.Popen, int], number: signal.Signals
) -> None:
    process, _ = serve
    pids = children(process)
    process.send_signal(number)
    assert process.wait(6) == 0
    assert not any(alive(p) for p in pids)
