"""Decode's prefix cache: pages that enter too early, are taken from others, written to, not fully
fetched, or held for ever."""

from collections.abc import Iterable
from typing import Any

from baton.core.ids import BlockIndex, GroupName, Micros
from baton.core.marks import Marks
from baton.core.memory.pages import Ledger
from baton.core.memory.prefix_cache import CachedPage
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler import worker as worker_module
from baton.core.scheduler.admission import Reuse as Reused
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.fetching import Fetching
from baton.core.scheduler.followers import Followers
from baton.core.scheduler.generating import Generating
from baton.core.scheduler.reuse import Reuse
from baton.core.scheduler.room import OpenRoom, RoomState
from baton.core.scheduler.worker import Worker
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


class EntersUnverified(Fetching):
    def admitted(self, room: DecodeRoom, reuse: Reused) -> None:
        super().admitted(room, reuse)
        self.worker.reuse.enter(room, room.length, {}, self.worker.marks)


class EntersDrawn(Generating[Any]):
    def rows_ended(self, batch: Any, ranks: Any) -> None:
        super().rows_ended(batch, ranks)
        for room, _ in batch:
            if room.state is RoomState.RUNNING and not room.computes:
                self.worker.reuse.enter(room, room.position + 1, {}, self.worker.marks)


_find = Reuse.find


def _find_partial(
    self: Reuse, room: OpenRoom, *, leaving: int | None = None
) -> tuple[CachedPage, ...]:
    """Accept a page that goes on after the room's end."""
    fetches = leaving is None and not room.computes
    found = _find(self, room, leaving=leaving)
    more = (
        found[-1].children
        if found and fetches and len(found) == room.length // self.page_tokens
        else {}
    )
    return (*found, *list(more.values())[:1]) if room.length % self.page_tokens else found


class SubtractsOneMore(Fetching):
    def _cached(self, room: DecodeRoom) -> dict[GroupName, BlockIndex]:
        return {group: BlockIndex(blocks + 1) for group, blocks in super()._cached(room).items()}


class TakesWindowsForCached(Fetching):
    def _cached(self, room: DecodeRoom) -> dict[GroupName, BlockIndex]:
        blocks = super()._cached(room)
        return {group.name: n for group in self.worker.state_table.groups for n in blocks.values()}


class FetchesAll(Fetching):
    def _cached(self, room: DecodeRoom) -> dict[GroupName, BlockIndex]:
        return {}


class Patient(Followers):
    def lose_patience(self, now: Micros, marks: Marks) -> None:
        """Never lose patience."""

    def timer(self) -> Micros | None:
        return None


class WaitsForEver(Patient):
    def waits(self, room: OpenRoom, leading: Iterable[OpenRoom], marks: Marks) -> bool:
        return room.key in self._waits or super().waits(room, leading, marks)


_forget = Worker.forget


def _forgets_pins(self: Worker[Any], room: Any) -> None:
    unpin = self.ledger.cache.unpin
    if isinstance(room, DecodeRoom) and not room.generated:  # it has ended on its way
        self.ledger.cache.unpin = lambda chain: []  # type: ignore[method-assign]
    _forget(self, room)
    self.ledger.cache.unpin = unpin  # type: ignore[method-assign]


def _remember(self: Ledger) -> None:
    """Keep cached pages for ever."""


PLANTS = (
    Plant(
        "cached_unverified",
        "pages of a room enter decode's prefix cache when it gets them, before what is "
        "fetched into them is verified",
        ("cache_exact", "cache_begins", "cached_right"),
        9,
        lambda: Parts(replaced=(Replaced(roles_module, "Fetching", EntersUnverified),)),
    ),
    Plant(
        "decode_cached_early",
        "a page enters decode's prefix cache when its last token is drawn, one step before "
        "that token's state is computed",
        ("cache_exact", "cache_begins", "cached_once"),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Generating", EntersDrawn),)),
    ),
    Plant(
        "partial_page_shared",
        "a room whose prompt ends within a page takes a cached one that goes on from there, "
        "and writes into it",
        ("cache_begins", "cached_once"),
        3,
        lambda: Parts(replaced=(Replaced(Reuse, "find", _find_partial),)),
    ),
    Plant(
        "fetch_short_of_cache",
        "decode takes one block more from what it fetches than it has cached",
        ("right_commit", "fetches_lacking", "read_at_once", "right_bytes"),
        4,
        lambda: Parts(replaced=(Replaced(roles_module, "Fetching", SubtractsOneMore),)),
    ),
    Plant(
        "cached_fetched_again",
        "decode fetches what it has cached, into pages that others share",
        ("fetches_lacking", "landing", "own_pages"),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Fetching", FetchesAll),)),
    ),
    Plant(
        "windows_taken_for_cached",
        "where pages that last are cached, state that does not last is not fetched either",
        ("commit_after_arrival", "read_at_once", "fetches_lacking"),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Fetching", TakesWindowsForCached),)),
    ),
    Plant(
        "follower_waits_for_ever",
        "a room that follows another one is not looked at again when that one has brought "
        "what both begin with",
        ("liveness",),
        8,
        lambda: Parts(replaced=(Replaced(worker_module, "Followers", WaitsForEver),)),
    ),
    Plant(
        "decode_pins_forgotten",
        "a room that ends on its way leaves its pins on cached pages",
        ("nothing_left",),
        6,
        lambda: Parts(replaced=(Replaced(Worker, "forget", _forgets_pins),)),
    ),
    Plant(
        "cache_kept_over_clear",
        "what was cached is still found after the pools were zeroed",
        ("cache_exact",),
        None,
        lambda: Parts(replaced=(Replaced(Ledger, "forget_cached", _remember),)),
    ),
)
