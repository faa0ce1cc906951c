"""Judges what workers tell gateways of their prefix caches, and what gateways know of them.

CacheChanged        a page that has entered is cached at that moment, one that has left is not
at rest             every gateway knows exactly the pages that each worker has

Where prompts go on only from checkpoints, these are the last pages of the checkpoints.
"""

from collections.abc import Iterator, Mapping, Sequence

from baton.core.effects import Effect, Send
from baton.core.gateway.front import Front
from baton.core.ids import Boot
from baton.core.memory.prefix_cache import PrefixCache
from baton.core.messages import CacheChanged
from baton.core.scheduler.reuse import Reuse

ID_BYTES = 8


def cached_ids(reuse: Reuse, cache: PrefixCache) -> set[int]:
    """Return the pages that a prompt may go on from, as gateways know them."""
    pages = (
        (one.page for one in reuse.checkpoints)
        if reuse.keeps
        else (entry.digest for entry in cache.live())
    )
    return {int.from_bytes(page[:ID_BYTES], "little") for page in pages}


def untrue(effects: Sequence[Effect], reuse: Reuse, cache: PrefixCache) -> str:
    """Return what a leader says that is not so; empty if all is true."""
    for effect in effects:
        if isinstance(effect, Send) and isinstance(effect.message, CacheChanged):
            message, cached = effect.message, cached_ids(reuse, cache)
            if wrong := set(_ids(message.entered)) - cached:
                return f"pages {sorted(wrong)} have entered the cache, and are not there"
            if wrong := set(_ids(message.left)) & cached:
                return f"pages {sorted(wrong)} have left the cache, and are there"
    return ""


def _ids(hashes: bytes) -> Iterator[int]:
    for start in range(0, len(hashes), ID_BYTES):
        yield int.from_bytes(hashes[start : start + ID_BYTES], "little")


def unknown(front: Front, workers: Mapping[Boot, tuple[Reuse, PrefixCache]]) -> str:
    """Return where a gateway's index differs from the caches of workers; empty if it does not."""
    for boot, (reuse, cache) in workers.items():
        has, thought = cached_ids(reuse, cache), front.router.caches.pages_of(boot)
        if thought != has:
            return (
                f"the worker of boot {boot} has cached {len(has)} pages; the gateway does not know "
                f"of {len(has - thought)} of them, and thinks of {len(thought - has)} others"
            )
    return ""
