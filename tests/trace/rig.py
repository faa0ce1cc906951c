"""The in-process world with a journal around every core object, and journals played again."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from tests.core.build import KV, manifest, settings
from tests.core.driven import Driven, DrivenFront
from tests.core.world import FakeEngine, Node, World

from baton.core.events import GatewayConnected
from baton.core.gateway.request import FrontSettings
from baton.core.handoff.plans import Plans
from baton.core.ids import Boot, Rank
from baton.core.parts import FrontParts, LeaderParts, RankParts
from baton.trace.coding import records
from baton.trace.difference import Difference
from baton.trace.log import Parts, Record, Step
from baton.trace.recorder import Recorder, recorded
from baton.trace.replay import Make, Replay, make


class Bytes:
    """A sink."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes, /) -> None:
        self.parts.append(data)

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)


def watched(core: Any, parts: Parts, recorder: Recorder) -> Any:
    """The same core object, every step of which is written down."""
    inner = recorded(Plain(core), parts, recorder)
    core.step = inner.step
    return core


class Plain:
    """A core object as it was before its steps were written down."""

    def __init__(self, core: Any) -> None:
        self.step, self.next_wake = core.step, core.next_wake


class RecordedWorld(World):
    """World, every process of it writing a log."""

    make = staticmethod(make)  # what makes the recorded objects

    def __init__(self, **front: int) -> None:
        super().__init__(**front)
        self.logs: dict[str, Bytes] = {}
        self._recorders: list[Recorder] = []
        self._incarnation = count()
        parts = FrontParts(self.GATEWAY, FrontSettings(**front))
        self.front = DrivenFront(
            watched(self.make(parts, Plans()), parts, self._recorder("gateway"))
        )

    def _recorder(self, name: str) -> Recorder:
        sink = self.logs[name] = Bytes()
        self._recorders.append(Recorder(sink))
        return self._recorders[-1]

    def add(
        self, role: str, boot: int, *, pages: int = 16, page_blocks: int = 1, **limits: int
    ) -> Node:
        m = manifest(role, boot, pages=pages, page_blocks=page_blocks)
        recorder, plans = self._recorder(f"{role}-{boot}.{next(self._incarnation)}"), Plans()
        leads = LeaderParts(m, settings(f"{role}-{boot}", **limits), {KV: pages})
        node = Node(
            Driven(watched(self.make(leads, plans), leads, recorder)),
            FakeEngine(m.placement(0), pages),
        )
        computes = RankParts(Rank(0), Boot(boot), (m.placement(0),), m.seal)
        node.rank = watched(self.make(computes, plans), computes, recorder)
        self.nodes[Boot(boot)] = node
        node.leader.step(GatewayConnected(self.GATEWAY), self.now)
        return node

    def finished(self) -> dict[str, bytes]:
        """All journals, flushed."""
        for recorder in self._recorders:
            recorder.flush()
        return {name: log.data for name, log in self.logs.items()}


def read(data: bytes, size: int = 1000) -> Iterator[Record]:
    """The records of a journal that comes in chunks."""
    for _, record in records(data[i : i + size] for i in range(0, len(data), size)):
        yield record


def steps_of(data: bytes) -> list[Step]:
    """Its steps."""
    return [r for r in read(data) if isinstance(r, Step)]


def replayed(data: bytes, make: Make = make) -> tuple[int, Difference | None]:
    """(steps played, the first difference)."""
    replay = Replay(make)
    for record in read(data):
        if (found := replay.feed(record)) is not None:
            return replay.steps, found
    return replay.steps, None
