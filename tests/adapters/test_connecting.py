"""Connecting to peers: what is said of it and when, over an engine whose agents answer when the
test lets them."""

import threading
import time
from collections.abc import Iterator, Sequence

import msgspec
import pytest

from baton.adapters.agent_fabric import AgentFabric, AgentMetadata, TransferEngine, agent_name
from baton.adapters.clock import MonotonicClock
from baton.adapters.reads import Region
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, Rank, RankId
from baton.core.manifest import RankManifest
from baton.ports.fabric import Capabilities, Connected

PATIENCE_S = 20.0
CAPABILITIES = Capabilities(1, 1, False, False, True, True)
SLOW, FINE, WRONG, BROKEN = (RankId(Boot(n), Boot(n), Rank(0)) for n in range(1, 5))


class GatedAgent:
    """Learns a peer when the gate is open. Metadata is the word for what happens."""

    def __init__(self, engine: "GatedEngine", name: str) -> None:
        self.engine, self.closed = engine, False

    def register(self, regions: Sequence[Region]) -> bytes:
        if self.engine.pinned:
            raise ConfigError("memory cannot be registered")
        return b""

    def add(self, metadata: bytes) -> str:
        word, _, name = metadata.decode().partition(" ")
        if word == "slow":
            self.engine.knocking.set()
            assert self.engine.gate.wait(PATIENCE_S)
        if word == "broken":
            raise RuntimeError("a bug")
        if word == "wrong":
            raise FabricError("no such metadata")
        return name

    def remove(self, name: str) -> None: ...

    def progress(self) -> None: ...

    def close(self) -> None:
        self.closed = True


class GatedEngine:
    def __init__(self) -> None:
        self.gate, self.knocking, self.woken = (
            threading.Event(),
            threading.Event(),
            threading.Event(),
        )
        self.readers: list[GatedAgent] = []
        self.full = self.pinned = False
        engine = TransferEngine(
            name="gated",
            capabilities=CAPABILITIES,
            source=lambda n: GatedAgent(self, n),
            reader=self._reader,
        )  # type: ignore[arg-type, return-value]
        self.fabric = AgentFabric(engine, Boot(9), 0, self.woken.set, MonotonicClock())
        self.fabric.expose({})

    def _reader(self, name: str) -> GatedAgent:
        if self.full:
            raise ConfigError("no room for another agent")
        self.readers.append(GatedAgent(self, name))
        return self.readers[-1]

    def connect(self, peer: RankId, word: str) -> None:
        name = agent_name(peer.boot, peer.rank)
        exposure = msgspec.msgpack.encode(AgentMetadata(name, f"{word} {name}".encode(), ()))
        self.fabric.connect(peer, RankManifest(peer.boot, peer.rank, 0, 0, (), {"gated": exposure}))

    def said(self, count: int) -> list[object]:
        """So many events, and no more of what was ordered until now."""
        found: list[object] = []
        until = time.monotonic() + PATIENCE_S
        while len(found) < count:
            assert time.monotonic() < until, found
            assert self.woken.wait(PATIENCE_S), found
            self.woken.clear()
            found += self.fabric.poll()
        return found


@pytest.fixture
def engine() -> Iterator[GatedEngine]:
    engine = GatedEngine()
    yield engine
    engine.gate.set()
    engine.fabric.close()
    assert all(agent.closed for agent in engine.readers)


def test_a_slow_peer_is_waited_for_elsewhere_and_answered_once(engine: GatedEngine) -> None:
    engine.connect(SLOW, "slow")
    assert engine.knocking.wait(PATIENCE_S)
    engine.connect(SLOW, "slow")
    assert engine.fabric.poll() == []
    engine.gate.set()
    engine.connect(FINE, "fine")
    assert engine.said(2) == [Connected(SLOW, ""), Connected(FINE, "")]
    engine.connect(SLOW, "slow")
    assert engine.said(1) == [Connected(SLOW, "")]
    assert len(engine.readers) == 2


def test_a_peer_that_is_not_wanted_any_more_is_let_go_of_and_not_spoken_of(
    engine: GatedEngine,
) -> None:
    engine.connect(SLOW, "slow")
    assert engine.knocking.wait(PATIENCE_S)
    engine.fabric.disconnect(SLOW)
    engine.gate.set()
    engine.connect(FINE, "fine")
    assert engine.said(1) == [Connected(FINE, "")]
    assert [agent.closed for agent in engine.readers] == [True, False]
    engine.connect(SLOW, "fine")
    assert engine.said(1) == [Connected(SLOW, "")]


def test_an_answer_that_nobody_has_heard_yet_is_taken_back(engine: GatedEngine) -> None:
    engine.connect(FINE, "fine")
    assert engine.woken.wait(PATIENCE_S)
    engine.fabric.disconnect(FINE)
    assert engine.fabric.poll() == []


def test_a_peer_that_cannot_be_reached_is_said_to_be_so_and_may_be_tried_again(
    engine: GatedEngine,
) -> None:
    engine.connect(WRONG, "wrong")
    assert engine.said(1) == [Connected(WRONG, "no such metadata")]
    assert engine.readers[0].closed
    engine.full = True
    engine.connect(WRONG, "fine")
    assert engine.said(1) == [Connected(WRONG, "no room for another agent")]
    engine.full, engine.pinned = False, True
    engine.connect(WRONG, "fine")
    assert engine.said(1) == [Connected(WRONG, "memory cannot be registered")]
    assert engine.readers[1].closed
    engine.pinned = False
    engine.connect(WRONG, "fine")
    assert engine.said(1) == [Connected(WRONG, "")]


def test_whoever_waits_when_the_fabric_is_closed_hears_of_it(engine: GatedEngine) -> None:
    engine.connect(SLOW, "slow")
    assert engine.knocking.wait(PATIENCE_S)
    closing = threading.Thread(target=engine.fabric.close)
    closing.start()
    assert engine.said(1) == [Connected(SLOW, "the fabric is closed")]
    engine.gate.set()
    closing.join()
    engine.connect(FINE, "fine")
    assert engine.said(1) == [Connected(FINE, "the fabric is closed")]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_whoever_waits_when_the_thread_ends_of_a_bug_hears_of_it(engine: GatedEngine) -> None:
    engine.connect(BROKEN, "broken")
    assert engine.said(1) == [Connected(BROKEN, "the fabric thread has ended")]
    engine.connect(FINE, "fine")
    assert engine.said(1) == [Connected(FINE, "the fabric is closed")]
    engine.readers.clear()  # what the thread left behind nobody closes
