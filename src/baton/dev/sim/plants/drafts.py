"""Drafts that become more than a guess: sealed, cached, without pages, or drawn as if they were not
there, or left in recurrent state; and what a draft layer goes on from, of another room or of
another width."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from baton.core.agreement import RowOrder, RowResult
from baton.core.handoff.plan import PairPlan
from baton.core.ids import BlockIndex, GroupName, TokenId
from baton.core.memory.chunks import final_blocks
from baton.core.memory.state import Group, StateTable, Unit
from baton.core.messages import Drawn
from baton.core.scheduler import generating
from baton.core.scheduler.computing import Computing
from baton.core.scheduler.generating_room import GeneratingRoom
from baton.core.scheduler.preemption import Preemption
from baton.core.scheduler.reuse import Reuse
from baton.core.scheduler.stage import all_drawn_of
from baton.dev.sim.engine import SimEngine
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

Final = dict[GroupName, tuple[BlockIndex, BlockIndex]]
_decode_row, _completed = generating.decode_row, generating.completed
_chunk, _enter, _of_one = Computing._chunk, Reuse.enter, PairPlan._of_one


def _with_table(table: StateTable, room: Any) -> Final:
    room.table = table
    return _completed(table, room)


def _sealed_with_drafts(
    room: Any, final: Final | None = None, drafts: Sequence[TokenId] = ()
) -> RowOrder:
    row = _decode_row(room, final, drafts)
    if not drafts or not room.enters:
        return row
    table, end = room.table, row.start + len(row.tokens)
    found = final_blocks(table, start=row.start, end=end, length=end + 1)
    lasting = {group: blocks for group, blocks in found.items() if group in table.lasting}
    return msgspec.structs.replace(row, final={**row.final, **lasting})


def _same_past(
    room: GeneratingRoom,
    final: Mapping[GroupName, tuple[BlockIndex, BlockIndex]] | None = None,
    drafts: Sequence[TokenId] = (),
) -> RowOrder:
    row = _decode_row(room, final, drafts)
    return msgspec.structs.replace(row, ahead=(row.past,) * len(drafts))


def _warm(self: Any, room: Any, start: int, end: int) -> RowOrder:
    return msgspec.structs.replace(_chunk(self, room, start, end), cold=False)


def _remembered(room: Any, final: Final | None = None, drafts: Sequence[TokenId] = ()) -> RowOrder:
    room.guessed = drafts
    return _decode_row(room, final, drafts)


def _enter_guessed(self: Any, room: Any, computed: int, sums: Any, marks: Any) -> None:
    guessed = getattr(room, "guessed", ())
    if not guessed:
        return _enter(self, room, computed, sums, marks)
    right, room.guessed = list(room.generated), ()
    room.generated[computed - room.length :] = [Drawn(token, None, ()) for token in guessed]
    _enter(self, room, computed + len(guessed), sums, marks)
    room.generated[:] = right
    return None


def _own_stride(self: Any, leg: Any, group: GroupName, block: int, source: Any, target: Any) -> Any:
    if self.table.group(group).unit is not Unit.SLOT:
        return _of_one(self, leg, group, block, source, target)
    spans = self._spans[leg.index, group]
    from_slot, to_slot = int(source[0][0]), int(target[0][0])
    return (
        spans.source + from_slot * spans.target_stride,
        spans.target + to_slot * spans.target_stride,
        spans.nbytes,
    )


def _left_at_the_end(self: Any, group: Group, right: int, end: int) -> int:
    return right if group.optional else end


def _without_the_first(ranks: Sequence[tuple[RowResult, ...]], row: int) -> tuple[Drawn, ...]:
    drawn = all_drawn_of(ranks, row)
    return drawn[1:] or drawn


PLANTS = (
    Plant(
        "draft_without_page",
        "a room has drafts though it lacks pages for them",
        ("page_books",),
        None,
        lambda: Parts(replaced=(Replaced(Preemption, "reach", lambda self, room, position: True),)),
    ),
    Plant(
        "draft_sealed",
        "a block that is complete with drafts is sealed at once, whether they are right or not",
        ("sealed_once",),
        None,
        lambda: Parts(
            replaced=(
                Replaced(generating, "completed", _with_table),
                Replaced(generating, "decode_row", _sealed_with_drafts),
            )
        ),
    ),
    Plant(
        "draft_past_of_the_first",
        "the draws after drafts count penalties and bad words as if these were not there",
        ("right_tokens", "right_logprobs"),
        None,
        lambda: Parts(replaced=(Replaced(generating, "decode_row", _same_past),)),
    ),
    Plant(
        "draft_skips_a_token",
        "of several tokens of a step the first is lost",
        ("right_tokens", "right_logprobs"),
        None,
        lambda: Parts(replaced=(Replaced(generating, "all_drawn_of", _without_the_first),)),
    ),
    Plant(
        "draft_rejected_cached",
        "a page that is full with drafts enters the cache with them, whether they are right or not",
        ("cache_exact", "cached_sealed"),
        None,
        lambda: Parts(
            replaced=(
                Replaced(generating, "decode_row", _remembered),
                Replaced(Reuse, "enter", _enter_guessed),
            )
        ),
    ),
    Plant(
        "slot_keeps_a_wrong_draft",
        "recurrent state keeps what a draft that was wrong has made of it",
        ("right_bytes",),
        None,
        lambda: Parts(replaced=(Replaced(SimEngine, "_left_at", _left_at_the_end),)),
    ),
    Plant(
        "hidden_state_of_another",
        "behind cached pages the draft layer goes on from the hidden state that the slot's last "
        "owner has left",
        ("right_bytes",),
        None,
        lambda: Parts(replaced=(Replaced(Computing, "_chunk", _warm),)),
    ),
    Plant(
        "slot_of_another_width",
        "a slot is read as if the source's were as large as ours, whatever its width",
        ("no_spurious_failure",),
        None,
        lambda: Parts(replaced=(Replaced(PairPlan, "_of_one", _own_stride),)),
    ),
)
