"""Changes of the cache in vLLM's words."""

import msgspec

from baton.adapters.vllm_events import batch_of, block_hash
from baton.core.effects import Publish
from baton.core.ids import TokenId
from baton.core.memory.prefix_cache import CacheChange, PageHash, PageText


def page(number: int) -> PageHash:
    """A page whose hash ends as an integer that needs all of its 64 bits."""
    return PageHash(bytes(range(24)) + (2**64 - number).to_bytes(8, "big"))


def stored(number: int, after: int | None, *tokens: int, salt: str = "") -> CacheChange:
    text = PageText(tuple(TokenId(t) for t in tokens), salt)
    return CacheChange(page(number), True, page(after) if after is not None else None, text)


def removed(number: int) -> CacheChange:
    return CacheChange(page(number), entered=False)


def written(*changes: CacheChange, afresh: bool = False) -> list[object]:
    """The events, as a program without our structs reads them."""
    batch = batch_of(Publish(changes, afresh=afresh), block_size=2, ts=1.5, rank=3)
    ts, events, rank = msgspec.msgpack.decode(msgspec.msgpack.encode(batch))
    assert (ts, rank) == (1.5, 3)
    assert isinstance(events, list)
    return events


def test_a_hash_is_the_last_eight_bytes_as_vllm_makes_it() -> None:
    digest = page(7)
    assert block_hash(digest) == int.from_bytes(digest, "big") & ((1 << 64) - 1) == 2**64 - 7


def test_pages_that_follow_each_other_are_one_event() -> None:
    found = written(stored(1, None, 1, 2), stored(2, 1, 3, 4), stored(3, 2, 5, 6))
    assert found == [
        {
            "type": "BlockStored",
            "block_hashes": [2**64 - 1, 2**64 - 2, 2**64 - 3],
            "parent_block_hash": None,
            "token_ids": [1, 2, 3, 4, 5, 6],
            "block_size": 2,
            "lora_id": None,
            "medium": "GPU",
            "lora_name": None,
        }
    ]


def test_the_order_of_changes_is_the_order_of_events() -> None:
    found = written(
        removed(9),
        removed(8),
        stored(1, 4, 1, 2),
        stored(2, 4, 3, 4),
        removed(2),
        stored(2, 1, 5, 6),
    )
    kinds = [(event["type"], event["block_hashes"]) for event in found if isinstance(event, dict)]
    assert kinds == [
        ("BlockRemoved", [2**64 - 9, 2**64 - 8]),
        ("BlockStored", [2**64 - 1]),
        ("BlockStored", [2**64 - 2]),
        ("BlockRemoved", [2**64 - 2]),
        ("BlockStored", [2**64 - 2]),
    ]
    parents = [e["parent_block_hash"] for e in found if isinstance(e, dict) and "token_ids" in e]
    assert parents == [2**64 - 4, 2**64 - 4, 2**64 - 1]
    assert found[0] == {
        "type": "BlockRemoved",
        "block_hashes": [2**64 - 9, 2**64 - 8],
        "medium": "GPU",
    }


def test_a_salt_stands_at_the_first_block_of_its_sequence() -> None:
    (event,) = written(stored(1, None, 1, 2, salt="tenant"), stored(2, 1, 3, 4))
    assert isinstance(event, dict)
    assert event["extra_keys"] == [["tenant"], None]


def test_the_first_batch_of_a_worker_clears_what_was_before() -> None:
    assert written(afresh=True) == [{"type": "AllBlocksCleared"}]
    kinds = [e["type"] for e in written(stored(1, None, 1, 2), afresh=True) if isinstance(e, dict)]
    assert kinds == ["AllBlocksCleared", "BlockStored"]
