"""A whole service of real processes for tests: a gateway and its workers, each with a log, ended by
pid."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
from tests.e2e.forks import Child
from tests.faults import Faults, give

from baton.engine.trial import default_directory
from baton.shell.leash import leashed

TRIAL = default_directory()
START_S = 60.0


def free_port() -> int:
    """A port that is free now."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def wait_for(what: Callable[[], Any], *, seconds: float, why: str) -> Any:
    """Poll until `what` is true, less often the longer it takes; its value."""
    began = time.monotonic()
    while (waited := time.monotonic() - began) < seconds:
        if value := what():
            return value
        time.sleep(min(0.01 + waited / 20, 0.1))
    raise AssertionError(f"not within {seconds} s: {why}")


def wait_ready(
    http: httpx.Client, processes: Iterable["Process"] = (), *, seconds: float = START_S
) -> None:
    """Until a request would find workers. Fails at once when one of the processes has ended."""

    def ready() -> bool:
        for p in processes:
            assert p.popen.poll() is None, f"{p.name} ended:\n{p.log.read_text()[-3000:]}"
        try:
            return http.get("/ready").status_code == 200
        except httpx.HTTPError:
            return False

    wait_for(ready, seconds=seconds, why="ready")


class Process:
    """One process of a service."""

    def __init__(self, name: str, popen: subprocess.Popen | Child, log: Path) -> None:
        self.name, self.popen, self.log = name, popen, log

    @property
    def pid(self) -> int:
        return self.popen.pid

    def kill(self) -> None:
        """As `kill -9`."""
        self.popen.kill()
        self.popen.wait()

    def end(self) -> None:
        """SIGTERM, and what must not be needed after ten seconds, nor by a supervisor."""
        if self.popen.poll() is None:
            self.popen.terminate()
            try:
                self.popen.wait(10)
            except subprocess.TimeoutExpired:
                self.kill()
                raise AssertionError(
                    f"{self.name} outlived SIGTERM:\n{self.log.read_text()[-3000:]}"
                ) from None
            said = self.log.read_text()
            assert "of SIGTERM; it is killed" not in said, said[-3000:]


def by_command(name: str, arguments: list[str], log: Path) -> Process:
    """`baton ...` as a user starts it: a new interpreter. It ends with the test run, whatever ends
    that."""
    with log.open("ab") as said:
        command = leashed([sys.executable, *arguments])
        return Process(
            name,
            subprocess.Popen(
                command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True
            ),
            log,
        )


def forked(name: str, arguments: list[str], log: Path) -> Process:
    """The same program, without the seconds of its imports. `arguments` begin with -m MODULE."""
    dash_m, module, *rest = arguments
    assert dash_m == "-m"
    return Process(name, Child(module, rest, log), log)


Begin = Callable[[str, list[str], Path], Process]


