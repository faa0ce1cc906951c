"""The changes of a prefix cache as vLLM 0.32 writes KV events: msgpack, a batch for each turn.

    [ts, [event, event, ..], data_parallel_rank]       an event is a map; "type" names its kind

A block is a page of Baton's cache. Its hash is an unsigned 64-bit integer, the last eight bytes of
the page's hash, big-endian: what vLLM makes of its own hashes by default, and what subscribers make
of hashes that are bytes.
"""

from collections.abc import Sequence

import msgspec

from baton.core.effects import Publish
from baton.core.ids import TokenId
from baton.core.memory.prefix_cache import CacheChange, PageHash

# The pool that the model computes from, whatever memory that is: subscribers take other media for
# slower tiers below it, and vLLM on a CPU says the same.
MEDIUM = "GPU"
HASH_BYTES = 8


class KVCacheEvent(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One event. vLLM requires the fields without a default to be there, even if they are nil."""


class BlockStored(KVCacheEvent, frozen=True):
    """These blocks, which follow each other, can be found from now on."""

    block_hashes: list[int]
    parent_block_hash: int | None  # of the block before the first one
    token_ids: list[TokenId]  # of all the blocks
    block_size: int
    lora_id: None
    medium: str
    lora_name: None
    # for each block what its hash depends on beside tokens: the salt of the request, at the first
    # block of its sequence
    extra_keys: list[tuple[str, ...] | None] | None = None


class BlockRemoved(KVCacheEvent, frozen=True):
    """These blocks cannot be found any more."""

    block_hashes: list[int]
    medium: str


class AllBlocksCleared(KVCacheEvent, frozen=True):
    """Nothing is cached: the worker has just begun."""


class KVEventBatch(msgspec.Struct, frozen=True, array_like=True):
    """What has happened in one turn."""

    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


def batch_of(said: Publish, *, block_size: int, ts: float, rank: int) -> KVEventBatch:
    """Return what vLLM would say of these changes. Pages that enter one after the other, or leave
    together, are one event.

    Args:
        block_size: tokens of a page
        rank: the number of this worker among those of its service
    """
    events: list[BlockStored | BlockRemoved | AllBlocksCleared] = []
    if said.afresh:
        events.append(AllBlocksCleared())
    for run in _runs(said.changes):
        hashes = [block_hash(change.page) for change in run]
        events.append(
            _stored(run, hashes, block_size) if run[0].entered else BlockRemoved(hashes, MEDIUM)
        )
    return KVEventBatch(ts, events, rank)


def block_hash(page: PageHash) -> int:
    """Return the hash by which subscribers know a page."""
    return int.from_bytes(page[-HASH_BYTES:], "big")


def _runs(changes: Sequence[CacheChange]) -> list[list[CacheChange]]:
    runs: list[list[CacheChange]] = []
    for change in changes:
        last = runs[-1][-1] if runs else None
        if last is not None and _together(last, change):
            runs[-1].append(change)
        else:
            runs.append([change])
    return runs


def _together(one: CacheChange, other: CacheChange) -> bool:
    """Whether two changes, one after the other, are told as one event."""
    if one.entered != other.entered:
        return False
    return not other.entered or other.parent == one.page


def _stored(run: Sequence[CacheChange], hashes: list[int], block_size: int) -> BlockStored:
    texts = [change.text for change in run if change.text is not None]
    assert len(texts) == len(run), "a page is published with its text"
    parent = run[0].parent
    keys: list[tuple[str, ...] | None] = [(text.salt,) if text.salt else None for text in texts]
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=block_hash(parent) if parent is not None else None,
        token_ids=[token for text in texts for token in text.tokens],
        block_size=block_size,
        lora_id=None,
        medium=MEDIUM,
        lora_name=None,
        extra_keys=keys if any(keys) else None,
    )
