"""What a rank's ports have taken on and ought to bring to an end: which of it never will (pure; the
time is handed in).

    begins ──▶ the oldest of its kind ──ends──▶ so much takes so long            the pace of that kind, for later bounds
                       └── no sign of progress for longer than its bound ──▶ wedged, said once

    bound = `first_ms`, until anything of the kind has ended: first steps may compile FACTOR x what
            so much has taken so far, from then on; at least `floor_ms`, at most `first_ms`

Work of a kind runs one piece after the other, so only the oldest is looked at. Time counts in steps
of a tick at most: what passes while this process is not turned (stopped, moved to another machine,
starved) is nobody's fault and counts for a tick.
"""

from enum import Enum
from math import inf

import msgspec

from baton.core.ids import Micros

# a layer, or a chunk of a digest, that takes so many times longer than a whole piece of work of
# that size
FACTOR = 10.0
TICKS = 8  # looks in the time of the floor
FORGETS = 0.9  # what the slowest piece of a size keeps of its time with each later one


class WorkKind(Enum):
    """The kinds of work; each kind has a thread of its own."""

    STEP = "step"
    DIGEST = "digest"
    COPY = "host copy"


class WatchdogSettings(msgspec.Struct, frozen=True):
    """States how long work may go without a sign of progress, in milliseconds."""

    floor_ms: int  # however fast it was before; 0 = nothing is watched
    # until a piece of its kind has ended; also the most that later ones get, where it is not 0
    first_ms: int


class UsualDuration:
    """Remembers how long pieces of one kind took lately, by the order of magnitude of their
    size."""

    def __init__(self) -> None:
        self._slowest: dict[int, float] = {}  # by bits of the size: microseconds

    def saw(self, size: int, us: int) -> None:
        """A piece of that size took so long."""
        bits = size.bit_length()
        known = self._slowest.get(bits, 0.0)
        self._slowest[bits] = max(float(us), FORGETS * known)

    def expected(self, size: int) -> float | None:
        """Return how many microseconds such a piece takes, or None before any has ended.

        It takes no more than a larger one, nor than so many smaller ones.
        """
        bits = size.bit_length()
        return min((us * 2.0 ** max(0, bits - b) for b, us in self._slowest.items()), default=None)


class Lane:
    """The open work of one kind, oldest first."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}  # job -> size
        self.pace = UsualDuration()
        self.progress = 0  # as last seen
        self.still = 0  # microseconds without a sign of it
        self.spent = 0  # microseconds of the oldest
        self.said = False  # that the oldest is wedged

    def begin_next(self) -> None:
        """Another piece is the oldest."""
        self.still, self.spent, self.said = 0, 0, False


class Stuck(msgspec.Struct, frozen=True):
    """A piece of work that does not end."""

    task: WorkKind
    job: int
    why: str


class Watchdog:
    """Watches the work of one rank."""

    def __init__(self, settings: WatchdogSettings) -> None:
        self._settings = settings
        self._tick = max(1, settings.floor_ms * 1000 // TICKS)
        self._lanes = {task: Lane() for task in WorkKind}
        self._seen = Micros(0)  # when time was counted last
        self.watching = 0  # pieces under way

    def begins(self, task: WorkKind, job: int, size: int, now: Micros) -> None:
        """A piece of work is handed to its port. size: tokens of a step, blocks of the others"""
        if not self._settings.floor_ms:
            return
        self._count(now)
        lane = self._lanes[task]
        if not lane.open:
            lane.begin_next()
        lane.open[job] = size
        self.watching += 1

    def ends(self, task: WorkKind, job: int, now: Micros) -> None:
        """A piece of work has ended, well or not."""
        if not self._settings.floor_ms:
            return
        self._count(now)
        lane = self._lanes[task]
        oldest = next(iter(lane.open)) == job
        size = lane.open.pop(job)
        self.watching -= 1
        if oldest:
            lane.pace.saw(size, lane.spent)
            lane.begin_next()

    def progressed(self, task: WorkKind, count: int) -> None:
        """All work of a kind has shown so many signs of progress so far."""
        lane = self._lanes[task]
        if lane.progress != count:
            lane.progress, lane.still = count, 0

    def look(self, now: Micros) -> list[Stuck]:
        """Return what is found to be wedged now. Each piece is named once."""
        if not self.watching:
            return []
        self._count(now)
        return [
            self._stuck(task, lane) for task, lane in self._lanes.items() if self._is_stuck(lane)
        ]

    def timer(self) -> Micros | None:
        """Return when to look next, or None while there is nothing to look at."""
        if not self.watching:
            return None
        waits = any(lane.open and not lane.said for lane in self._lanes.values())
        return Micros(self._seen + self._tick) if waits else None

    def _count(self, now: Micros) -> None:
        passed, self._seen = min(now - self._seen, self._tick), now
        for lane in self._lanes.values():
            if lane.open:
                lane.still += passed
                lane.spent += passed

    def _is_stuck(self, lane: Lane) -> bool:
        return bool(lane.open) and not lane.said and lane.still > self._bound(lane)

    def _bound(self, lane: Lane) -> float:
        expected = lane.pace.expected(next(iter(lane.open.values())))
        floor, first = self._settings.floor_ms * 1000, self._settings.first_ms * 1000
        if expected is None:
            return max(floor, first)
        # A small piece that compiled for a minute, or waited for another rank's, says nothing of
        # larger ones: by it alone they
        # might take days. To have seen it is no reason to wait longer than with nothing seen.
        return max(floor, min(first or inf, FACTOR * expected))

    def _stuck(self, task: WorkKind, lane: Lane) -> Stuck:
        lane.said = True
        job, size = next(iter(lane.open.items()))
        unit = "tokens" if task is WorkKind.STEP else "blocks"
        usual = lane.pace.expected(size)
        took = (
            f"; so much took {usual / 1000:.0f} ms at most"
            if usual is not None
            else "; none has ended yet"
        )
        return Stuck(
            task,
            job,
            f"a {task.value} of {size} {unit} has made no progress for "
            f"{lane.still / 1e6:.1f} s{took}",
        )
