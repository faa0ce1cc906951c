"""How long things take in a world: steps that grow with what they compute, and wires of limited
rate.

    read ──▶ queue of its wire ──its turn──▶ carried, at the wire's rate ──▶ landed         one read after the other

The defaults are a fast machine with an unlimited wire, where nothing ever waits for anything else.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum

import msgspec

from baton.dev.sim.heap import Heap


class Shares(Enum):
    """Which reads queue behind each other."""

    NONE = "none"  # the wire is unlimited
    TARGET = "target"  # those of one reader
    SOURCE = "source"  # those from one source
    ALL = "all"  # all of the world


class Costs(msgspec.Struct, frozen=True):
    """The speed of a world's machines and wires.

    Attributes:
        step_us: time of a step, whatever is in it
        row_us: additional time of each row
        token_us: additional time of each token
        read_us: time before a read's first byte is carried
        bytes_per_ms: the rate of a wire; 0 = without limit
        shares: which reads share a wire
        connect_us: time until a peer is connected
    """

    step_us: int = 400
    row_us: int = 0
    token_us: int = 25
    read_us: int = 0
    bytes_per_ms: int = 0
    shares: Shares = Shares.NONE
    connect_us: int = 0

    def step(self, *, rows: int, tokens: int) -> int:
        """Return the microseconds that a step takes."""
        return self.step_us + self.row_us * rows + self.token_us * tokens

    def carrying(self, nbytes: int) -> int:
        """Return the microseconds for which a read has its wire to itself."""
        return self.read_us + (nbytes * 1000 // self.bytes_per_ms if self.bytes_per_ms else 0)

    def request_us(self, *, steps: int, nbytes: int) -> int:
        """Return how many microseconds a request that is alone may take longer than by default:
        `steps` steps, and two transfers of its state."""
        more = self.step(rows=8, tokens=16) - DEFAULT.step(rows=8, tokens=16)
        return steps * more + 2 * self.carrying(nbytes) + self.connect_us


DEFAULT = Costs()


class Wire:
    """Carries one read at a time, in the order in which they came. A read that was given up before
    its turn takes no time."""

    def __init__(self, heap: Heap) -> None:
        self._heap = heap
        self._queue: deque[tuple[int, Callable[[], bool], Callable[[int], None]]] = deque()
        self._busy = False

    def enter(
        self, duration: int, wanted: Callable[[], bool], begin: Callable[[int], None]
    ) -> None:
        """Queue a read. At its turn `begin` is called with the time that it takes, if it is still
        `wanted` then."""
        self._queue.append((duration, wanted, begin))
        if not self._busy:
            self._next()

    def _next(self) -> None:
        self._busy = False
        while self._queue and not self._busy:
            duration, wanted, begin = self._queue.popleft()
            if wanted():
                self._busy = True
                self._heap.after(duration, self._next)
                begin(duration)


class Wires:
    """The wires of a world."""

    def __init__(self, heap: Heap, costs: Costs) -> None:
        self._heap, self._costs = heap, costs
        self._all: dict[str, Wire] = {}

    def enter(
        self,
        source: str,
        target: str,
        nbytes: int,
        wanted: Callable[[], bool],
        begin: Callable[[int], None],
    ) -> None:
        """Queue a read of `nbytes` bytes from one process to another, on the wire that it uses; see
        Wire."""
        names = {Shares.TARGET: target, Shares.SOURCE: source, Shares.ALL: ""}
        if self._costs.shares is Shares.NONE:
            begin(self._costs.carrying(nbytes))
            return
        wire = self._all.setdefault(names[self._costs.shares], Wire(self._heap))
        wire.enter(self._costs.carrying(nbytes), wanted, begin)
