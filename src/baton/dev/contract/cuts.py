"""F3 to F5, F9 in mid-read: of many reads one has ended, others are under way, and then the source
is killed or stopped, or they are cancelled.

    ends OK       its bytes are the source's, and stay so
    ends FAILED   its place is filled at once, and stays so
    ends UNKNOWN  its place is filled after Released, and stays so
"""

import time
from collections.abc import Callable

from baton.core.memory.kinds import HOST
from baton.dev.contract.peer import Peer, pattern
from baton.dev.contract.rig import FULL, POOLS, SECONDS, CheckWorld, Rig, copies
from baton.ports.fabric import Handle, ReadEnded, ReadOutcome

# The first read is short, so that its end comes in the middle of the next ones.
FIRST, PIECE, PIECES = 64 << 10, 16 << 20, 9
SOURCE_PIECES = POOLS["full"] // PIECE
TARGET = {"full": PIECES * PIECE, "slot": POOLS["slot"]}
DEADLINE_US, HURRY_US = 8 * SECONDS, SECONDS
LATE_S = 0.5  # what is under way somewhere has landed by then
TRIES = 15  # a fast fabric is often through before a busy machine has done anything to it


class CutReads:
    """Reads of pieces, each to a place of its own."""

    def __init__(self, rig: Rig, source: Peer) -> None:
        self._rig, self._source = rig, source
        rig.connect(source.id, source.manifest)
        rig.read_ok(source, copies("slot", 0, 0, 1))  # the first use, which may take its help
        self._content = pattern(source.order.boot, "full", POOLS["full"])
        self._pieces: dict[Handle, int] = {}
        self.outcomes: list[ReadOutcome] = []
        self._unknown: list[int] = []

    def cut(self, hurt: Callable[[list[Handle]], None], *, hurry_us: int = 0) -> None:
        """Submit all, hurt those that are open when the first has ended, and wait for every end."""
        for piece in range(PIECES):
            source, target = _place(piece % SOURCE_PIECES), _place(piece)
            what = copies("full", source.start, target.start, _nbytes(piece))
            handle = self._rig.submit(self._source, what, deadline_us=DEADLINE_US)
            self._pieces[handle] = piece
        still = dict(self._pieces)

        def ended(end: ReadEnded) -> None:
            del still[end.handle]
            if not self.outcomes:
                hurt(list(still))
            self._end(end)

        self._rig.ends(*self._pieces, each=ended, hurry_us=hurry_us)

    def _end(self, end: ReadEnded) -> None:
        self.outcomes.append(end.outcome)
        piece = self._pieces[end.handle]
        if end.outcome is ReadOutcome.OK:
            source, target = _place(piece % SOURCE_PIECES), _place(piece)
            content = self._content[source][: _nbytes(piece)]
            self._rig.expected[FULL][target][: _nbytes(piece)] = content
        elif end.outcome is ReadOutcome.FAILED:
            self._rig.fill(_place(piece))
        else:
            self._unknown.append(piece)

    def check_nothing_lands(self) -> None:
        """Nothing lands any more, whatever still comes of them."""
        self._rig.all_released()
        for piece in self._unknown:
            self._rig.fill(_place(piece))
        time.sleep(LATE_S)
        self._rig.check()

    @property
    def was_cut(self) -> bool:
        """Whether a read was under way, or waited, when it was hurt."""
        return any(outcome is not ReadOutcome.OK for outcome in self.outcomes)


def _place(piece: int) -> slice:
    return slice(piece * PIECE, (piece + 1) * PIECE)


def _nbytes(piece: int) -> int:
    return PIECE if piece else FIRST


def _require_cut(w: CheckWorld) -> None:
    """None was. Between devices all of them take less time than one look at the first end."""
    assert w.peer.order.memory != HOST, f"no read could be cut in {TRIES} tries"


def f5_of_a_source_killed_in_mid_read_nothing_lands_after_the_end(w: CheckWorld) -> None:
    """Of a source that is killed in mid-read nothing lands after the end."""
    for _ in range(TRIES):
        source, rig = w.spawn(POOLS), w.reader(TARGET)
        try:
            reads = CutReads(rig, source)
            reads.cut(lambda _: source.kill())  # noqa: B023  called before the next turn
            reads.check_nothing_lands()
            assert rig.read(source, copies("slot", 0, 0, 1)).outcome is ReadOutcome.FAILED
        finally:
            rig.close()
        if reads.was_cut:
            return
    _require_cut(w)


def f3_of_a_source_stopped_in_mid_read_nothing_lands_after_the_end(w: CheckWorld) -> None:
    """Of a source that is stopped in mid-read nothing lands after the end, nor when it goes on."""
    source, rig = w.spawn(POOLS), w.reader(TARGET)
    try:
        reads = CutReads(rig, source)
        try:
            reads.cut(lambda _: source.stop(), hurry_us=HURRY_US)
        finally:
            source.resume()
        # comes after whatever the source still had to do, or fails with it
        rig.read(source, copies("slot", 0, 0, 1))
        reads.check_nothing_lands()
    finally:
        rig.close()


def f4_of_reads_cancelled_in_mid_read_nothing_lands_after_the_end(w: CheckWorld) -> None:
    """Of reads that are cancelled in mid-read nothing lands after the end."""
    for _ in range(TRIES):
        rig = w.reader(TARGET)
        try:
            reads = CutReads(rig, w.peer)

            def cancel(handles: list[Handle]) -> None:
                for handle in handles[::2]:
                    rig.fabric.cancel(handle)  # noqa: B023  called before the next turn

            reads.cut(cancel)
            reads.check_nothing_lands()
            # the others are not hurt, and the source can be read
            assert reads.outcomes.count(ReadOutcome.OK) >= PIECES // 2
            rig.read_ok(w.peer, copies("slot", 0, 0, POOLS["slot"]))
        finally:
            rig.close()
        if reads.was_cut:
            return
    _require_cut(w)
