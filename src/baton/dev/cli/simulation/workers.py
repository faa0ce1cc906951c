"""Processes that run seeds: each gets a few at a time and reports the outcome of every run.

this process ──[seeds]──▶ worker.py, one a core ──Outcome, Outcome ..──▶ this process
"""

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

import msgspec

from baton.core.errors import BatonError
from baton.dev.sim.run import PROCESS_ENDED, RunOutcome
from baton.shell.leash import leashed

CHUNK = 16  # seeds of one order: about half a second
ANY = "random"  # a PYTHONHASHSEED
GRACE_S = 5.0
PROGRAM = (sys.executable, "-m", "baton.dev.cli.simulation.worker")
_decoder = msgspec.json.Decoder(RunOutcome)


class SeedWorker:
    """A simulating process, at work on one order."""

    def __init__(self, planted: str | None, hash_seed: str, *, guests: bool) -> None:
        argv = (*PROGRAM, *(["--guests"] if guests else []), *([planted] if planted else []))
        # In a process group of its own: Ctrl-C reaches only this process, which then sums up.
        self._process = subprocess.Popen(
            leashed(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout.fileno()
        self._rest = b""
        self.ready = False
        self.todo: list[int] = []

    def order(self, seeds: list[int]) -> None:
        """Order these seeds to be run."""
        self.todo = seeds
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; its output says so
            self._process.stdin.write(msgspec.json.encode(seeds) + b"\n")
            self._process.stdin.flush()

    def hear(self) -> list[RunOutcome] | None:
        """Return the outcomes that it has reported; None if it has ended."""
        chunk = os.read(self.output, 1 << 20)
        if not chunk:
            return None
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        self.ready = self.ready or bool(whole)
        outcomes = [_decoder.decode(line) for line in whole if line]
        self.todo = self.todo[len(outcomes) :]
        return outcomes

    def await_end(self) -> None:
        """Wait for its end. It has closed its output, so it is about to end by itself."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)

    def end(self) -> int:
        """End it now. Returns its exit code."""
        if self._process.poll() is None:
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        return self._process.wait()


def run_seeds(
    seeds: Iterable[int],
    *,
    jobs: int,
    planted: str | None,
    guests: bool = False,
    hash_seed: str = ANY,
    until: float | None = None,
) -> Iterator[RunOutcome]:
    """Yield outcomes in the order in which runs end. After `until` (time.monotonic) no more are
    begun.

    Raises:
        BatonError: the simulating processes cannot start
    """
    crew = _Crew(iter(seeds), planted, hash_seed, until, guests=guests)
    try:
        for _ in range(jobs):
            crew.hire()
        yield from crew.outcomes()
    finally:
        crew.end()


class _Crew:
    def __init__(
        self,
        seeds: Iterator[int],
        planted: str | None,
        hash_seed: str,
        until: float | None,
        *,
        guests: bool,
    ) -> None:
        self._guests = guests
        self._seeds, self._planted, self._hash_seed, self._until = seeds, planted, hash_seed, until
        self._selector = selectors.DefaultSelector()

    def hire(self, todo: list[int] | None = None) -> None:
        """Start one more process, if there is anything to do."""
        todo = todo or self._next()
        if todo:
            worker = SeedWorker(self._planted, self._hash_seed, guests=self._guests)
            self._selector.register(worker.output, selectors.EVENT_READ, worker)
            worker.order(todo)

    def _next(self) -> list[int]:
        return (
            []
            if self._until is not None and time.monotonic() >= self._until
            else list(islice(self._seeds, CHUNK))
        )

    def outcomes(self) -> Iterator[RunOutcome]:
        while self._selector.get_map():
            for key, _ in self._selector.select():
                yield from self._heard(key.data)

    def _heard(self, worker: SeedWorker) -> Iterator[RunOutcome]:
        outcomes = worker.hear()
        if outcomes is None:
            yield from self._lost(worker)
            return
        yield from outcomes
        if not worker.todo and worker.ready:
            more = self._next()
            if more:
                worker.order(more)
            else:
                self._dismiss(worker)

    def _lost(self, worker: SeedWorker) -> Iterator[RunOutcome]:
        """A process has ended by itself, because of the run that it was at."""
        worker.await_end()
        code = self._dismiss(worker)
        if not worker.ready:
            raise BatonError(f"a simulating process could not start; it ended with code {code}")
        culprit, *rest = worker.todo
        yield _ended_its_process(culprit, f"the process that ran it ended with code {code}")
        self.hire(rest)

    def _dismiss(self, worker: SeedWorker) -> int:
        self._selector.unregister(worker.output)
        return worker.end()

    def end(self) -> None:
        for key in list(self._selector.get_map().values()):
            self._dismiss(key.data)
        self._selector.close()


def _ended_its_process(seed: int, why: str) -> RunOutcome:
    return RunOutcome(
        seed=seed,
        invariant=PROCESS_ENDED,
        detail=why,
        events=0,
        trace=0,
        marks={},
        core_marks={},
        requests=0,
        repeats=0,
        wide=False,
        clean=False,
        choices={},
        story=(),
    )
