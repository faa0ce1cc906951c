"""What a rank hashes, and when: never a block that vLLM has not computed."""

import numpy as np
from tests.core.build import KV, key

from baton.core.ids import BlockIndex, Seq
from baton.core.work import Batch, DigestOrder, Job, Row
from baton.vllm.seal_queue import SealQueue, passed, places_of


def row(number: int, valid: int, *, final=(0, 1)) -> Row:
    pages = {KV: np.array([7, 3, 9], dtype=np.int32)}
    blocks = {KV: (BlockIndex(final[0]), BlockIndex(final[1]))}
    return Row(key(number), 0, (), pages, blocks, valid, None)


def test_a_batch_waits_until_every_one_of_its_rows_is_computed() -> None:
    queue, batch = SealQueue(), Batch(Seq(1), (row(1, 8), row(2, 4)))
    queue.add(batch)
    queue.computed({key(1): 8}, passed)
    queue.computed({key(2): 3}, passed)
    assert queue.take() is None
    queue.computed({key(2): 4}, passed)
    assert queue.take() == (batch, (passed, passed))
    assert queue.take() is None


def test_a_batch_waits_for_those_before_it_and_digests_wait_for_none() -> None:
    queue, first, second = SealQueue(), Batch(Seq(1), (row(1, 8),)), Batch(Seq(2), (row(2, 4),))
    digest = DigestOrder(Job(1), KV, np.array([0]), np.array([0]))
    queue.add(first)
    queue.add(second)
    queue.add(digest)
    queue.computed({key(2): 4}, passed)
    assert queue.take() is digest
    assert queue.take() is None
    queue.computed({key(1): 8}, passed)
    assert queue.take() == (first, (passed,))
    assert queue.take() == (second, (passed,))


def test_what_vllm_says_first_counts_until_it_is_forgotten() -> None:
    queue, known = SealQueue(), Batch(Seq(1), (row(1, 8),))
    queue.computed({key(1): 8, key(2): 8}, passed)
    queue.forget(key(2))
    queue.add(known)
    queue.add(Batch(Seq(2), (row(2, 8),)))
    assert queue.take() == (known, (passed,))
    assert queue.take() is None


def test_the_blocks_of_a_row_lie_where_its_pages_say() -> None:
    ((group, slots, numbers),) = places_of(row(1, 12, final=(1, 3)))
    assert (group, slots.tolist(), numbers.tolist()) == (KV, [3, 9], [1, 2])


def test_a_row_is_behind_the_fence_of_the_step_that_computed_it_last() -> None:
    def earlier() -> None: ...

    def later() -> None: ...

    queue, batch = SealQueue(), Batch(Seq(1), (row(1, 8), row(2, 4)))
    queue.computed({key(1): 4, key(2): 4}, earlier)
    queue.computed({key(1): 8}, later)
    queue.add(batch)
    assert queue.take() == (batch, (later, earlier))
