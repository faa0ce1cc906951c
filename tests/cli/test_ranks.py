"""The ranks that one starts: before it loads anything heavy itself; it hears of one's end, lets the
others end by themselves, and ends those that do not."""

import select
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from tests.cli.test_preflight import WORKER

from baton.cli import ranks
from baton.cli.ranks import Processes
from baton.core.errors import BatonError, ConfigError, PeerError
from baton.shell.child import Program

POLITE = """
import pathlib, signal, sys
def end(*_): pathlib.Path({told!r}).touch(); sys.exit(0)
signal.signal(signal.SIGTERM, end)
pathlib.Path({up!r}).touch()
while True: signal.pause()
"""
STUBBORN = (
    "import pathlib, signal; signal.signal(15, signal.SIG_IGN); "
    "pathlib.Path({up!r}).touch()\nwhile True: signal.pause()"
)


def command(code: str) -> Program:
    return Program("rank", (sys.executable, "-IS", "-c", code), ends=0)


def wait_up(path: Path) -> None:
    until = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.01)


def first_end(crew: Processes) -> BatonError:
    """What the leader hears when a rank has ended."""
    assert select.select(crew.filenos(), [], [], 30)[0]
    with pytest.raises(BatonError) as caught:
        crew.look()
    return caught.value


@pytest.mark.parametrize(
    ("code", "kind", "how"),
    [
        ("raise SystemExit(3)", PeerError, "exit code 3"),
        ("raise SystemExit(2)", ConfigError, "exit code 2"),
        ("import os; os.kill(os.getpid(), 9)", PeerError, "SIGKILL"),
    ],
)
def test_after_one_has_ended_the_others_are_asked_to(
    tmp_path: Path, code: str, kind: type[BatonError], how: str
) -> None:
    up, told = tmp_path / "up", tmp_path / "told"
    crew = Processes({1: command(code), 2: command(POLITE.format(up=str(up), told=str(told)))})
    wait_up(up)
    error = first_end(crew)
    assert type(error) is kind
    assert f"rank 1 of this worker ended ({how})" in str(error)
    crew.tell()
    crew.close()
    assert told.exists()
    assert crew.filenos() == ()


def test_one_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "PATIENCE_S", 0.05)
    up = tmp_path / "up"
    crew = Processes({1: command(STUBBORN.format(up=str(up)))})
    wait_up(up)
    crew.look()
    crew.tell()
    crew.close()
    assert crew.filenos() == ()


STARTS = """
import sys
from dataclasses import replace
import msgspec
from baton.cli.compose_worker import PRODUCTION, run_worker
from baton.shell.settings import WorkerSettings

def crew(settings):
    print(*settings, *{own.rendezvous for own in settings.values()}, "torch" in sys.modules)
    raise SystemExit

run_worker(msgspec.json.decode(sys.argv[1], type=WorkerSettings), replace(PRODUCTION, crew=crew))
"""


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({"tp": 2, "pp": 2}, "1 2 3 127.0.0.1:"),
        ({"tp": 4, "nnodes": 2, "node_rank": 1, "rendezvous": "127.0.0.1:1"}, "3 127.0.0.1:1 "),
        ({}, "False"),
    ],
    ids=["leader", "second machine", "alone"],
)
def test_the_others_start_before_torch_is_loaded(changes: dict[str, object], others: str) -> None:
    settings = msgspec.json.encode(msgspec.structs.replace(WORKER, **changes)).decode()
    found = subprocess.run(
        [sys.executable, "-c", STARTS, settings],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert found.stdout.startswith(others), found
    assert found.stdout.rstrip().endswith("False"), found
