"""What a gateway knows of the prefix caches of its workers: pages that they say they have, and
pages of prompts that they were given and will have computed before a new prompt's turn comes. Where
a prompt is computed on only from where an earlier one has ended, they say which pages these are.

    CacheChanged ──next number?──▶ index                   Credits: how many there were ──fewer came?──┐
                       └── no: some were lost ──▶ AskCache ──▶ CacheChanged afresh ◀───────────────────┘

A worker that does not answer is asked again after `ASK_AGAIN_US`.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from baton.core.gateway.cache_index import MOST_PAGES, CacheIndex, Holders, PageId, Slot, slots_of
from baton.core.gateway.prompt_pages import PageKind, PromptPages, page_ids
from baton.core.ids import Boot, Key, Micros
from baton.core.memory.chains import PagesUnderWay
from baton.core.messages import CacheChanged

# until a worker is asked again, if it does not say what it has: an answer takes much less
ASK_AGAIN_US = 1_000_000


class KnownCache(msgspec.Struct):
    """What is kept of one worker."""

    slot: Slot
    kind: PageKind
    caches: bool  # whether it keeps pages of prompts for later ones
    heard: int = 0  # messages about its cache
    asked_at: Micros | None = None  # to say afresh what it has; None once it has
    chains: dict[Key, list[PageId]] = {}  # of the prompts that it was given
    coming: PagesUnderWay[PageId] = msgspec.field(default_factory=PagesUnderWay[PageId])


class Places(msgspec.Struct):
    """Which place each worker of a kind has in a list of workers."""

    slots: dict[Slot, int] = {}
    bits: int = 0  # a bit for each of these workers


class KnownCaches:
    """Knows the caches of all workers of one gateway."""

    def __init__(self, most: int = MOST_PAGES) -> None:
        self._cached, self._coming = CacheIndex(most), CacheIndex(most)
        self._workers: dict[Boot, KnownCache] = {}
        self._free: list[Slot] = []  # of workers that are gone
        self.ignored = 0  # pages for which there was no place

    def __len__(self) -> int:
        return len(self._cached)

    def joins(self, boot: Boot, kind: PageKind, *, caches: bool) -> None:
        """A worker registers. It is taken to have nothing.

        caches: whether it keeps pages of prompts for later ones
        """
        slot = self._free.pop() if self._free else Slot(len(self._workers))
        self._workers[boot] = KnownCache(slot, kind, caches, chains={})

    def leaves(self, boot: Boot) -> None:
        """A worker is gone."""
        known = self._workers.pop(boot)
        self._cached.forget(known.slot)
        self._coming.forget(known.slot)
        self._free.append(known.slot)

    # ---- what workers say -----------------------------------------------------------------------

    def changed(self, boot: Boot, message: CacheChanged, now: Micros) -> bool:
        """A worker's cache has changed. Returns whether it is to be asked for all that it has,
        because earlier changes were lost."""
        known = self._workers[boot]
        if message.number <= known.heard:
            return False  # again
        if message.afresh:
            self._cached.forget(known.slot)
            known.asked_at = None
        elif message.number != known.heard + 1:
            return self._missed(known, now)  # what it has afresh will count this one too
        known.heard = message.number
        self._cached.left(known.slot, page_ids(message.left))
        self.ignored += self._cached.entered(known.slot, page_ids(message.entered))
        return False

    def stated(self, boot: Boot, changes: int, now: Micros) -> bool:
        """A worker says how many messages about its cache it has sent. Returns whether it is to be
        asked for all that it has, because some were lost."""
        known = self._workers[boot]
        return changes > known.heard and self._missed(known, now)

    def _missed(self, known: KnownCache, now: Micros) -> bool:
        if known.asked_at is not None and now < known.asked_at + ASK_AGAIN_US:
            return False
        known.asked_at = now
        return True

    # ---- what they are given --------------------------------------------------------------------

    def gives(self, boot: Boot, key: Key, prompt: PromptPages) -> None:
        """A worker is to compute a prompt. Later prompts have something of that if it keeps it."""
        known = self._workers[boot]
        if not known.caches:
            return
        chain = known.chains[key] = prompt.chain(known.kind)
        self._coming.entered(known.slot, known.coming.add(chain))

    def ended(self, boot: Boot, key: Key) -> None:
        """A worker holds nothing of a prompt any more."""
        known = self._workers.get(boot)
        if known is not None and (chain := known.chains.pop(key, None)) is not None:
            self._coming.left(known.slot, known.coming.drop(chain))

    # ---- what they have -------------------------------------------------------------------------

    def count(self, boot: Boot) -> int:
        """Return how many pages a worker has."""
        return self._cached.count(self._workers[boot].slot)

    def pages_of(self, boot: Boot) -> frozenset[PageId]:
        """Return the pages that a worker has."""
        return self._cached.pages_of(self._workers[boot].slot)

    def places(self, boots: Sequence[Boot]) -> dict[PageKind, Places]:
        """Return what `positions` needs to know of these workers, until one of them goes."""
        found: dict[PageKind, Places] = {}
        for i, boot in enumerate(boots):
            known = self._workers[boot]
            places = found.setdefault(known.kind, Places())
            places.slots[known.slot] = i
            places.bits |= 1 << known.slot
        return found

    def positions(
        self,
        places: Mapping[PageKind, Places],
        count: int,
        prompt: PromptPages,
        *,
        coming: bool,
    ) -> list[int]:
        """Return how many positions of a prompt each of `count` workers has.

        coming: whether those count that a worker will have computed before its turn comes
        """
        found = [0] * count
        for kind, some in places.items():
            chain = prompt.chain(kind)
            groups: list[Holders] = []
            for index in (self._cached, self._coming) if coming else (self._cached,):
                groups += index.ends(chain) if kind.ends else index.depths(chain)
            # Nearly all workers have the beginning that conversations share, and no more: what
            # most have is set for all of them first, and then what the others have.
            most, *others = sorted(
                _once(groups, some.bits), key=lambda g: g.workers.bit_count(), reverse=True
            )
            if most.pages:
                for i in some.slots.values():
                    found[i] = most.pages * kind.tokens
            for group in others:
                for slot in slots_of(group.workers):
                    found[some.slots[slot]] = group.pages * kind.tokens
        return found


def _once(groups: list[Holders], workers: int) -> Iterator[Holders]:
    """Yield groups in which each of these workers is once: with the most pages that it has in any
    of the given ones."""
    for group in sorted(groups, key=lambda g: g.pages, reverse=True):
        if own := group.workers & workers:
            yield Holders(own, group.pages)
            workers ^= own
    yield Holders(workers, 0)
