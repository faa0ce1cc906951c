"""Workers that compute prompts and generate tokens."""

from typing import Any

from msgspec.structs import replace

from baton.core.agreement import RowOrder
from baton.core.memory.chunks import final_blocks
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler.computing import Computing
from baton.core.scheduler.generating import Generating
from baton.core.scheduler.room import RoomState
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


class SealsTail(Computing):
    def _chunk(self, room: Any, start: int, end: int) -> RowOrder:
        row = super()._chunk(room, start, end)
        return replace(
            row,
            final=final_blocks(self.worker.state_table, start=start, end=end, length=room.length),
        )


class UnifiedEntersDrawn(Generating[Any]):
    def rows_ended(self, batch: Any, ranks: Any) -> None:
        super().rows_ended(batch, ranks)
        for room, _ in batch:
            if room.state is RoomState.RUNNING and self.worker.role.computes:
                self.worker.reuse.enter(room, room.position + 1, None, self.worker.marks)


PLANTS = (
    Plant(
        "tail_sealed_on_unified",
        "a unified worker seals the last block of a prompt, as prefill does, and goes on "
        "writing into it",
        ("sealed_once",),
        9,
        lambda: Parts(replaced=(Replaced(roles_module, "Computing", SealsTail),)),
    ),
    Plant(
        "unified_cached_early",
        "a page enters a unified worker's prefix cache when its last token is drawn, and not "
        "when that token's state is computed",
        ("cached_sealed",),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Generating", UnifiedEntersDrawn),)),
    ),
)