class Service:
    """Gateway and workers, started separately so that a test can hurt one of them."""

    def __init__(
        self,
        directory: Path,
        model: Path,
        *,
        dtype: str = "float32",
        fabric: str = "shm",
        begin: Begin = forked,
    ) -> None:
        self.directory, self.model, self.dtype, self.fabric, self._begin = (
            directory,
            model,
            dtype,
            fabric,
            begin,
        )
        self.port, self.control = free_port(), f"tcp://127.0.0.1:{free_port()}"
        self.processes: dict[str, Process] = {}
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=150)

    def start_gateway(self, *more: str, warm: bool = False) -> Process:
        """The gateway. By default without requests of its own: faults are planted into the reads
        that a test orders; and with neutral sampling, whatever the model's own settings are."""
        flags = ["--port", str(self.port), "--control", self.control, "--served-model-name", "m"]
        flags += ["--generation-config", "vllm", "--shutdown-timeout", "3", *more]
        flags += ["--log-level", "debug"] if warm else ["--skip-server-warmup"]
        return self._start("gateway", ["-m", "baton.cli.main", "gateway", str(self.model), *flags])

    def start_worker(
        self,
        role: str,
        *flags: str,
        name: str | None = None,
        faults: Faults | None = None,
        main: list[str] | None = None,
    ) -> Process:
        """A worker, which ends at SIGTERM whatever is open; `faults` wraps its fabric, `main` is
        another main module."""
        name = name or role
        settings = [
            str(self.model),
            "--role",
            role,
            "--gateway",
            self.control,
            "--name",
            name,
            "--threads",
            "1",
        ]
        settings += [
            "--dtype",
            self.dtype,
            "--fabric",
            self.fabric,
            "--served-model-name",
            "m",
            "--drain-timeout",
            "0",
            *flags,
        ]
        main = main or ["-m", "baton.cli.main", "worker"]
        if faults is not None:
            self.order(name, faults)
            main = ["-m", "tests.e2e.faulty_worker", str(self._faults(name))]
        return self._start(name, [*main, *settings])

    def start_other(self, name: str, arguments: list[str]) -> Process:
        """Another program, by its name and -m MODULE ARGUMENTS."""
        return self._start(name, arguments)

    def order(self, name: str, faults: Faults) -> None:
        """Faults of a worker's reads, from its next one on; it must have been started with some, be
        it none."""
        give(self._faults(name), faults)

    def _faults(self, name: str) -> Path:
        return self.directory / f"{name}-faults.json"

    def _start(self, name: str, arguments: list[str]) -> Process:
        self.processes[name] = self._begin(name, arguments, self.directory / f"{name}.log")
        return self.processes[name]

    def wait_ready(self) -> None:
        """Until a request would find workers."""

        wait_ready(self.http, self.processes.values())

    def why_not_ready(self) -> str:
        """What /ready says; nothing while the gateway starts."""
        try:
            return str(self.http.get("/ready").json()["why"])
        except httpx.HTTPError:
            return ""

    def complete(self, prompt: Any, **fields: Any) -> httpx.Response:
        """One request to /v1/completions; greedy unless told."""
        body = {"model": "m", "prompt": prompt, "temperature": 0, "return_token_ids": True} | fields
        return self.http.post("/v1/completions", json=body)

    def ids(self, prompt: Any, **fields: Any) -> list[int]:
        """The token ids of a request that must succeed."""
        answer = self.complete(prompt, **fields)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])

    def ledger(self) -> dict[str, Any]:
        """GET /debug/ledger."""
        return dict(self.http.get("/debug/ledger").json())

    def wait_clean(self, seconds: float = 2.0) -> None:
        """Until nothing is held anywhere."""
        try:
            wait_for(lambda: self.ledger()["clean"], seconds=seconds, why="ledger clean")
        except AssertionError as error:
            raise AssertionError(f"{error}: {json.dumps(self.ledger())[:2000]}") from None

    def log(self, name: str) -> str:
        """What a process has logged."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self.processes[name].log.read_text())

    def close(self) -> None:
        """End everything; a process that does not end is a failure."""
        self.http.close()
        with ExitStack() as every:
            for process in reversed(self.processes.values()):
                every.callback(process.end)


@contextmanager
def split(
    directory: Path,
    model: Path,
    *,
    dtype: str = "float32",
    fabric: str = "shm",
    prefill: tuple[str, ...] = (),
    decode: tuple[str, ...] = (),
    gateway: tuple[str, ...] = (),
    faults: Faults | None = None,
    begin: Begin = forked,
    warm: bool = False,
) -> Iterator[Service]:
    """A gateway, a prefill and a decode worker; `warm`: as users start them, with a handoff before
    they are ready."""
    service = Service(directory, model, dtype=dtype, fabric=fabric, begin=begin)
    try:
        service.start_gateway(*gateway, warm=warm)
        service.start_worker("prefill", *prefill)
        service.start_worker("decode", *decode, faults=faults)
        service.wait_ready()
        yield service
    finally:
        service.close()


@contextmanager
def unified(
    directory: Path,
    model: Path,
    *flags: str,
    dtype: str = "float32",
    gateway: tuple[str, ...] = (),
) -> Iterator[Service]:
    """A gateway and one unified worker."""
    service = Service(directory, model, dtype=dtype)
    try:
        service.start_gateway(*gateway)
        service.start_worker("unified", *flags)
        service.wait_ready()
        yield service
    finally:
        service.close()


class Footprint:
    """What a process holds of the machine."""

    def __init__(self, pid: int) -> None:
        process = psutil.Process(pid)
        self.files = process.num_fds()
        self.threads = process.num_threads()
        self.sockets = len(process.net_connections())
        status = Path(f"/proc/{pid}/status").read_text()
        self.anon_mib = int(re.search(r"RssAnon:\s+(\d+)", status).group(1)) >> 10
        maps = [line.split() for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        self.shared_mappings = sum("memfd:" in m[5] for m in maps if len(m) > 5)
        # "x" without a file: made by a compiler in the process
        spans = [m[0].split("-") for m in maps if "x" in m[1] and len(m) == 5]
        self.compiled_bytes = sum(int(end, 16) - int(start, 16) for start, end in spans)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def signal_process(pid: int, number: signal.Signals) -> None:
    """Send a signal."""
    os.kill(pid, number)
