"""How prompts are cut: as few chunks as the budget allows, and one more at most to keep the last
one small."""

from hypothesis import given
from hypothesis import strategies as st

from baton.core.memory.chunks import ChunkRule, next_chunk

BLOCK = 4


def cut(length: int, step: int, last: int, *, done: int = 0) -> list[int]:
    """The sizes of all chunks of a prompt that has the step to itself."""
    sizes = []
    while done < length:
        size = next_chunk(
            done=done, length=length, budget=step, rule=ChunkRule(step, last), block_tokens=BLOCK
        )
        assert 0 < size <= step
        sizes.append(size)
        done += size
        assert len(sizes) <= length
    assert done == length
    return sizes


def test_examples():
    assert cut(87, 64, 64) == [64, 23]
    assert cut(2048, 512, 728) == [512] * 4
    assert cut(100, 64, 20) == [64, 16, 20]
    assert cut(64, 64, 20) == [44, 20]
    assert cut(10, 64, 20) == [10]
    assert cut(10, 3, 20) == [3, 1, 3, 3], "a budget below a block meets its border again"


@given(length=st.integers(1, 300), blocks=st.integers(1, 20), last=st.integers(1, 100))
def test_few_chunks_with_borders_on_the_grid_and_a_small_last_one(
    length: int, blocks: int, last: int
) -> None:
    step = blocks * BLOCK
    sizes = cut(length, step, last)
    assert all(size % BLOCK == 0 for size in sizes[:-1])
    assert len(sizes) <= -(-length // step) + 1
    assert sizes[-1] <= max(last, BLOCK)


@given(
    length=st.integers(1, 200),
    step=st.integers(1, 40),
    last=st.integers(1, 60),
    done=st.integers(0, 199),
)
def test_whatever_the_budget_and_wherever_it_begins_it_comes_to_the_end(
    length: int, step: int, last: int, done: int
) -> None:
    sizes = cut(length, step, last, done=min(done, length - 1))
    borders = [min(done, length - 1) + sum(sizes[: n + 1]) for n in range(len(sizes) - 1)]
    if step >= BLOCK:
        assert all(border % BLOCK == 0 for border in borders)
