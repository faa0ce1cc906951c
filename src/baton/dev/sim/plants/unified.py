"""Workers that compute prompts and go on with them."""

from msgspec.structs import replace

from baton.core.agreement import RowOrder, RowResult
from baton.core.ids import Micros
from baton.core.memory.chunks import final_blocks
from baton.core.scheduler.room import RoomState
from baton.core.scheduler.unified import UnifiedLeader
from baton.core.scheduler.unified_room import UnifiedRoom
from baton.dev.sim.parts import Parts
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


class SealsTail(UnifiedLeader):
    def add_row(self, room: UnifiedRoom, row: RowOrder) -> None:
        if row.start < room.length:
            final = final_blocks(self.state_table, start=row.start, end=row.valid, length=room.length)
            row = replace(row, final=final)
        super().add_row(room, row)


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
        lambda: Parts(unified=SealsTail),
    ),
    Plant(
        "unified_cached_early",
        "a page enters a unified worker's prefix cache when its last token is drawn, and not when that token's state is computed",
        ("cached_sealed",),
        None,
        lambda: Parts(unified=UnifiedEntersDrawn),
    ),
)
