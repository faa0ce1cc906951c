"""Prefill as a guest: prompts that another engine computes, offered as they grow.

    QUEUED ──pages──▶ COMPUTING ──step──▶ its final blocks are sealed and offered
                          └──all computed, and the engine has drawn the first token──▶ OFFERED

The engine ends the request with its first token; its pages stay until decode has read them.

Blocks that the engine had cached are hashed with the first step. Whatever is hashed is compared
with its sums at birth, if they are known; the ledger keeps them by page. If a page differs, the
epoch fails, and the engine is told to take the page out of its cache, so that the next epoch
computes it. What the engine computes of that request until it ends it is refused and taken out
too, as it follows from damaged state. A page whose sums at birth are not known, because it was
computed for a request without a room, or for one that ended before its seal, is sealed when it is
first hit: nothing better is possible, and what changed in it before is not found.

The request comes over HTTP and the ticket over a session, so the engine may be faster than the
ticket. What it does until then waits here, for a bounded time. A ticket that comes later fails at
once: what the engine has done is not known any more, and the next epoch begins anew.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.agreement import RowOrder, unpack_sums
from baton.core.effects import Evict, Notice
from baton.core.events import (
    GuestAllocated,
    GuestComputes,
    GuestEvent,
    GuestFinished,
    GuestScheduled,
)
from baton.core.handoff.birth_sums import add_sums
from baton.core.ids import BlockIndex, GroupName, Key, Micros, Rank, TokenIndex
from baton.core.marks import Mark
from baton.core.memory.chunks import final_blocks
from baton.core.memory.page_sums import Sums
from baton.core.memory.pages import PageState
from baton.core.messages import Drawn, FailCode
from baton.core.prefill_cost import Backlog
from baton.core.scheduler.batches import Outcomes
from baton.core.scheduler.guest import adopt, ledger_of, tell
from baton.core.scheduler.offering import Offering
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.worker import Worker

OPEN = (RoomState.COMPUTING, RoomState.OFFERED)
EARLY = Micros(1_000_000)  # how long a request waits for its ticket
GIVEN_UP = 4096  # requests without a ticket that are remembered
OneEvent = GuestAllocated | GuestFinished | tuple[int, int]  # of one request; positions computed


class GuestPrefillRoom(PrefillRoom):
    """A prompt that the engine computes."""

    alone = False  # the engine composes its steps by itself


class GuestComputing(Stage[PrefillRoom]):
    """The prompts of one worker, as far as the engine has computed them."""

    def __init__(self, worker: Worker[PrefillRoom], offering: Offering) -> None:
        super().__init__(worker)
        assert worker.manifest.page_blocks == 1, "a page of another engine is one block"
        self._offering, self._ledger = offering, ledger_of(worker)
        self._early: dict[Key, tuple[Micros, list[OneEvent]]] = {}  # until when, and what
        self._given_up: dict[Key, None] = {}  # requests whose ticket has not come in time
        self._first: dict[Key, Drawn] = {}  # the first tokens of prompts that are not yet sealed
        # requests that have ended in the engine, which keeps their pages
        self._kept: set[Key] = set()

    def kept(self) -> dict[str, Sequence[Any]]:
        return {
            "ended requests": sorted(self._kept),
            "first tokens": sorted(self._first),
            "early requests": sorted(self._early),
            "tainted requests": sorted(self._ledger.tainted),
            "condemned pages": [*self._ledger.condemned],
        }

    def guest(self, event: GuestEvent) -> None:
        match event:
            case GuestScheduled():
                self._ledger.written(event.written)
                for key, positions in event.rows.items():
                    self._take(key, positions)
            case GuestAllocated():
                self._ledger.given(event.key, event.pages)
                self._take(event.key, event)
            case GuestFinished():
                self._ledger.engine_ended(event.key)
                self._take(event.key, event)
            case GuestComputes():
                pass  # said by engines of decode
        self._tell_condemned()

    def _take(self, key: Key, event: OneEvent) -> None:
        """Take what the engine has done with one request."""
        room = self.worker.find(key)
        if room is None and not self.worker.epochs.passed(key) and key not in self._given_up:
            until = Micros(self.worker.now + EARLY)
            self._early.setdefault(key, (until, []))[1].append(event)
            return
        match event:
            case GuestAllocated():
                self._allocated(room, event)
            case GuestFinished():
                self._finished(room, event)
            case (start, end):
                self._scheduled(room, start, end)

    def opened(self, room: PrefillRoom) -> None:
        """The ticket has come: take what the engine has done before."""
        if room.key in self._given_up:
            self._late(room)
            return
        _, events = self._early.pop(room.key, (0, []))
        for event in events:
            self._take(room.key, event)

    def _late(self, room: PrefillRoom) -> None:
        why = f"its ticket came more than {EARLY // 1000} ms after the engine had begun with it"
        self.worker.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)

    def forgotten(self, room: PrefillRoom) -> None:
        self._first.pop(room.key, None)
        self._given_up.pop(room.key, None)
        self._drop_early(room.key)
        if room.key in self._kept:
            self._kept.remove(room.key)
            self._ledger.engine_ended(room.key)
            tell(self.worker, room.key, Notice.RELEASED)
            self._tell_condemned()

    def backlog(self) -> Backlog:
        """Return what the engine has not computed. How fast it is is not measured: for a choice
        among engines that are alike, any speed will do."""
        rooms = self.worker.rooms.in_state(RoomState.QUEUED, *OPEN)
        rest = [(max(r.done, r.hit), r.length) for r in rooms if max(r.done, r.hit) < r.length]
        us = sum(self.worker.prefill.cost.time(start, end) for start, end in rest)
        return Backlog(len(rest), sum(end - start for start, end in rest), round(us))

    def timer(self) -> Micros | None:
        return min((until for until, _ in self._early.values()), default=None)

    def on_timer(self) -> None:
        """Give up requests whose ticket has not come."""
        for key in [k for k, (until, _) in self._early.items() if until <= self.worker.now]:
            self._drop_early(key)
            self._given_up[key] = None
        while len(self._given_up) > GIVEN_UP:
            del self._given_up[next(iter(self._given_up))]

    def _drop_early(self, key: Key) -> None:
        _, events = self._early.pop(key, (0, []))
        if any(isinstance(event, GuestFinished) for event in events):
            tell(self.worker, key, Notice.RELEASED)

    def _allocated(self, room: PrefillRoom | None, event: GuestAllocated) -> None:
        if room is None or room.state not in (RoomState.QUEUED, *OPEN):
            return
        if room.state is RoomState.QUEUED and not event.first:
            self._late(room)  # its first pages were said too long ago even to be remembered
            return
        adopt(self.worker, room, event, PageState.COMPUTING)
        if room.state is RoomState.QUEUED:
            room.hit = event.hit
            self.worker.see(room, Saw.HELD_TO_COMPUTE)
            self._offering.admitted(room, ())

    def _scheduled(self, room: PrefillRoom | None, start: int, end: int) -> None:
        if room is None or room.state is not RoomState.COMPUTING:
            return
        if start != (room.ordered or room.hit):
            why = f"the engine computes from position {start} on, not from {room.ordered}"
            self.worker.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)
            return
        self.worker.add_row(room, self._row(room, start, min(end, room.length)))
        room.ordered = min(end, room.length)

    def _row(self, room: PrefillRoom, start: int, end: int) -> RowOrder:
        table = self.worker.state_table
        first = start if room.ordered else 0  # what was cached is sealed with the first chunk
        final = final_blocks(table, start=first, end=end, length=room.length)
        return RowOrder(
            key=room.key,
            start=start,
            tokens=room.context[start:end],
            final={g: (BlockIndex(a), BlockIndex(b)) for g, (a, b) in final.items()},
            valid=end,
            sampling=None,
            index=TokenIndex(len(room.ticket.said)),
        )

    def rows_ended(self, batch: Sequence[tuple[PrefillRoom, RowOrder]], ranks: Outcomes) -> None:
        for i, (room, row) in enumerate(batch):
            if room.state is not RoomState.COMPUTING:
                continue  # it has ended meanwhile
            room.done, room.progress = row.valid, self.worker.now
            sums = {Rank(r): rows[i].sums for r, rows in enumerate(ranks)}
            if not self._intact(room, row, sums):
                continue
            add_sums(room.sums, sums, self.worker.placements)
            self._offering.offer(room, row.final)
            self._complete(room)

    def _intact(
        self, room: PrefillRoom, row: RowOrder, raw: Mapping[Rank, Mapping[GroupName, bytes]]
    ) -> bool:
        """Compare the blocks whose sums at birth are known, and keep the sums of all others.

        Returns False if the room has failed, because one of them differs.

        Known are those of pages that the engine had cached. Those of pages that it has computed for
        this room are, too, if its ticket has come late, and others have been handed over with
        them before.
        """
        for group, (start, past) in row.final.items():
            whole = min(past, room.length // self.worker.state_table.block_tokens) - start
            sums: Sums = {
                rank: unpack_sums(found[group], self.worker.placements[rank].unit_count(group))[
                    :whole
                ]
                for rank, found in raw.items()
                if group in found
            }
            pages = self._ledger.held(room.key)[group][start : start + whole]
            if wrong := self._ledger.sums.wrong(group, pages, sums):
                self._damaged(room, group, [BlockIndex(start + n) for n in wrong])
                return False
            self._ledger.sums.learn(group, pages, sums)
        return True

    def _damaged(self, room: PrefillRoom, group: GroupName, blocks: list[BlockIndex]) -> None:
        self.worker.marks[Mark.DAMAGED_AT_REST] += 1
        self._offering.condemn(room, group, blocks[0])
        why = (
            f"blocks {blocks} of group {group} changed in prefill's own memory after they were "
            "computed"
        )
        self.worker.fail(room, FailCode.HANDOFF_FAILED, why, retry=True)

    def advance(self) -> None:
        self._tell_condemned()

    def _tell_condemned(self) -> None:
        """Tell the engine of pages that it must not use again, also when no room is left: the next
        one may come to the engine earlier than its ticket here."""
        if condemned := self._ledger.condemned:
            self._ledger.condemned = {}
            pages = {g: tuple(sorted(some)) for g, some in condemned.items()}
            self.worker.effects.append(Evict(pages))

    def _finished(self, room: PrefillRoom | None, event: GuestFinished) -> None:
        if room is None:
            tell(self.worker, event.key, Notice.RELEASED)
            return
        self._kept.add(room.key)
        if room.state is RoomState.COMPUTING and event.drawn is not None:
            self._first[room.key] = event.drawn
            self._complete(room)
        elif event.preempted and room.state is not RoomState.ENDING:
            why = "the engine has taken its pages back for other requests"
            self.worker.fail(room, FailCode.OVERLOADED, why, retry=True)
        elif room.state is not RoomState.ENDING:
            why = "the engine has ended the request before its prompt was computed"
            self.worker.fail(room, FailCode.COMPUTE_FAILED, why, retry=True)

    def _complete(self, room: PrefillRoom) -> None:
        """Offer the record, if the whole prompt is computed and the first token is known."""
        if room.done == room.length and room.key in self._first:
            self._offering.complete(room, self._first.pop(room.key), {})
