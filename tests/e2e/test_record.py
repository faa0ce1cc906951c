"""A service that writes down what its processes decide: every journal plays with the same effects,
every invariant holds."""

import os
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.service import Process, by_command, free_port, wait_for, wait_ready

from baton.cli.main import run
from baton.core.door import Cancel
from baton.core.events import PeerLost
from baton.trace.coding import records
from baton.trace.log import Record, Step


def read(path: Path) -> list[Record]:
    return [record for _, record in records([path.read_bytes()])]


def entries(path: Path) -> list[type]:
    return [type(r.event) for r in read(path) if isinstance(r, Step)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for three files and few bytes, where the logs will be."""
    logs = tmp_path / "logs"
    logs.mkdir()
    options = "size=128k,nr_inodes=4"
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", logs], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"this user may not mount: {mounted.stderr.decode().strip()}")
    yield logs
    subprocess.run(["umount", logs], check=True)


@pytest.fixture
def served(tiny: Path, tmp_path: Path) -> Iterator[tuple[Process, httpx.Client]]:
    """`baton serve --record`, and a client."""
    port = free_port()
    flags = [
        "--port",
        str(port),
        "--dtype",
        "float32",
        "--kv-pages",
        "100",
        "--served-model-name",
        "m",
        "--threads",
        "1",
    ]
    command = [
        "-m",
        "baton.cli.main",
        "serve",
        str(tiny),
        *flags,
        "--record",
        str(tmp_path / "logs"),
    ]
    process = by_command("serve", command, tmp_path / "serve.log")
    http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30)
    try:
        wait_ready(http, [process])
        yield process, http
    finally:
        http.close()
        process.end()


def complete(http: httpx.Client, prompt: str, **fields: object) -> httpx.Response:
    body = {"model": "m", "prompt": prompt, "temperature": 0, "max_tokens": 20} | fields
    return http.post("/v1/completions", json=body)


def ledger(http: httpx.Client) -> dict[str, Any]:
    return dict(http.get("/debug/ledger").json())


def leave(http: httpx.Client) -> None:
    """Ask for much and go after the first words."""
    # Greedy: a random model never ends by itself then, and is still at it when its client goes.
    body = {"model": "m", "prompt": "x" * 80, "stream": True, "max_tokens": 1000, "temperature": 0}
    with http.stream("POST", "/v1/completions", json=body) as answer:
        next(answer.iter_lines())


def test_every_journal_of_a_service_plays_again(
    served: tuple[Process, httpx.Client], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (process, http), logs = served, tmp_path / "logs"
    for n in range(3):
        assert complete(http, f"request {n} " * (10 + 20 * n)).status_code == 200
    leave(http)
    # If decode died before the gateway noticed that the client is gone, nothing would be cancelled.
    wait_for(lambda: not ledger(http)["open_requests"], seconds=10, why="the request is cancelled")
    pid = next(w["ranks"][0]["pid"] for w in ledger(http)["workers"] if w["name"] == "decode-0")
    os.kill(pid, signal.SIGKILL)
    wait_for(
        lambda: (logs / "decode-0.2.baton-log").exists(), seconds=30, why="decode-0 started again"
    )
    wait_for(
        lambda: complete(http, "after that").status_code == 200, seconds=30, why="it serves again"
    )
    time.sleep(0.2)
    process.end()

    found = sorted(logs.iterdir())
    assert [p.name for p in found] == [
        f"{n}.baton-log" for n in ("decode-0.2", "decode-0", "gateway", "prefill-0")
    ]
    assert {stat.S_IMODE(p.stat().st_mode) for p in found} == {0o600}
    assert stat.S_IMODE(logs.stat().st_mode) == 0o700
    for path in found:
        code = run(["replay-log", str(path)])
        said = capsys.readouterr()
        assert code == 0, f"{path.name}: {said.out}{said.err}"
        assert len(entries(path)) > 10
    assert Cancel in entries(logs / "gateway.baton-log")
    assert PeerLost in entries(logs / "gateway.baton-log")
    assert PeerLost in entries(logs / "prefill-0.baton-log")


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_full_disk_ends_the_logs_and_not_the_service(
    small_disk: Path,
    served: tuple[Process, httpx.Client],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
) -> None:
    process, http = served

    def ended() -> int:
        return (tmp_path / "serve.log").read_text().count("event=record_ended")

    def filled() -> bool:
        assert complete(http, "request " * 20).status_code == 200
        return ended() >= 3

    wait_for(filled, seconds=60, why="no process can write any more")
    pid = next(w["ranks"][0]["pid"] for w in ledger(http)["workers"] if w["name"] == "decode-0")
    os.kill(pid, signal.SIGKILL)
    assert complete(http, "after that").status_code == 200, "it starts again without a log"
    assert ended() == 4
    assert ledger(http)["clean"]
    process.end()
    found = sorted(small_disk.iterdir())
    assert len(found) == 3
    for path in found:
        assert run(["replay-log", str(path)]) == 0, path.name
    capsys.readouterr()
