"""The in-process world with a journal around every core object, and journals played again."""

from collections.abc import Iterator
from itertools import count
from typing import Any

from tests.core.build import KV, manifest, settings
from tests.core.world import FakeEngine, Node, World

from baton.core.cores import AnyFront, Cores, FrontParts, LeaderParts, PlainCores, RankParts
from baton.core.ids import Boot, Rank
from baton.core.request import Bits, FrontSettings
from baton.core.state import Placement
from baton.journal.coding import records
from baton.journal.difference import Difference
from baton.journal.entries import Record, Step
from baton.journal.recorder import Recorder
from baton.journal.recording import RecordedCores, RecordedFront, RecordedLeader
from baton.journal.replay import Replay


class Transparent:
    """Shows a test what is inside a recorded core object."""

    def __getattr__(self, name: str) -> Any:
        inner = self.__dict__.get("_leader", self.__dict__.get("_front"))
        return getattr(inner, name)


class OpenLeader(Transparent, RecordedLeader):
    pass


class OpenFront(Transparent, RecordedFront):
    pass


class Bytes:
    """A sink."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def write(self, data: bytes, /) -> None:
        self.parts.append(data)

    @property
    def data(self) -> bytes:
        return b"".join(self.parts)


class OpenCores(RecordedCores):
    """RecordedCores whose objects can be looked into."""

    def leader(self, parts: LeaderParts) -> Any:
        recorded = super().leader(parts)
        return OpenLeader(recorded._leader, recorded._recorder)

    def front(self, parts: FrontParts, bits: Bits) -> AnyFront:
        recorded = super().front(parts, bits)
        return OpenFront(recorded._front, recorded._recorder, recorded._now)


class RecordedWorld(World):
    """World, every process of it writing a journal."""

    plain: Cores = PlainCores()  # what the recorded objects are

    def __init__(self, **front: int) -> None:
        super().__init__(**front)
        self.logs: dict[str, Bytes] = {}
        self._recorders: list[Recorder] = []
        self._incarnation = count()
        rooms = iter(range(1, 10_000))
        self.front = self._cores("gateway").front(FrontParts(self.GATEWAY, FrontSettings(**front)), lambda n: next(rooms))

    def _cores(self, name: str) -> Cores:
        sink = self.logs[name] = Bytes()
        recorder = Recorder(sink)
        self._recorders.append(recorder)
        return OpenCores(self.plain, recorder, lambda: self.now)

    def add(self, role: str, boot: int, *, pages: int = 16, page_blocks: int = 1, **limits: int) -> Node:
        m = manifest(role, boot, pages=pages, page_blocks=page_blocks)
        parts = LeaderParts(m, settings(f"{role}-{boot}", **limits), {KV: pages})
        cores = self._cores(f"{role}-{boot}.{next(self._incarnation)}")
        placements: tuple[Placement, ...] = (m.placement(0),)
        node = Node(cores.leader(parts), FakeEngine(placements[0], pages))
        node.rank = cores.rank(RankParts(Rank(0), Boot(boot), placements, m.seal))
        self.nodes[Boot(boot)] = node
        node.leader.gateway_up(self.GATEWAY, self.now)
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


def replayed(data: bytes, cores: Cores | None = None) -> tuple[int, Difference | None]:
    """(steps played, the first difference)."""
    replay = Replay(cores or PlainCores())
    for record in read(data):
        if (found := replay.feed(record)) is not None:
            return replay.steps, found
    return replay.steps, None
