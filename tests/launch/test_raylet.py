"""Whether a raylet has ended; here it is another process that listens at a Unix socket."""

import subprocess
import sys
from pathlib import Path

import pytest

from baton.launch.raylet import Raylet

LISTENS = """
import socket, sys
with socket.socket(socket.AF_UNIX) as door:
    door.bind(sys.argv[1])
    door.listen()
    print(flush=True)
    sys.stdin.read()
"""


def test_it_is_there_until_its_process_ends(tmp_path: Path) -> None:
    path = str(tmp_path / "raylet")
    command = [sys.executable, "-c", LISTENS, path]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        raylet = Raylet.at(path)
        assert not raylet.ended
        process.kill()
        raylet.wait()
        assert raylet.ended
    with pytest.raises(ConnectionRefusedError):
        Raylet.at(path)


def test_one_that_cannot_be_seen_counts_as_there() -> None:
    assert not Raylet(0).ended
