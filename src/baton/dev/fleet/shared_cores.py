"""The cores of one machine, for which steps of its workers and the work of its gateway and clients
compete."""

from collections import deque
from collections.abc import Callable

from baton.dev.fleet.profile import HostTimes
from baton.dev.fleet.virtual_clock import VirtualClock

Ended = Callable[[], None]


class CoreWork:
    """Something that is computed. left: microseconds that it would take if it were alone"""

    def __init__(self, left: float, *, step: bool, ended: Ended) -> None:
        self.left, self.step, self.ended = left, step, ended


class SharedCores:
    """Runs what is to be computed side by side.

    Where it wants more cores than there are, all of it runs slower by the same factor. Steps of
    several workers slow each other down besides, by `contention` for each other one that runs: they
    read their weights from the same memory.
    """

    def __init__(self, cores: int, host: HostTimes, clock: VirtualClock) -> None:
        self._cores, self._host, self._clock = cores, host, clock
        self._running: list[CoreWork] = []
        self._since = 0.0  # until when `left` has been counted down
        self._turn = 0  # of the end that is awaited
        self._waiting: deque[CoreWork] = deque()  # of gateway and clients: one after the other

    def step(self, us: float, ended: Ended) -> None:
        """Compute a step of a worker."""
        self._count_down()
        self._running.append(CoreWork(us, step=True, ended=ended))
        self._await_end()

    def serve(self, us: float, ended: Ended) -> None:
        """Do something for a client, when all that was asked for before is done."""
        work = CoreWork(us, step=False, ended=lambda: self._served(ended))
        self._waiting.append(work)
        if len(self._waiting) == 1:
            self._begin(work)

    def _begin(self, work: CoreWork) -> None:
        self._count_down()
        self._running.append(work)
        self._await_end()

    def _served(self, ended: Ended) -> None:
        self._waiting.popleft()
        if self._waiting:
            self._begin(self._waiting[0])
        ended()

    def _speeds(self) -> tuple[float, float]:
        """How fast steps run now, and all else: 1 is as if alone."""
        steps = sum(work.step for work in self._running)
        wanted = steps * self._host.threads + len(self._running) - steps
        share = min(1.0, self._cores / max(1, wanted))
        others = min(steps, max(1, self._cores // self._host.threads)) - 1
        return share / (1 + self._host.contention * max(0, others)), share

    def _count_down(self) -> None:
        now = float(self._clock.now)
        step, other = self._speeds()
        for work in self._running:
            work.left -= (now - self._since) * (step if work.step else other)
        self._since = now

    def _await_end(self) -> None:
        if not self._running:
            return
        step, other = self._speeds()
        after = min(work.left / (step if work.step else other) for work in self._running)
        self._turn += 1
        self._clock.at(self._since + max(0.0, after), self._end, self._turn)

    def _end(self, turn: int) -> None:
        if turn != self._turn:
            return  # something has begun or ended since
        self._count_down()
        # the clock has whole microseconds
        ended = [work for work in self._running if work.left < 1]
        self._running = [work for work in self._running if work.left >= 1]
        self._await_end()
        for work in ended:
            work.ended()
