"""Virtual time: one heap of events, one integer clock, one running hash of all that happens."""

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any
from zlib import crc32

from baton.dev.sim.tape import Tape

# returned by a call that was no longer due: it does not count as an event
SUPERSEDED = object()


class Heap:
    """Events in the order of time. Events of the same time come in the order of scheduling, or as
    the tape says."""

    def __init__(self, tape: Tape, *, shuffle: bool) -> None:
        self.now = 0
        self.events = 0
        self.trace = 0
        self._tape, self._shuffle = tape, shuffle
        self._heap: list[tuple[int, int, int, Callable[..., object], tuple[Any, ...]]] = []
        self._numbers = count()

    def at(self, when: int, what: Callable[..., object], *args: Any) -> None:
        """Call `what` at that time, or now if it has passed."""
        turn = self._tape.below(4, "order") if self._shuffle else 0
        heappush(
            self._heap,
            (when if when > self.now else self.now, turn, next(self._numbers), what, args),
        )

    def after(self, delay: int, what: Callable[..., object], *args: Any) -> None:
        """Call `what` in `delay` microseconds."""
        self.at(self.now + delay, what, *args)

    def mix(self, data: bytes) -> None:
        """Add data to the hash of the run."""
        self.trace = crc32(data, self.trace)

    def advance(
        self, until: int, *, most: int | None = None, done: Callable[[], bool] | None = None
    ) -> bool:
        """Perform all events up to `until`. Returns False as soon as there have been more than
        `most` in all. `done`, if given, is called before every event, and ends the loop early."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            if done is not None and done():
                return True
            self.now, _, number, what, args = heappop(heap)
            # a hash of integers, which PYTHONHASHSEED does not affect
            self.trace = hash((self.trace, self.now, number)) & 0xFFFF_FFFF
            if what(*args) is not SUPERSEDED:
                self.events += 1
                if most is not None and self.events > most:
                    return False
        if done is None or not done():
            self.now = max(self.now, until)
        return True
