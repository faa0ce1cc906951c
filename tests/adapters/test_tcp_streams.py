"""Fabric tcp where the streams beside the first one do not come about: no thread is left, or the
source takes no more of them."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing

import msgspec
import numpy as np
import pytest

from baton.adapters import tcp_source
from baton.adapters.clock import MonotonicClock
from baton.adapters.fabrics import connect_and_wait
from baton.adapters.memory import HostPool
from baton.adapters.reads import OpenRead, Ranges
from baton.adapters.tcp import TcpFabric, TcpMetadata, _Part, _TcpPeer, _Work
from baton.adapters.tcp_door import PART_BYTES
from baton.core.errors import FabricError
from baton.core.ids import Boot, GroupName, Micros, Rank, RankId
from baton.core.manifest import PoolView, RankManifest
from baton.ports.fabric import Copies, Handle, ReadEnded, ReadOutcome

FULL, POOL, STREAMS, PATIENCE_S = GroupName("full"), 6 * PART_BYTES, 3, 20.0
SOURCE = RankId(Boot(7), Boot(7), Rank(0))


class End:
    """One rank with one pool."""

    def __init__(self, boot: Boot, *, key: bytes = b"") -> None:
        """key: told to readers."""
        self.pool = HostPool(POOL)
        self.woken = threading.Event()
        clock = MonotonicClock()
        self.fabric = TcpFabric(
            boot,
            0,
            self.woken.set,
            clock,
            host="127.0.0.1",
            key=key,
            streams=STREAMS,
            tells_key=bool(key),
        )
        exposures = {"tcp": self.fabric.expose({FULL: self.pool})}
        self.manifest = RankManifest(boot, Rank(0), 0, 0, (PoolView(FULL, 1, POOL),), exposures)
        self.reads = 0

    def read(self) -> ReadEnded:
        """The whole pool of the source."""
        self.reads += 1
        self.pool.array[:] = 0
        whole = Copies(FULL, *(np.array([n], np.int64) for n in (0, 0, POOL)))
        self.fabric.submit(Handle(self.reads), SOURCE, [whole], deadline=Micros(20_000_000))
        while not (events := self.fabric.poll()):
            assert self.woken.wait(PATIENCE_S)
            self.woken.clear()
        (end,) = events
        assert isinstance(end, ReadEnded)
        return end

    def close(self) -> None:
        self.fabric.close()
        self.pool.close()


@pytest.fixture
def source() -> Iterator[End]:
    end = End(SOURCE.boot)
    end.pool.array[:] = np.arange(POOL, dtype=np.uint32).view(np.uint8)[:POOL]
    yield end
    end.close()


@pytest.fixture
def reader() -> Iterator[End]:
    end = End(Boot(8))
    yield end
    end.close()


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Says which threads the system has no room for, by how their names begin; "" is over."""
    start, refused = threading.Thread.start, [""]

    def limited(thread: threading.Thread) -> None:
        if refused[0] and thread.name.startswith(refused[0]):
            raise RuntimeError("can't start new thread")
        start(thread)

    def refuse(prefix: str) -> None:
        refused[0] = prefix

    monkeypatch.setattr(threading.Thread, "start", limited)
    yield refuse
    refuse("")


def connect(source: End, reader: End) -> None:
    connect_and_wait(reader.fabric, SOURCE, source.manifest)


def reads_well(source: End, reader: End) -> None:
    assert reader.read().outcome is ReadOutcome.OK
    assert np.array_equal(reader.pool.array, source.pool.array)


def streams() -> int:
    """How many threads read."""
    return sum(thread.name.startswith("tcp-0-") for thread in threading.enumerate())


def test_without_threads_for_more_one_stream_reads_all(
    source: End, reader: End, scarce: Callable[[str], None]
) -> None:
    scarce("tcp-0-1")
    connect(source, reader)
    reads_well(source, reader)
    assert streams() == 1


def test_a_peer_for_whom_no_thread_is_left_is_not_reached_and_may_be_tried_again(
    source: End, reader: End, scarce: Callable[[str], None]
) -> None:
    scarce("tcp-0-0")
    with pytest.raises(FabricError, match="can't start new thread"):
        connect(source, reader)
    scarce("")
    connect(source, reader)
    reads_well(source, reader)


def until_one_is_left(source: End, reader: End) -> None:
    """A stream finds out at its first read; which of them takes part in which read is chance."""
    until = time.monotonic() + PATIENCE_S
    while streams() > 1:
        assert time.monotonic() < until
        reads_well(source, reader)


def test_streams_that_the_source_does_not_take_are_done_without(
    source: End, reader: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_source, "MAX_CONNECTIONS", 1)
    connect(source, reader)
    until_one_is_left(source, reader)


def test_a_source_without_threads_for_more_serves_on(
    source: End, reader: End, scarce: Callable[[str], None]
) -> None:
    connect(source, reader)
    scarce("tcp-source-")
    until_one_is_left(source, reader)
    reader.fabric.disconnect(SOURCE)
    scarce("")
    connect(source, reader)
    reads_well(source, reader)


def test_the_last_stream_stays_and_finds_the_source_gone(
    source: End, reader: End, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp_source, "MAX_CONNECTIONS", 1)
    connect(source, reader)
    until_one_is_left(source, reader)
    source.fabric.close()
    for _ in range(2):
        end = reader.read()
        assert end.outcome is ReadOutcome.FAILED
        assert "gone" in end.detail
    assert streams() == 1


def test_what_a_stream_gives_back_wakes_one_that_has_nothing_to_do(reader: End) -> None:
    """It may have been a second part asked for on a connection that was closed, and the source take
    no further one."""
    peer, fabric, nothing = (
        _TcpPeer(SOURCE, ("", 0), {}, (), b""),
        reader.fabric,
        np.zeros(0, np.int64),
    )
    ranges = Ranges(nothing, nothing, nothing)
    idle = threading.Thread(target=fabric._wait, args=(peer,), daemon=True)
    idle.start()
    time.sleep(0.05)  # it waits
    fabric._give_back(
        peer, deque([_Part(_Work(OpenRead(Handle(1), SOURCE, ranges, due=Micros(0)), 1), ranges)])
    )
    idle.join(5)
    assert not idle.is_alive()


def test_a_reader_uses_the_key_that_it_was_told_and_gets_in_with_no_other() -> None:
    with (
        closing(End(SOURCE.boot, key=b"s" * 32)) as source,
        closing(End(Boot(8), key=b"r" * 32)) as reader,
    ):
        source.pool.array[:] = 7
        connect_and_wait(reader.fabric, SOURCE, source.manifest)
        assert reader.read().outcome is ReadOutcome.OK
        assert (reader.pool.array == 7).all()
    with (
        closing(End(SOURCE.boot, key=b"s" * 32)) as source,
        closing(End(Boot(8), key=b"r" * 32)) as reader,
    ):
        told = msgspec.msgpack.decode(source.manifest.exposures["tcp"], type=TcpMetadata)
        untold = msgspec.msgpack.encode(msgspec.structs.replace(told, key=b""))
        manifest = msgspec.structs.replace(source.manifest, exposures={"tcp": untold})
        with pytest.raises(FabricError, match="another secret"):
            connect_and_wait(reader.fabric, SOURCE, manifest)


def test_a_source_with_the_secret_of_all_tells_no_key() -> None:
    with closing(End(SOURCE.boot)) as source:
        assert b"key" not in source.manifest.exposures["tcp"], (
            "readers of before know no such field"
        )
