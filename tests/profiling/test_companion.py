"""The second worker computes when it is told to, and rests as soon as `tell` returns."""

import time

import psutil
import pytest
from tests.e2e.service import wait_for
from tests.tiny import make_tiny

from baton.core.memory.state import DType
from baton.dev.profiling.companion import GO, STOP, companion

RESTS_S = 0.3


@pytest.mark.timeout(120)
def test_it_computes_when_told_and_rests_when_told(tmp_path):
    """What is timed alone would otherwise be timed beside the rest of its work."""
    path = make_tiny(tmp_path / "tiny", "llama")
    with companion(path, DType.F32, threads=1) as other:
        process = psutil.Process(other.pid)

        def spent():
            return process.cpu_times().user

        for _ in range(3):
            before = spent()
            other.tell(GO)
            wait_for(lambda before=before: spent() > before, seconds=20, why="it computes")
            other.tell(STOP)
            before = spent()
            time.sleep(RESTS_S)
            assert spent() - before <= 0.02, "it computes on"
    assert not process.is_running()
