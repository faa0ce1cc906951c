"""Pages that change hands while something still touches them, never come back, or have two
owners."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Hold
from baton.core.effects import Effect, Send
from baton.core.events import MessageReceived
from baton.core.ids import BlockIndex, Boot, GroupName, Key, Page
from baton.core.memory.pages import Ledger, PagePool
from baton.core.memory.span import Span
from baton.core.memory.state import Group, Window
from baton.core.messages import Abort, Offer, Received
from baton.core.rank import rank as rank_module
from baton.core.rank.fetch_order import Piece
from baton.core.rank.fetches import Fetches
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import RankEffect
from baton.core.rank.rehashing import Rehashing
from baton.core.scheduler.block_manager import BlockManager
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.room import RoomState
from baton.core.scheduler.worker import Worker
from baton.core.work import ReadEnded, ReadOutcome
from baton.dev.sim.memory import SimFabric, UnderWay
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.arrival import ChecksNothing
from baton.dev.sim.plants.plant import Plant
from baton.shell.worker import WorkerPump

# ruff: noqa: D101  (each class is described by the plant that it is part of)


class FreesWhileReading(Fetches):
    def busy(self) -> set[Key]:
        return {piece.key for pieces in (self._unknown, self._hashing) for piece in pieces.values()}


class FreesWhileHashing(Fetches):
    def busy(self) -> set[Key]:
        return {piece.key for pieces in (self._reads, self._unknown) for piece in pieces.values()}


class FreesWhileComputing(RankCore):
    def _look_for_quiet(self) -> None:
        batches, self._batches = self._batches, {}
        super()._look_for_quiet()
        self._batches = batches


class TakesUnknownForQuiet(Fetches):
    def ended(self, end: ReadEnded) -> list[RankEffect]:
        known = ReadOutcome.FAILED if end.outcome is ReadOutcome.UNKNOWN else end.outcome
        return super().ended(ReadEnded(end.handle, known, end.detail))


def _torn_is_quiet(self: SimFabric, read: UnderWay, release_us: int) -> None:
    self._end(read, ReadOutcome.FAILED, "the endpoint was torn down under it", quiet=False)
    self._world.heap.after(release_us, _quieten, self, read)


def _quieten(fabric: SimFabric, read: UnderWay) -> None:
    read.quiet = True
    fabric._books.read_quiet(read.handle)


class DiffersAtOnce(Fetches):
    def _settle(self, piece: Piece, blocks: tuple[BlockIndex, ...]) -> None:
        super()._settle(piece, blocks)
        order = self._orders.get(piece.order)
        if order is not None and order.suspects:
            self._judge(piece.order)


class SlotView(RankCore):
    def __init__(self, **made_of: Any) -> None:
        super().__init__(**made_of)
        self._tables: dict[GroupName, NDArray[np.int32]] = {}
        self._slots: dict[Key, int] = {}

    def _hold(self, hold: Hold) -> None:
        super()._hold(hold)
        if hold.key in self.rooms.dropped:
            return
        slot = self._slots.setdefault(
            hold.key, next(n for n in range(64) if n not in self._slots.values())
        )
        room = self.pages[hold.key]
        for group, pages in room.items():
            table = self._tables.setdefault(group, np.full((64, 256), 0, dtype=np.int32))
            table[slot, : len(pages)] = pages
            room[group] = table[slot, : len(pages)]

    def _drop(self, key: Key) -> list[RankEffect]:
        self._slots.pop(key, None)
        return super()._drop(key)


def _leave_at_once(self: Worker[Any], room: Any, saw: Any) -> None:
    _leave(self, room, saw)
    if room.state is RoomState.ENDING:
        self.ledger.give_back(room.key)


_leave = Worker.leave


_on_abort = Leader._on_abort


def _forgets_on_abort(self: Leader, sender: Boot, abort: Abort) -> None:
    room, ledger = self.worker.find(abort.key), self.worker.ledger
    if isinstance(room, PrefillRoom) and room.state is RoomState.COMPUTING:
        give_back, kept = ledger.give_back, room.key
        ledger.give_back = lambda key: None if key == kept else give_back(key)  # type: ignore[method-assign]
    _on_abort(self, sender, abort)


def _read_already(self: WorkerPump, effect: Effect) -> None:
    """Prefill takes what it has offered for read, as if decode had said so."""
    _perform(self, effect)
    if (
        isinstance(effect, Send)
        and isinstance(effect.message, Offer)
        and effect.message.record is not None
    ):
        self._step(MessageReceived(effect.to, Received(effect.message.key)))


_perform = WorkerPump._perform


def _fits_together(self: Ledger, want: Mapping[GroupName, int], **_beside: Any) -> bool:
    return sum(self.free().values()) >= sum(want.values())


_make_room = Ledger._make_room


def _make_what_room_there_is(self: Ledger, want: Mapping[GroupName, int]) -> None:
    _make_room(self, {group: min(n, self.free()[group]) for group, n in want.items()})


_take = PagePool.take


def _take_anyway(self: PagePool, key: Key, count: int) -> tuple[Page, ...]:
    own = min(count, self.free)
    taken = _take(self, key, own)
    others = [page for page, owner in self._owner.items() if owner != key][: count - own]
    self._owner |= dict.fromkeys(others, key)
    return taken + tuple(others)


def _give_back_own(self: PagePool, key: Key, pages: tuple[Page, ...]) -> None:
    own = [page for page in pages if self._owner.get(page) == key]
    for page in own:
        del self._owner[page]
        self._free[page + 1] = 1


_gone = Span._gone


def _gone_of_first(self: Span, group: Group, position: int) -> int:
    return _gone(self, self._windows[0] if isinstance(group.extent, Window) else group, position)


def _gone_early(self: Span, group: Group, position: int) -> int:
    return _gone(self, group, position + 1)


_slide = BlockManager.slide


def _slide_by_orders(self: BlockManager, room: Any, position: int, *, tokens: int) -> None:
    _slide(
        self,
        room,
        max(position, room.ordered) if isinstance(room, PrefillRoom) else position,
        tokens=tokens,
    )


PLANTS = (
    Plant(
        "window_passed_early",
        "a page of a window is given up one step before the last that looks back on it",
        ("live_window", "right_bytes", "right_commit", "page_books"),
        None,
        lambda: Parts(replaced=(Replaced(Span, "_gone", _gone_early),)),
    ),
    Plant(
        "one_window_for_all",
        "a model's windows are all taken to be as long as its first one",
        ("live_window", "right_bytes", "right_commit", "page_books"),
        4,
        lambda: Parts(replaced=(Replaced(Span, "_gone", _gone_of_first),)),
    ),
    Plant(
        "window_passed_by_orders",
        "a window passes pages by what was ordered to be computed, not by what is: a step "
        "under way still reads them",
        ("own_compute_ended",),
        None,
        lambda: Parts(replaced=(Replaced(BlockManager, "slide", _slide_by_orders),)),
    ),
    Plant(
        "free_while_reading",
        "the pages of an aborted room are given away while a read of our own into them is "
        "still under way",
        ("own_reads_ended", "quiet_is_true"),
        6,
        lambda: Parts(replaced=(Replaced(rank_module, "Fetches", FreesWhileReading),)),
    ),
    Plant(
        "free_at_abort",
        "a leader takes a room's pages back when it drops the room, and does not wait until "
        "its ranks are quiet",
        ("own_reads_ended", "own_compute_ended", "own_digest_ended", "page_books"),
        6,
        lambda: Parts(replaced=(Replaced(Worker, "leave", _leave_at_once),)),
    ),
    Plant(
        "free_while_hashing",
        "the pages of a dropped room are given away while they are hashed",
        ("own_digest_ended", "quiet_is_true"),
        None,
        lambda: Parts(
            replaced=(
                Replaced(rank_module, "Fetches", FreesWhileHashing),
                Replaced(Rehashing, "busy", lambda self: set()),
            )
        ),
    ),
    Plant(
        "free_while_computing",
        "the pages of a dropped room are given away while a step writes them",
        ("own_compute_ended", "quiet_is_true"),
        None,
        lambda: Parts(rank=FreesWhileComputing),
    ),
    Plant(
        "unknown_is_quiet",
        "a read whose end is unknown counts as failed: nothing more is expected of it, and "
        "it lands",
        ("own_reads_ended", "landing", "right_commit", "quiet_is_true"),
        6,
        lambda: Parts(replaced=(Replaced(rank_module, "Fetches", TakesUnknownForQuiet),)),
    ),
    Plant(
        "torn_is_quiet",
        "reads that were torn down with another one's endpoint count as failed, and land "
        "while that endpoint has not gone",
        ("one_read", "own_reads_ended", "landing", "computes_alone", "own_pages"),
        6,
        lambda: Parts(replaced=(Replaced(SimFabric, "_end_torn", _torn_is_quiet),)),
    ),
    Plant(
        "differs_at_once",
        "a rank says that a block differs while its other reads are under way, and only that "
        "block is fetched again",
        ("right_commit", "landing"),
        6,
        lambda: Parts(replaced=(Replaced(rank_module, "Fetches", DiffersAtOnce),)),
    ),
    Plant(
        "slot_view",
        "a step is given a view into the rank's table of page lists; when the room's row is "
        "used again, it is another's",
        ("right_bytes", "right_commit", "own_compute_ended"),
        3,
        lambda: Parts(rank=SlotView),
    ),
    Plant(
        "source_reused_no_seal",
        "source pages are free once they have been offered, and what a read brought is taken "
        "without a look at its sum",
        ("right_commit",),
        6,
        lambda: Parts(
            replaced=(
                Replaced(rank_module, "Fetches", ChecksNothing),
                Replaced(WorkerPump, "_perform", _read_already),
            ),
        ),
    ),
    Plant(
        "pages_forgotten",
        "one way out, an abort while the prompt is computed, does not give the room's pages back",
        ("nothing_left", "liveness", "healed_succeeds", "no_spurious_failure"),
        None,
        lambda: Parts(replaced=(Replaced(Leader, "_on_abort", _forgets_on_abort),)),
    ),
    Plant(
        "mixed_resources",
        "admission compares pages and slots in one sum; where slots are short, another "
        "room's is used",
        ("one_owner", "page_books"),
        None,
        lambda: Parts(
            replaced=(
                Replaced(Ledger, "fits", _fits_together),
                Replaced(Ledger, "_make_room", _make_what_room_there_is),
                Replaced(PagePool, "take", _take_anyway),
                Replaced(PagePool, "give_back", _give_back_own),
            )
        ),
    ),
)
