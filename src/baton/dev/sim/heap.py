"""Virtual time: one heap of events, one integer clock, one running hash of all that happens."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any
from zlib import crc32

from baton.dev.sim.tape import Tape

# returned by what turned out to be due no more: it does not count as an event
SUPERSEDED = object()


class Heap:
    """Events in order of time; what is due at the same time goes in the order of scheduling, or as
    the tape says."""

    def __init__(self, tape: Tape, *, shuffle: bool) -> None:
        self.now = 0
        self.events = 0
        self.trace = 0
        self._tape, self._shuffle = tape, shuffle
        self._heap: list[tuple[int, int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, when: int, what: Callable[..., object], *args: Any) -> None:
        """Call `what` then; a time that has passed is now."""
        turn = self._tape.below(4, "order") if self._shuffle else 0
        heappush(
            self._heap,
            (when if when > self.now else self.now, turn, next(self._numbers), what, args),
        )

    def after(self, delay: int, what: Callable[..., object], *args: Any) -> None:
        """Call `what` so many microseconds from now."""
        self.at(self.now + delay, what, *args)

    def mix(self, data: bytes) -> None:
        """Add to the hash of the run."""
        self.trace = crc32(data, self.trace)

    def advance(
        self, until: int, *, most: int | None = None, done: Callable[[], bool] | None = None
    ) -> bool:
        """Do all events up to that time; False as soon as there have been more than `most` in all.
        Where it is given, `done` is asked before every event, and ends it earlier."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            if done is not None and done():
                return True
            self.now, _, number, what, args = heappop(heap)
            # of integers: PYTHONHASHSEED does not touch it
            self.trace = hash((self.trace, self.now, number)) & 0xFFFF_FFFF
            if what(*args) is not SUPERSEDED:
                self.events += 1
                if most is not None and self.events > most:
                    return False
        if done is None or not done():
            self.now = max(self.now, until)
        return True
