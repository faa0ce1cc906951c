"""Leaders that hand over too much, too little, too early or too late."""

from collections.abc import Callable
from typing import Any

import msgspec

from baton.core.agreement import Fetch, Hold, RowOrder, Suspect
from baton.core.ids import BlockIndex, Boot, GroupName, TokenId
from baton.core.memory.chunks import final_blocks
from baton.core.memory.pages import PageState
from baton.core.memory.state import StateTable, Unit, extent_blocks
from baton.core.messages import (
    Admitted,
    AnyMessage,
    BlockRun,
    Doubt,
    Drawn,
    LegSums,
    Offer,
    Record,
    Stale,
    Verdict,
    Withdrawn,
)
from baton.core.rank import rank as rank_module
from baton.core.scheduler import offering as offering_module
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler.computing import Computing
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.fetching import Fetching
from baton.core.scheduler.offering import Offering
from baton.core.scheduler.preemption import Preemption
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.verifying import Verification
from baton.core.scheduler.worker import Worker
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.arrival import ChecksNothing
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)

Final = dict[GroupName, tuple[BlockIndex, BlockIndex]]
NOTHING = Drawn(TokenId(0), None, ())


class RecordBehind(Offering):
    """Harmless by itself: the record goes out in an offer of its own, behind the last blocks."""

    def _offer(
        self,
        room: PrefillRoom,
        runs: dict[GroupName, BlockRun],
        sums: tuple[LegSums, ...],
        record: Record | None,
    ) -> None:
        if record is not None:
            super()._offer(room, runs, sums, None)
            runs, sums = {}, ()
        super()._offer(room, runs, sums, record)


class CommitsWithoutRecord(Fetching):
    def _try_commit(self, room: DecodeRoom) -> None:
        if room.record is None and not room.open_orders and room.arrived == self._expected(room):
            room.record = Record(room.length, NOTHING, None)
        super()._try_commit(room)


def _only_pages(table: StateTable) -> StateTable:
    return msgspec.structs.replace(table, groups=table.groups[:1])


def _final_of_first(table: StateTable, *, start: int, end: int, length: int) -> Final:
    return final_blocks(_only_pages(table), start=start, end=end, length=length)


class OffersFirst(Computing):
    def _chunk(self, room: Any, start: int, end: int) -> RowOrder:
        row = super()._chunk(room, start, end)
        if self.worker.role.generates:
            return row
        final = _final_of_first(self.worker.state_table, start=start, end=end, length=room.length)
        return msgspec.structs.replace(row, final=final)


class ExpectsFirst(Fetching):
    def _expected(self, room: DecodeRoom) -> dict[GroupName, set[BlockIndex]]:
        first = self.worker.state_table.groups[0].name
        return {first: super()._expected(room)[first]}


def _own(worker: Worker[DecodeRoom], room: DecodeRoom, group: GroupName) -> range:
    table = worker.state_table
    due = extent_blocks(table.group(group).extent, len(room.ticket.prompt), table.block_tokens)
    return range(due.start, due.end)


class Trims(Fetching):
    def _expected(self, room: DecodeRoom) -> dict[GroupName, set[BlockIndex]]:
        return {
            group: blocks & set(_own(self.worker, room, group))
            for group, blocks in super()._expected(room).items()
        }

    def _order_fetches(self, room: DecodeRoom) -> None:
        assert isinstance(self._verification, OrdersShorter)
        self._verification.source_blocks = self._pairing.source_blocks
        super()._order_fetches(room)


