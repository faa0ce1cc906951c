"""One simulated process: its pump is turned when something has come or its timer is due, until the
process ends or crashes."""

from collections.abc import Callable
from typing import Protocol

from baton.core.errors import Bug, GivenUp, PeerError
from baton.core.ids import Boot, Micros
from baton.dev.sim.heap import SUPERSEDED, Heap

SLOWER = 4


class Crash(BaseException):
    """The process ends here and now, between two effects. Only the top of a pump may catch it."""


class Pump(Protocol):
    """What a process turns."""

    def turn(self) -> Micros | None:
        """Do all that can be done now. Returns how long to sleep; None = until the next wake."""
        ...


class SkewedClock:
    """Port Clock: the world's time as this process sees it, with another zero and another rate."""

    def __init__(self, heap: Heap, *, offset: int, drift_ppm: int) -> None:
        self._heap, self._offset, self._drift = heap, offset, drift_ppm
        self._true, self._read = -1, Micros(0)  # kept, as a turn reads the clock often

    def now(self) -> Micros:
        true = self._heap.now
        if true != self._true:
            self._true, self._read = (
                true,
                Micros(
                    true + self._offset + (true * self._drift // 1_000_000 if self._drift else 0)
                ),
            )
        return self._read


class Process:
    """A process, alive from its creation to `die`. A restart is another Process."""

    def __init__(self, name: str, boot: Boot, heap: Heap, clock: SkewedClock) -> None:
        self.name, self.boot, self.heap, self.clock = name, boot, heap, clock
        self.alive = True
        self.turns = 0
        self.paused_until = 0
        self.slow_until = 0  # until then its host computes at a fraction of its pace
        self.calls_left: int | None = None  # port calls until a crash
        self.left = False  # whether it ended because its worker has drained
        self.gave_up = False  # whether it ended because work of its worker did not
        self.hangs: set[str] = set()  # kinds of work whose next piece will never end
        self.hung: set[str] = set()  # kinds of work that hang already
        self.last_ends: dict[str, int] = {}  # by kind of work: when a piece of it last ended
        self.has_left: Callable[[], bool] = lambda: False
        self.on_hang: Callable[[Process, str], None] = lambda process, kind: None
        self.on_death: list[Callable[[str], None]] = []
        self.on_bug: Callable[[Process, Bug], None] | None = None
        self.reaction: Callable[[], int] = lambda: 0
        self._pump: Pump  # once started
        self._due: int | None = None
        self._queued: list[int] = []  # times at which the heap will call, the soonest last

    def start(self, make: Callable[[], Pump]) -> None:
        """Make the pump and turn it for the first time."""
        try:
            self._pump = make()
        except (Crash, PeerError, GivenUp, Bug) as why:
            self._ends(why)
        self.wake()

    @property
    def pump(self) -> Pump:
        """The pump, once started."""
        return self._pump

    def wake(self, delay: int | None = None) -> None:
        """Turn the pump soon. Several wakes before a turn count as one."""
        if not self.alive:
            return
        when = self.heap.now + (self.reaction() if delay is None else delay)
        if when < self.paused_until:
            when = self.paused_until
        if self._due is None or when < self._due:
            self._due = when
            if not (queued := self._queued) or when < queued[-1]:
                queued.append(when)
                self.heap.at(when, self._turn)

    def _turn(self) -> object:
        queued, due, now = self._queued, self._due, self.heap.now
        queued.pop()
        if due is None or not self.alive:
            return SUPERSEDED
        if due > now:
            if not queued or due < queued[-1]:
                queued.append(due)
                self.heap.at(due, self._turn)
            return SUPERSEDED
        self._due = None
        if now < self.paused_until:
            self.wake(0)
            return None
        self.turns += 1
        try:
            sleep = self._pump.turn()
        except (Crash, PeerError, GivenUp, Bug) as why:
            self._ends(why)
        else:
            if self.has_left():
                self.left = True
                self.die("has drained")
            elif sleep is not None:
                # a clock that runs slow must not be asked again in the same microsecond
                self.wake(sleep + 1)
        return None

    def _ends(self, why: Crash | PeerError | GivenUp | Bug) -> None:
        match why:
            case Crash():
                self.die("crashed")
            case PeerError():
                self.die(str(why))
            case GivenUp():
                self.gave_up = True
                self.die(str(why))
            case Bug():
                if self.on_bug is not None:
                    self.on_bug(self, why)
                self.die(f"bug: {why}")

    @property
    def slowness(self) -> int:
        """How many times as long as usual computing takes on this host now."""
        return SLOWER if self.heap.now < self.slow_until else 1

    def port_call(self) -> None:
        """Count a call of a port. Every call comes here, so a crash may come between any two."""
        if self.calls_left is None:
            return
        if self.calls_left == 0:
            raise Crash
        self.calls_left -= 1

    def ends(self, kind: str) -> bool:
        """Whether work of this kind that begins now will end."""
        if kind in self.hung:
            return False  # its thread hangs
        if kind not in self.hangs:
            return True
        self.hung.add(kind)
        self.on_hang(self, kind)
        return False

    def has_ended(self, kind: str) -> None:
        """A piece of work of this kind has ended."""
        self.last_ends[kind] = self.heap.now

    def die(self, why: str) -> None:
        """End the process: nothing of it moves any more."""
        if self.alive:
            self.alive = False
            for tell in self.on_death:
                tell(why)
