"""Our KV events, read with vLLM's own classes, and the same bytes that these write."""

import msgspec
import pytest
from tests.adapters.test_vllm_events import removed, stored

from baton.adapters import vllm_events as ours
from baton.core.effects import Publish

theirs = pytest.importorskip("vllm.distributed.kv_events", reason="vLLM is not installed")


def test_vllm_reads_what_we_write() -> None:
    changes = (
        removed(9),
        stored(1, None, 1, 2, salt="tenant"),
        stored(2, 1, 3, 4),
        stored(3, 1, 5, 6),
    )
    batch = ours.batch_of(Publish(changes, afresh=True), block_size=2, ts=1.5, rank=3)
    read = msgspec.msgpack.Decoder(theirs.KVEventBatch).decode(msgspec.msgpack.encode(batch))
    assert (read.ts, read.data_parallel_rank) == (1.5, 3)
    last = 2**64
    assert read.events == [
        theirs.AllBlocksCleared(),
        theirs.BlockRemoved(block_hashes=[last - 9], medium=theirs.MEDIUM_GPU),
        theirs.BlockStored(
            block_hashes=[last - 1, last - 2],
            parent_block_hash=None,
            token_ids=[1, 2, 3, 4],
            block_size=2,
            lora_id=None,
            medium=theirs.MEDIUM_GPU,
            lora_name=None,
            extra_keys=[("tenant",), None],
        ),
        theirs.BlockStored(
            block_hashes=[last - 3],
            parent_block_hash=last - 1,
            token_ids=[5, 6],
            block_size=2,
            lora_id=None,
            medium=theirs.MEDIUM_GPU,
            lora_name=None,
        ),
    ]


def test_we_write_what_vllm_would_write() -> None:
    """Byte for byte, so that whoever reads theirs reads ours."""
    batch = ours.batch_of(
        Publish((stored(1, None, 1, 2), removed(1)), afresh=True), block_size=2, ts=1.5, rank=3
    )
    same = theirs.KVEventBatch(
        ts=1.5,
        events=[
            theirs.AllBlocksCleared(),
            theirs.BlockStored([2**64 - 1], None, [1, 2], 2, None, "GPU", None),
            theirs.BlockRemoved([2**64 - 1], "GPU"),
        ],
        data_parallel_rank=3,
    )
    assert msgspec.msgpack.encode(batch) == msgspec.msgpack.encode(same)
