"""Requests that wait at the gateway, holding nothing: whose turn is next, and how long the wait
will be.

Those that workers had already come first (their clients may be reading), then the lower `priority`
value, then who came first. So that nobody waits for ever, one of every `OLDEST_EVERY` that leave is
the oldest, whatever its priority: a request before which k older ones leave is among the first
OLDEST_EVERY * (k + 1) to leave after it came.
"""

from bisect import bisect_left, insort
from collections import deque

from baton.core.ids import Arrival, Micros

OLDEST_EVERY = 4
Rank = tuple[bool, int, Arrival]


class EdgeQueue:
    """Keeps the order. Requests are known by their arrivals; the lowest is the oldest."""

    def __init__(self) -> None:
        self._ranks: dict[Arrival, Rank] = {}
        self._ranked: list[Rank] = []
        self._arrivals: list[Arrival] = []
        self._left = 0
        self.pace = DepartureRate()

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def oldest(self) -> Arrival | None:
        """The request that has waited longest."""
        return self._arrivals[0] if self._arrivals else None

    def add(self, arrival: Arrival, *, priority: int, begun: bool, now: Micros) -> None:
        """A request begins to wait. begun: whether workers have had it already"""
        if not self._ranks:
            self.pace.begins(now)
        rank = self._ranks[arrival] = (not begun, priority, arrival)
        insort(self._ranked, rank)
        insort(self._arrivals, arrival)

    def discard(self, arrival: Arrival) -> None:
        """A request waits no more, without having had its turn. It need not have waited."""
        rank = self._ranks.pop(arrival, None)
        if rank is not None:
            del self._ranked[bisect_left(self._ranked, rank)]
            del self._arrivals[bisect_left(self._arrivals, arrival)]

    def next(self) -> Arrival | None:
        """Return the request whose turn it is, whatever it needs."""
        if not self._ranks:
            return None
        return (
            self._arrivals[0]
            if self._left % OLDEST_EVERY == OLDEST_EVERY - 1
            else self._ranked[0][2]
        )

    def leave(self, arrival: Arrival, now: Micros) -> None:
        """The turn of a request has come."""
        self.discard(arrival)
        self._left += 1
        self.pace.left(now)

    def wait(self, priority: int, now: Micros, *, before: int = 0) -> int:
        """Return in how many microseconds a newcomer with this priority would be admitted, as the
        queue moves now; 0 where that is not known.

        before: requests that have left the queue and are not admitted
        """
        ahead = bisect_left(self._ranked, (True, priority + 1))
        return (before + ahead + 1) * self.pace.gap(now) if self._ranks else 0


class DepartureRate:
    """Measures the mean time between departures.

    It looks at the last `MOST` departures of the time in which somebody waited, and at the last
    `RECENT`; the longer mean counts: a queue begins with a burst, which fills the workers, and a
    service may become slower.
    """

    LEAST, RECENT, MOST = 4, 16, 64

    def __init__(self) -> None:
        self._times: deque[Micros] = deque(maxlen=self.MOST + 1)

    def begins(self, now: Micros) -> None:
        """From now on a request waits."""
        self._times.clear()
        self._times.append(now)

    def left(self, now: Micros) -> None:
        """One of those that wait has its turn."""
        self._times.append(now)

    def gap(self, now: Micros) -> int:
        """Return the mean time in microseconds, with any standstill since the last departure; 0
        before `LEAST` departures."""
        departures = len(self._times) - 1
        if departures < self.LEAST:
            return 0
        recent = min(departures, self.RECENT)
        return max((now - self._times[-1 - n]) // n for n in (recent, departures))
