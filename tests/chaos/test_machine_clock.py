"""The wall clock of a process jumps forward and back while it runs; its monotonic clock goes on."""

import importlib.util
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from baton.core.errors import ConfigError
from baton.dev.chaos import machine_clock
from baton.dev.chaos.machine_clock import MachineClock

SHOW = """
import sys, time
for line in sys.stdin:
    began = time.monotonic()
    time.sleep(0.01)
    print(time.time(), time.monotonic(), time.monotonic() - began, flush=True)
"""
NEAR_S = 30.0
there = pytest.mark.skipif(
    importlib.util.find_spec("libfaketime") is None, reason="needs the package libfaketime"
)


def left() -> list[str]:
    """What lies about of clocks of this process."""
    return [path.name for path in Path("/dev/shm").glob(f"*_clock_{os.getpid()}_*")]


class Watcher:
    """A process that says what time it is."""

    def __init__(self, prefix: tuple[str, ...]) -> None:
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", SHOW],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )

    def ahead_s(self) -> tuple[float, float]:
        """Of this process: by its wall clock, and by its monotonic one."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("\n")
        wall, monotonic, slept = map(float, self.process.stdout.readline().split())
        assert 0.01 <= slept < NEAR_S
        return wall - time.time(), monotonic - time.monotonic()

    def comes_to(self, ahead_s: float) -> bool:
        """Whether its wall clock jumps there soon. Its monotonic one never jumps."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            wall, monotonic = self.ahead_s()
            assert abs(monotonic) < NEAR_S
            if abs(wall - ahead_s) < NEAR_S:
                return True
            time.sleep(0.05)
        return False


@pytest.fixture
def clock(tmp_path: Path) -> Iterator[MachineClock]:
    with closing(MachineClock(tmp_path / "clock")) as made:
        yield made
    assert left() == []


@pytest.fixture
def watcher(clock: MachineClock) -> Iterator[Watcher]:
    made = Watcher(clock.prefix)
    yield made
    made.process.kill()
    made.process.wait()
    assert not list(Path("/dev/shm").glob(f"*faketime*_{made.process.pid}"))


@there
def test_it_jumps_forward_and_back_and_only_it(clock: MachineClock, watcher: Watcher) -> None:
    for ahead_s in (0, 300, -300, 0):
        clock.jump_to(ahead_s)
        assert watcher.comes_to(ahead_s), ahead_s


@there
def test_it_knows_whose_it_is(clock: MachineClock, watcher: Watcher, tmp_path: Path) -> None:
    watcher.ahead_s()  # it has started
    assert clock.is_clock_of(watcher.process.pid)
    with closing(MachineClock(tmp_path / "another")) as another:
        assert not another.is_clock_of(watcher.process.pid)
    assert not clock.is_clock_of(os.getpid())


def test_without_the_library_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_clock, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install libfaketime, or leave clock out of --kinds"):
        MachineClock(tmp_path / "clock")


@there
def test_a_library_that_does_nothing_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(machine_clock, "WITHIN", Path("nothing.so"))
    with pytest.raises(ConfigError, match=r"nothing.so does not make a clock jump on this"):
        MachineClock(tmp_path / "clock")
    assert left() == []
