"""A rank of a worker is killed: the worker ends as a whole and starts again, and nobody else loses
anything."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.service import alive, by_command, free_port, wait_for

PROMPT, ANSWER = list(range(1, 90)), 6
STREAM = 500  # tokens: a second or two, and the kill comes as soon as some requests are open
VICTIMS = [("decode", 1), ("prefill", 1), ("decode", 0)]  # (role, rank)


class Serve:
    """`baton serve` with workers of two ranks."""

    def __init__(self, model: Path, log: Path) -> None:
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{(port := free_port())}", timeout=60)
        flags = [
            "--port",
            str(port),
            "--dtype",
            "float32",
            "--kv-pages",
            "200",
            "--served-model-name",
            "m",
            "--tp",
            "2",
        ]
        flags += ["--skip-server-warmup", "--threads", "1"]
        self.process = by_command(
            "serve", ["-m", "baton.cli.main", "serve", str(model), *flags], log
        )

    def ready(self) -> bool:
        assert self.process.popen.poll() is None, self.process.log.read_text()
        try:
            return self.http.get("/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def ask(self, **fields: Any) -> httpx.Response:
        body = {
            "model": "m",
            "prompt": PROMPT,
            "max_tokens": ANSWER,
            "temperature": 0,
            "ignore_eos": True,
        }
        return self.http.post("/v1/completions", json=body | {"return_token_ids": True} | fields)

    def ledger(self) -> dict[str, Any]:
        return dict(self.http.get("/debug/ledger").json())

    def pids(self, role: str) -> list[int]:
        """Processes of the worker of that role, by rank; none while it is not registered."""
        return [
            rank["pid"]
            for worker in self.ledger()["workers"]
            if worker["role"] == role
            for rank in worker["ranks"]
        ]


@pytest.fixture
def serve(tiny: Path, tmp_path: Path) -> Iterator[Serve]:
    service = Serve(tiny, tmp_path / "serve.log")
    try:
        wait_for(service.ready, seconds=300, why="ready")
        yield service
    finally:
        service.http.close()
        service.process.popen.send_signal(signal.SIGINT)
        assert service.process.popen.wait(10) == 0


class Client(threading.Thread):
    """Somebody who asks for much and waits for the end, whatever it is."""

    def __init__(self, serve: Serve, *, stream: bool) -> None:
        super().__init__(daemon=True)
        self.serve, self.stream, self.end = serve, stream, ""
        self.start()

    def run(self) -> None:
        answer = self.serve.ask(max_tokens=STREAM if self.stream else ANSWER, stream=self.stream)
        text = answer.text
        self.end = (
            "served" if answer.status_code == 200 and "worker_lost" not in text else text[-300:]
        )


@pytest.mark.parametrize("rounds", [3, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_a_killed_rank_ends_its_worker_as_a_whole_and_a_new_one_serves(
    serve: Serve, rounds: int
) -> None:
    expected = serve.ask().json()["choices"][0]["token_ids"]
    assert len(expected) == ANSWER
    for number in range(rounds):
        role, rank = VICTIMS[number % len(VICTIMS)]
        other = "prefill" if role == "decode" else "decode"
        hit, spared = serve.pids(role), serve.pids(other)
        clients = [Client(serve, stream=True) for _ in range(3)]
        # some of them in the middle of their handoff
        clients += [Client(serve, stream=False) for _ in range(8)]
        wait_for(lambda: serve.ledger()["open_requests"] >= 4, seconds=20, why="requests under way")
        os.kill(hit[rank], signal.SIGKILL)
        wait_for(
            lambda gone=hit: not any(map(alive, gone)),
            seconds=5,
            why=f"round {number}: the whole {role} worker gone",
        )
        wait_for(
            lambda new=role: len(serve.pids(new)) == 2,
            seconds=60,
            why=f"round {number}: a new {role} worker",
        )
        assert not set(serve.pids(role)) & set(hit)
        assert serve.pids(other) == spared
        for client in clients:
            client.join(60)
            # those that came while the worker was away were refused at the door
            assert (
                client.end == "served" or "worker_lost" in client.end or "not_ready" in client.end
            ), client.end
        wait_for(serve.ready, seconds=20, why="ready again")
        assert serve.ask().json()["choices"][0]["token_ids"] == expected
        wait_for(lambda: serve.ledger()["clean"], seconds=5, why=f"round {number}: clean books")
    said = serve.process.log.read_text()
    assert "SIGABRT" not in said, said
    assert "Traceback" not in said, said
