"""Workers that compute prompts and generate tokens: unified ones, and decode workers where that is
cheaper."""

from typing import Any

from msgspec.structs import replace

from baton.core.agreement import RowOrder
from baton.core.memory.chunks import final_blocks
from baton.core.memory.prefix_cache import PageHash
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler.computing import Computing
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.generating import Generating
from baton.core.scheduler.reuse import Reuse
from baton.core.scheduler.room import OpenRoom, RoomState
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant
from baton.dev.sim.plants.reuse import CachesWhatIsOrdered

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
            if room.state is RoomState.RUNNING and self.worker.manifest.role == "unified":
                self.worker.reuse.enter(room, room.position + 1, None, self.worker.marks)


class CachesOwnWhatIsOrdered(CachesWhatIsOrdered):
    where = "decode"


_chain = Reuse.chain


def _chain_as_if_fetched(
    self: Reuse, room: OpenRoom, *, leaving: int | None = None
) -> list[PageHash]:
    own = isinstance(room, DecodeRoom) and leaving is None
    return _chain(self, room, leaving=0 if own else leaving)


PLANTS = (
    Plant(
        "own_prompt_reused_whole",
        "a worker that generates reuses all of a prompt that it computes itself, as if that were "
        "fetched, so that no token is left to be computed",
        ("cache_begins", "hit_leaves_a_token"),
        None,
        lambda: Parts(replaced=(Replaced(Reuse, "chain", _chain_as_if_fetched),)),
    ),
    Plant(
        "own_prompt_cached_when_ordered",
        "pages of a prompt that a decode worker computes itself enter its cache when they are "
        "ordered",
        ("cache_exact", "cached_right"),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Computing", CachesOwnWhatIsOrdered),)),
    ),
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