class OrdersShorter(Verification):
    source_blocks: Callable[[Boot, GroupName], int]

    def order(
        self,
        room: DecodeRoom,
        runs: dict[GroupName, BlockRun],
        sums: tuple[LegSums, ...],
        *,
        follows: int | None = None,
        only: tuple[Suspect, ...] = (),
    ) -> None:
        shorter = {}
        for group, run in runs.items():
            own, k = _own(self.worker, room, group), self.source_blocks(room.ticket.prefill, group)
            start, end = max(run.start, own.start), min(run.end, own.stop)
            if start < end:
                pages = run.pages[start // k - run.start // k : (end - 1) // k - run.start // k + 1]
                shorter[group] = BlockRun(BlockIndex(start), BlockIndex(end), pages)
        if shorter:
            super().order(room, shorter, sums, follows=follows, only=only)


class AdmitsEarly(Fetching):
    def admissible(self, room: DecodeRoom) -> bool:
        room.offers.setdefault(0, Offer(room.key, 0, {}, (), None))
        return super().admissible(room)


class TakesPiecemeal(Preemption[Any]):
    def waiting(self) -> list[Any]:
        for room in self.worker.rooms.in_state(RoomState.QUEUED):
            if 0 in room.offers and not self._hold_some(room):
                break
        return [room for room in super().waiting() if room.computes]

    def _hold_some(self, room: DecodeRoom) -> bool:
        worker = self.worker
        held, free = worker.ledger.held(room.key), worker.ledger.free()
        lacks = {g: n - len(held[g]) for g, n in worker.pages_for(room, room.length + 1).items()}
        gone, first = worker.span.gone(room.length), not any(held.values())
        taken = worker.ledger.take(
            room.key,
            {g: min(n, free[g]) for g, n in lacks.items()},
            PageState.FETCHING,
            begins=gone,
        )
        assert taken is not None
        if any(taken.values()):
            worker.draft.hold.append(Hold(room.key, taken, gone if first else {}))
        if any(n > free[g] for g, n in lacks.items()):
            return False
        worker.see(room, Saw.HELD)
        room.progress = worker.now
        for boot in (room.ticket.prefill, room.ticket.gateway):
            worker.send(boot, Admitted(room.key))
        return True


_send = Worker.send


def _withdraws_in_silence(self: Worker[Any], to: Boot, message: AnyMessage) -> None:
    if not isinstance(message, Withdrawn):
        _send(self, to, message)


class FetchesWithdrawn(Fetching):
    def _on_withdrawn(self, sender: Boot, message: Withdrawn) -> None:
        """It goes on with what it was offered."""

    def _on_stale(self, sender: Boot, stale: Stale) -> None:
        """It also ignores that prefill no longer knows the room."""


class KeepsOffers(Fetching):
    def timer(self) -> None:
        """Nothing is ever due."""

    def on_timer(self) -> None:
        """Nothing is ever over."""


def _final_too_early(table: StateTable, *, start: int, end: int, length: int) -> Final:
    """A block that the chunk ends in counts as final already."""
    found = final_blocks(table, start=start, end=end, length=length)
    for group in table.groups:
        if group.unit is Unit.PAGE and end < length:
            b = table.block_tokens
            due = extent_blocks(group.extent, length, b)
            first, past = max(due.start, -(-start // b)), min(due.end, -(-end // b))
            found.pop(group.name, None)
            if past > first:
                found[group.name] = (BlockIndex(first), BlockIndex(past))
        elif group.unit is Unit.PAGE and group.name in found:
            first, past = (
                max(found[group.name][0], -(-start // table.block_tokens)),
                found[group.name][1],
            )
            found.pop(group.name)
            if past > first:
                found[group.name] = (BlockIndex(first), BlockIndex(past))
    return found


class SealsTooEarly(Computing):
    def _chunk(self, room: Any, start: int, end: int) -> RowOrder:
        row = super()._chunk(room, start, end)
        if self.worker.role.generates:
            return row
        final = _final_too_early(self.worker.state_table, start=start, end=end, length=room.length)
        return msgspec.structs.replace(row, final=final)


class ComputesAgain(Offering):
    def _on_doubt(self, sender: Boot, doubt: Doubt) -> None:
        room = self.worker.find(doubt.key)
        if room is None or room.state is not RoomState.OFFERED:
            super()._on_doubt(sender, doubt)
            return
        self.worker.rooms.move(room, RoomState.COMPUTING)
        room.ordered, room.done, room.progress = 0, 0, self.worker.now
        room.sums.clear()


class DoubtsForever(Verification):
    def _doubt(self, room: DecodeRoom, fetch: Fetch, ballots: Any) -> None:
        super()._doubt(room, msgspec.structs.replace(fetch, follows=None), ballots)


class TakesFirstVerdict(Verification):
    def on_verdict(self, sender: Boot, verdict: Verdict) -> None:
        room = self.worker.find(verdict.key)
        answered = Suspect(verdict.leg, verdict.group, verdict.blocks)
        doubts = room.doubts if room is not None else {}
        doubts |= {
            order: {answered: False} for order, suspects in doubts.items() if answered in suspects
        }
        super().on_verdict(sender, verdict)


PLANTS = (
    Plant(
        "commit_without_record",
        "the record travels behind the state, and decode commits when the state is there: it "
        "reads a slot of zeroes",
        ("right_tokens", "commit_after_arrival"),
        1,
        lambda: Parts(
            replaced=(
                Replaced(roles_module, "Offering", RecordBehind),
                Replaced(roles_module, "Fetching", CommitsWithoutRecord),
            )
        ),
    ),
    Plant(
        "second_kind_forgotten",
        "state kinds are listed by hand in two places, and both know the first group only",
        ("right_commit", "commit_after_arrival"),
        3,
        lambda: Parts(
            replaced=(
                Replaced(roles_module, "Computing", OffersFirst),
                Replaced(roles_module, "Fetching", ExpectsFirst),
                Replaced(offering_module, "final_blocks", _final_of_first),
            )
        ),
    ),
    Plant(
        "trim_to_shorter",
        "decode works out the blocks of a room by itself, from the prompt, and cuts what it "
        "is offered to the shorter list",
        ("right_commit", "commit_after_arrival"),
        4,
        lambda: Parts(
            replaced=(
                Replaced(roles_module, "Fetching", Trims),
                Replaced(roles_module, "Verification", OrdersShorter),
            )
        ),
    ),
    Plant(
        "admitted_before_offer_0",
        "decode gives pages to a room for which prefill holds none yet: two rooms can wait "
        "for each other",
        ("memory_order",),
        8,
        lambda: Parts(replaced=(Replaced(roles_module, "Fetching", AdmitsEarly),)),
    ),
    Plant(
        "pages_piecemeal",
        "decode gives a room what is free and the rest when it comes: rooms hold pages and "
        "wait for more",
        ("all_at_once",),
        8,
        lambda: Parts(replaced=(Replaced(roles_module, "Preemption", TakesPiecemeal),)),
    ),
    Plant(
        "withdrawal_unsaid",
        "prefill gives a room up and tells nobody",
        ("end_said",),
        8,
        lambda: Parts(replaced=(Replaced(Worker, "send", _withdraws_in_silence),)),
    ),
    Plant(
        "withdrawn_still_fetched",
        "decode goes on with the offers of a room that prefill has withdrawn, and does not "
        "check what it reads",
        ("right_commit",),
        6,
        lambda: Parts(
            replaced=(
                Replaced(roles_module, "Fetching", FetchesWithdrawn),
                Replaced(rank_module, "Fetches", ChecksNothing),
            )
        ),
    ),
    Plant(
        "offer_kept_for_ever",
        "an offer whose ticket never comes is kept without a deadline",
        ("nothing_left",),
        8,
        lambda: Parts(replaced=(Replaced(roles_module, "Fetching", KeepsOffers),)),
    ),
    Plant(
        "sealed_block_written",
        "a block counts as final when a chunk ends in it: the next chunk writes into a "
        "sealed block",
        ("sealed_once",),
        9,
        lambda: Parts(
            replaced=(
                Replaced(roles_module, "Computing", SealsTooEarly),
                Replaced(offering_module, "final_blocks", _final_too_early),
            )
        ),
    ),
    Plant(
        "recomputed_in_epoch",
        "doubted blocks are computed again within the epoch, over sealed ones",
        ("sealed_once",),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Offering", ComputesAgain),)),
    ),
    Plant(
        "doubt_without_bound",
        "blocks found intact at the source are fetched and doubted again and again",
        ("bounded_reads",),
        8,
        lambda: Parts(replaced=(Replaced(roles_module, "Verification", DoubtsForever),)),
    ),
    Plant(
        "first_verdict_is_all",
        "of several blocks that differ, only the one is fetched again that prefill answered "
        "for first",
        ("right_commit", "commit_after_arrival"),
        8,
        lambda: Parts(replaced=(Replaced(roles_module, "Verification", TakesFirstVerdict),)),
    ),
)
