"""Shared pages: before they are computed, under a wrong name, after damage, or given up while a
room uses them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from baton.core.ids import Key, Rank
from baton.core.memory.pages import Ledger
from baton.core.memory.prefix_cache import CachedPage, PageHash, PrefixCache, page_hash, root_hash
from baton.core.scheduler import reuse as reuse_module
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler.checkpointing import ComputedRoom
from baton.core.scheduler.computing import Computing
from baton.core.scheduler.reuse import Reuse
from baton.core.scheduler.room import OpenRoom, RoomState
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


class CachesWhatIsOrdered(Computing):
    where = "prefill"

    def add_rows(self, rooms: Sequence[ComputedRoom], tokens: int) -> int:
        added = super().add_rows(rooms, tokens)
        worker = self.worker
        rooms = worker.rooms.in_state(RoomState.COMPUTING)
        for room in rooms if worker.manifest.role == self.where else ():
            blocks = room.ordered // worker.reuse.page_tokens * worker.manifest.page_blocks
            sums = {
                (Rank(r), group.name): np.zeros(
                    (blocks, len(placement.units(group.name))), dtype=np.uint64
                )
                for r, placement in enumerate(worker.placements)
                for group in worker.state_table.groups
            }
            worker.reuse.enter(room, room.ordered, sums, worker.marks)
        return added


def _unpin_twice(self: PrefixCache, chain: Sequence[CachedPage]) -> list[CachedPage]:
    gone: list[CachedPage] = []
    for _ in range(2):
        gone += _unpin(self, [entry for entry in chain if entry.pins])
    return gone


_unpin = PrefixCache.unpin


def _hashes_alone(self: Reuse, room: OpenRoom, count: int) -> list[PageHash]:
    root, size = root_hash(self._model, self._weights, room.ticket.cache_salt), self.page_tokens
    return [page_hash(root, room.tokens(n * size, (n + 1) * size)) for n in range(count)]


def _root_without_salt(model: str, weights: str, salt: str) -> PageHash:
    return root_hash(model, weights, "")


def _chain_to_the_end(self: Reuse, room: OpenRoom, *, leaving: int | None = None) -> list[PageHash]:
    return self._hashes(room, room.length // self.page_tokens) if self.on else []


def _condemn_nobody(self: Ledger, entry: CachedPage) -> set[Key]:
    return set()


def _condemn_one(self: Ledger, entry: CachedPage) -> set[Key]:
    """The page goes, and what was computed above it stays."""
    children, entry.children = entry.children, {}
    _condemn_cached(self, entry)
    entry.children = children
    return set()


_condemn_cached = Ledger.condemn_cached


def _evict_the_oldest(self: PrefixCache) -> CachedPage:
    entry = next(e for e in self._entries.values() if not e.children)
    self._take_out(entry)
    return entry


def _give_back_without_pins(self: Ledger, key: Key) -> None:
    unpin, self.cache.unpin = self.cache.unpin, lambda chain: []  # type: ignore[method-assign]
    _give_back(self, key)
    self.cache.unpin = unpin  # type: ignore[method-assign]


_give_back = Ledger.give_back

IDLE: Any = property(lambda self: len(self._entries))

PLANTS = (
    Plant(
        "cached_before_computed",
        "a page enters the prefix cache when it is ordered to be computed: another room "
        "reuses it unsealed",
        ("cached_sealed", "right_reuse", "nothing_skipped"),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Computing", CachesWhatIsOrdered),)),
    ),
    Plant(
        "double_unpin",
        "a room that ends returns its pins twice, and those of others with them: their pages "
        "are given away",
        ("one_owner", "page_books"),
        None,
        lambda: Parts(replaced=(Replaced(PrefixCache, "unpin", _unpin_twice),)),
    ),
    Plant(
        "hash_without_parent",
        "a page's hash covers its own tokens and not those before it",
        ("right_reuse", "page_books"),
        None,
        lambda: Parts(replaced=(Replaced(Reuse, "_hashes", _hashes_alone),)),
    ),
    Plant(
        "salt_ignored",
        "requests with different salts share pages",
        ("own_salt", "page_books"),
        None,
        lambda: Parts(replaced=(Replaced(reuse_module, "root_hash", _root_without_salt),)),
    ),
    Plant(
        "hit_reaches_the_end",
        "a hit may be the whole prompt, so that no token is left to be computed",
        ("hit_leaves_a_token",),
        None,
        lambda: Parts(replaced=(Replaced(Reuse, "chain", _chain_to_the_end),)),
    ),
    Plant(
        "damaged_page_stays",
        "a page that was found damaged stays in the prefix cache",
        ("damage_leaves", "damage_found_in_time"),
        None,
        lambda: Parts(replaced=(Replaced(Ledger, "condemn_cached", _condemn_nobody),)),
    ),
    Plant(
        "descendants_stay",
        "a damaged page leaves the prefix cache, and what was computed above it stays",
        ("damage_leaves", "damage_found_in_time", "nothing_left"),
        None,
        lambda: Parts(replaced=(Replaced(Ledger, "condemn_cached", _condemn_one),)),
    ),
    Plant(
        "evicts_pinned",
        "the oldest page of the prefix cache is given up, whoever uses it",
        ("one_owner", "page_books"),
        None,
        lambda: Parts(
            replaced=(
                Replaced(PrefixCache, "evict", _evict_the_oldest),
                Replaced(PrefixCache, "idle", IDLE),
            )
        ),
    ),
    Plant(
        "pins_forgotten",
        "a room that ends keeps its pins",
        ("nothing_left", "liveness", "healed_succeeds"),
        None,
        lambda: Parts(replaced=(Replaced(Ledger, "give_back", _give_back_without_pins),)),
    ),
)
