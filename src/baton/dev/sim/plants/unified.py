"""Workers that compute prompts and go on with them."""

from baton.core.agreement import RowOrder, RowResult
from baton.core.ids import BlockIndex, GroupName, Micros
from baton.core.memory.chunks import final_blocks
from baton.core.memory.state import StateTable
from baton.core.scheduler import unified
from baton.core.scheduler.room import RoomState
from baton.core.scheduler.unified import UnifiedLeader, UnifiedRoom
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


def _as_on_prefill(table: StateTable, *, start: int, end: int, length: int) -> dict[GroupName, tuple[BlockIndex, BlockIndex]]:
    return final_blocks(table, start=start, end=end, length=length - 1)


class UnifiedEntersDrawn(UnifiedLeader):
    def _on_batch(self, batch: list[tuple[UnifiedRoom, RowOrder]], ranks: list[tuple[RowResult, ...]], now: Micros) -> None:
        super()._on_batch(batch, ranks, now)
        for room, _ in batch:
            if room.state is RoomState.RUNNING:
                self.reuse.enter(room, room.position + 1, None, self.marks)


PLANTS = (
    Plant(
        "tail_sealed_on_unified",
        "a unified worker seals the last block of a prompt, as prefill does, and goes on writing into it",
        ("sealed_once",),
        9,
        lambda: Parts(replaced=(Replaced(unified, "final_blocks", _as_on_prefill),)),
    ),
    Plant(
        "unified_cached_early",
        "a page enters a unified worker's prefix cache when its last token is drawn, and not when that token's state is computed",
        ("cached_sealed",),
        None,
        lambda: Parts(unified=UnifiedEntersDrawn),
    ),
)
