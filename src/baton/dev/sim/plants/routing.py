"""What gateways are told of prefix caches, and what is made of it."""

from collections.abc import Sequence

from baton.core.ids import Boot
from baton.core.memory.prefix_cache import CacheChange, CachedPage, PrefixCache
from baton.core.messages import AskCache
from baton.core.scheduler import leader as leader_module
from baton.core.scheduler import roles as roles_module
from baton.core.scheduler.books import LeaderBooks
from baton.core.scheduler.checkpointing import ComputedRoom
from baton.core.scheduler.computing import Computing
from baton.core.scheduler.room import RoomState
from baton.dev.sim.parts import Parts, Replaced
from baton.dev.sim.plants.plant import Plant

# ruff: noqa: D101  (each class is described by the plant that it is part of)


class TellsOfWhatIsOrdered(LeaderBooks):
    def tell(self) -> None:
        worker = self.worker
        for room in worker.rooms.in_state(RoomState.COMPUTING):
            pages = worker.reuse.chain(room)[: room.ordered // worker.reuse.page_tokens]
            self.cache_news.changed([CacheChange(page, entered=True) for page in pages])
        super().tell()


def _evict_silently(self: PrefixCache) -> CachedPage:
    entry = _evict(self)
    self._changes.pop()
    return entry


_evict = PrefixCache.evict


class BelievesWhatWasForeseen(Computing):
    def admitted(self, room: ComputedRoom, reuse: Sequence[CachedPage]) -> None:
        foreseen = room.foreseen
        super().admitted(room, reuse)
        room.ordered = room.done = max(room.done, foreseen)


def _never_asks(self: LeaderBooks, sender: Boot, ask: AskCache) -> None:
    pass


PLANTS = (
    Plant(
        "told_before_cached",
        "gateways are told of pages when they are ordered to be computed, before they are sealed",
        ("news_true",),
        None,
        lambda: Parts(replaced=(Replaced(leader_module, "LeaderBooks", TellsOfWhatIsOrdered),)),
    ),
    Plant(
        "eviction_unsaid",
        "gateways are not told of pages that the cache evicts",
        ("index_exact",),
        None,
        lambda: Parts(replaced=(Replaced(PrefixCache, "evict", _evict_silently),)),
    ),
    Plant(
        "index_trusted",
        "what was foreseen of the cache when a request came is taken for computed",
        ("nothing_skipped", "right_reuse", "right_tokens", "cached_sealed", "sealed_right"),
        None,
        lambda: Parts(replaced=(Replaced(roles_module, "Computing", BelievesWhatWasForeseen),)),
    ),
    Plant(
        "lost_news_unanswered",
        "news of a cache is lost, and the worker does not say afresh what it has",
        ("index_exact",),
        None,
        lambda: Parts(replaced=(Replaced(LeaderBooks, "_on_ask_cache", _never_asks),)),
    ),
)
