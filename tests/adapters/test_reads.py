import random

import numpy as np
import pytest

from baton.adapters.memcpy import CHUNK_BYTES, PIECE_BYTES, copy_ranges
from baton.adapters.reads import OpenRead, OpenReads, Ranges, cut
from baton.core.ids import Boot, Micros, RankId
from baton.ports.fabric import Handle, ReadEnded, ReadOutcome, Released

PEER, OTHER = (RankId(Boot(b), Boot(b), 0) for b in (1, 2))
NONE = Ranges(*(np.zeros(0, np.int64) for _ in range(3)))


def make(handle: int, peer: RankId = PEER) -> OpenRead:
    return OpenRead(Handle(handle), peer, NONE, Micros(0))


@pytest.mark.parametrize("seed", range(30))
def test_cut_keeps_every_byte_once_and_both_limits(seed: int) -> None:
    rng = random.Random(seed)
    sizes = [rng.choice((1, 3, 10, 11, 25, 100)) for _ in range(rng.randrange(20))]
    sources = np.cumsum([0, *sizes])[:-1].astype(np.int64)
    ranges = Ranges(sources, sources + 10_000, np.array(sizes, dtype=np.int64))
    parts = cut(ranges, part_bytes=10, part_ranges=3)
    assert all(0 < p.nbytes.size <= 3 and 0 < p.nbytes.sum() <= 10 for p in parts)
    seen = [
        s + i
        for p in parts
        for s, n in zip(p.source.tolist(), p.nbytes.tolist(), strict=True)
        for i in range(n)
    ]
    assert seen == list(range(sum(sizes)))
    assert all(np.array_equal(p.target, p.source + 10_000) for p in parts)


def test_a_read_ends_once_and_never_ok_after_a_stop() -> None:
    woken: list[int] = []
    reads = OpenReads(lambda: woken.append(1))
    good, stopped, other = make(1), make(2), make(3, OTHER)
    for read in (good, stopped, other):
        reads.open(read)
    reads.stop_peer(PEER, "disconnected")
    assert (stopped.stop, other.stop) == ("disconnected", "")
    assert reads.stop(Handle(2), "later") is stopped
    for _ in range(2):
        reads.end(stopped, ReadOutcome.OK, "")
        reads.end(other, ReadOutcome.OK, "")
    reads.release(Handle(9))
    assert reads.collect() == [
        ReadEnded(Handle(2), ReadOutcome.FAILED, "disconnected"),
        ReadEnded(Handle(3), ReadOutcome.OK, ""),
        Released(Handle(9)),
    ]
    assert reads.collect() == []
    assert reads.open_reads() == [good]
    assert reads.stop(Handle(3), "too late") is None
    assert len(woken) == 3


def test_copy_goes_on_from_its_cursor_and_heeds_the_stop_word() -> None:
    sizes = [1, PIECE_BYTES + 1, 0, 77, 2 * CHUNK_BYTES + 5]
    source = np.frombuffer(random.Random(3).randbytes(sum(sizes)), np.uint8)
    target = np.zeros_like(source)
    starts = np.cumsum([0, *sizes])[:-1]
    s, t = (starts + a.ctypes.data for a in (source, target))
    n, cursor, stop = np.array(sizes), np.zeros(2, np.int64), np.zeros(1, np.int64)
    calls = 0
    while cursor[0] < n.size:
        copy_ranges(s, t, n, cursor=cursor, budget=PIECE_BYTES, stop=stop)
        calls += 1
    assert calls > 10
    assert np.array_equal(source, target)

    cursor[:], stop[0] = 0, 1
    copy_ranges(s, t, n, cursor=cursor, budget=1 << 40, stop=stop)
    assert cursor[0] < n.size, "a set stop word ends the copy within a chunk or two"
