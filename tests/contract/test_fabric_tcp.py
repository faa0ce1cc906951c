"""NIXL where a read takes time and needs the other process to move: UCX over TCP, chosen by
environment for the child alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from baton.adapters.fabrics import available

OBSTACLE = available()["nixl"]


@pytest.mark.nixl
@pytest.mark.skipif(bool(OBSTACLE), reason=f"nixl: {OBSTACLE}")
def test_stopped_woken_and_killed_sources_over_tcp() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.contract.fabric_tcp"],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "UCX_TLS": "tcp"},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "passed" in done.stdout
