"""Running rooms that give way: their state on its way to the host store, there, and on its way
back."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName, Key, StoreKey
from baton.core.rank.host_copies import HostCopies
from baton.core.rank.rank_effects import RankEffect
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.fetching import Fetching
from baton.core.scheduler.preemption import Preemption
from baton.core.scheduler.room import RoomState
from baton.core.work import HostCopy
from baton.dev.sim.host_store import Block, SimHostStore
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)

_blocks = HostCopies._blocks


def _blocks_of_first(self: HostCopies, length: int) -> Mapping[GroupName, NDArray[np.int64]]:
    return dict(list(_blocks(self, length).items())[:1])


class KeepsViews(SimHostStore):
    """What was saved is where it was."""

    def __init__(self, **made_of: Any) -> None:
        super().__init__(**made_of)
        self._views: dict[StoreKey, HostCopy] = {}

    def save(self, copy: HostCopy) -> None:
        self._views[copy.key] = copy
        super().save(copy)

    def _load_block(self, copy: HostCopy, block: Block) -> None:
        group, at, slot = block
        self.blocks(group)[slot] = self.blocks(group)[self._views[copy.key].slots[group][at]]


class WaitsForCopies(Fetching):
    def _order_fetches(self, room: DecodeRoom) -> None:
        if not self.worker.rooms.in_state(RoomState.OFFLOADING, RoomState.RESTORING):
            super()._order_fetches(room)


_preempt = Preemption._preempt


def _free_at_once(self: Preemption[Any]) -> None:
    _preempt(self)
    for order in self.worker.draft.offload:
        self.worker.ledger.give_back(order.key)


_discard = HostCopies._discard


def _keep_copy(self: HostCopies, key: Key) -> list[RankEffect]:
    _discard(self, key)
    return []


PLANTS = (
    Plant(
        "offload_forgets_a_kind",
        "a room that gives way takes the state of one group with it; what else the model "
        "keeps is not saved",
        ("same_after_resume",),
        3,
        lambda: Parts(replaced=(Replaced(HostCopies, "_blocks", _blocks_of_first),)),
    ),
    Plant(
        "offload_keeps_views",
        "what is kept of a room that gave way are views of its pages, which are another's "
        "now; nobody looks at its sums",
        ("same_after_resume",),
        3,
        lambda: Parts(
            host_store=KeepsViews,
            replaced=(Replaced(HostCopies, "_difference", lambda self, before, after: ""),),
        ),
    ),
    Plant(
        "resume_unverified",
        "what comes back from host memory is taken without a look at its sums",
        ("same_after_resume",),
        9,
        lambda: Parts(
            replaced=(Replaced(HostCopies, "_difference", lambda self, before, after: ""),)
        ),
    ),
    Plant(
        "resume_blocks_transfers",
        "while the state of one room is copied, what prefill offers of others is not read",
        ("read_at_once",),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Fetching", WaitsForCopies),)),
    ),
    Plant(
        "offload_frees_at_once",
        "the pages of a room that gives way are given to others while they are still being copied",
        ("one_owner", "own_copy_ended", "own_digest_ended", "page_books"),
        6,
        lambda: Parts(replaced=(Replaced(Preemption, "_preempt", _free_at_once),)),
    ),
    Plant(
        "copy_never_forgotten",
        "what host memory held of a room stays there when the room has come back or ended",
        ("nothing_left",),
        None,
        lambda: Parts(replaced=(Replaced(HostCopies, "_discard", _keep_copy),)),
    ),
)
