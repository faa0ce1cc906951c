"""The seal for CUDA devices, interpreted on the CPU. test_triton_seal.py runs this file.

It has a process of its own: TRITON_INTERPRET must be set before Triton is imported, and changes
what Triton is for the whole process.
"""

import ctypes
import mmap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.handoff.layouts import laid_out_elsewhere
from tests.core.handoff.seal_cases import PAGED, SLOT, TWIN, cases, table, undamaged
from tests.core.handoff.seal_suite import GOLDEN, SealSuite, hexed
from tests.engine.test_digest import ranks
from tools.gpu_check import seals

from baton.core.errors import Bug
from baton.core.handoff import seal
from baton.core.memory.state import DType, Placement, StateSpec
from baton.engine.cuda import seal as triton_seal

GROUPS = st.sampled_from([PAGED, SLOT])


def block_sums(pool, *args):
    """As the suite calls an implementation: numpy in, numpy out."""
    held = torch.from_numpy(pool if pool.flags.writeable else pool.copy())
    return triton_seal.block_sums(held, *args).numpy()


def padded_pool(seed, size, before=0):
    """Random bytes that begin `before` bytes after an address that is a multiple of 16."""
    room = np.random.default_rng(seed).integers(0, 256, size + 32, dtype=np.uint8)
    begin = -room.ctypes.data % 16 + before
    return room[begin : begin + size]


@pytest.fixture(autouse=True)
def _large_tiles(request, monkeypatch):
    """Interpreting takes as long for a large tile as for a small one. The golden sums and the rows
    of served models are hashed with the tiles that are used."""
    if not {"golden", "served"} & set(request.node.name.split("_")):
        monkeypatch.setattr(triton_seal, "TILE_ELEMENTS", 1 << 16)


class TestSums(SealSuite):
    sums = staticmethod(block_sums)


@settings(max_examples=18, deadline=None)
@given(
    ranks(),
    GROUPS,
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2**40)), max_size=6),
    st.integers(0, 2**64 - 1),
    st.integers(0, 5),
    st.integers(0, 2**32 - 1),
)
def test_it_agrees_with_numpy_bit_for_bit(placement, group, blocks, identity, skew, seed):
    """`skew`: a pool that begins at an odd address and ends in part of a word."""
    pool = padded_pool(seed, 5 * placement.block_bytes(group) + skew, skew)
    slots, numbers = (np.array([b[i] for b in blocks], dtype=np.int64) for i in (0, 1))
    ours = block_sums(pool, placement, group, slots, numbers, identity)
    theirs = seal.block_sums(pool, placement, group, slots, numbers, identity)
    assert ours.dtype == theirs.dtype == np.uint64
    assert ours.shape == theirs.shape
    assert np.array_equal(ours, theirs)


@settings(max_examples=10, deadline=None)
@given(ranks(), GROUPS, st.permutations("blh"), st.integers(0, 2**32 - 1))
def test_it_follows_the_strides_of_another_engine(placement, group, order, seed):
    elsewhere = laid_out_elsewhere(placement, dict.fromkeys((PAGED, SLOT), "".join(order)), 5)
    pool = padded_pool(seed, sum(5 * p.nbytes for p in elsewhere.places.values()))
    slots = np.random.default_rng(seed).permutation(5).astype(np.int64)
    case = (elsewhere, group, slots, np.arange(5, dtype=np.int64), 7)
    assert np.array_equal(block_sums(pool, *case), seal.block_sums(pool, *case))


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize("name", ["bf16 x 64", "bf16 x 33", "several specs on rank 1, 0"])
def test_pools_may_begin_at_any_address(name, before):
    """Whole words are read as words only where every block of the spec begins at the address of
    one."""
    case = next(c for c in cases() if c.name == name)
    pool = padded_pool(0, case.pool().size, before)
    pool[:] = case.pool()
    assert [hexed(row) for row in case.sums(block_sums, pool)] == GOLDEN["sums"][name]


@pytest.mark.parametrize(
    ("rows", "parts", "heads", "row", "dtype"),
    [
        (16, 2, 3, 64, DType.BF16),  # SmolLM2
        (16, 2, 8, 128, DType.BF16),  # Llama-8B
        (16, 1, 1, 576, DType.BF16),  # a latent, whose row is several tiles wide
        (64, 2, 1, 256, DType.F32),  # a unit of several tiles of rows
    ],
)
def test_rows_of_served_models_agree(rows, parts, heads, row, dtype):
    """Two layers of them; adjacent, scattered and repeated blocks."""
    spec = StateSpec("kv", PAGED, (0, 1), ("k", "v")[:parts], heads, row, dtype)
    placement = Placement(table(spec, layers=2, block_tokens=rows), 1, 1, 0, 0, 4)
    pool = padded_pool(3, 8 * placement.block_bytes(PAGED))
    case = (placement, PAGED, np.array([0, 1, 7, 3, 3]), np.arange(5), 11)
    ours = block_sums(pool, *case)
    assert np.array_equal(ours, seal.block_sums(pool, *case))
    assert len(np.unique(ours)) == ours.size


def before_a_guard(pool):
    """A copy of the pool at the end of mapped memory: to read the byte after it ends the process."""
    libc, page = ctypes.CDLL(None), mmap.PAGESIZE
    size = -(-pool.size // page) * page
    room = np.frombuffer(mmap.mmap(-1, size + page), dtype=np.uint8)
    assert libc.mprotect(ctypes.c_void_p(room.ctypes.data + size), ctypes.c_size_t(page), 0) == 0
    copy = room[size - pool.size : size]
    copy[:] = pool
    return copy


@pytest.mark.parametrize("name", ["bf16 x 64", "bf16 x 33", "several specs on rank 1, 1"])
def test_it_reads_nothing_beyond_the_pool(name):
    """Tiles are larger than units and rows; what is beyond the last ones may not be mapped."""
    case = next(c for c in cases() if c.name == name)
    pool = before_a_guard(case.pool())
    assert [hexed(row) for row in case.sums(block_sums, pool)] == GOLDEN["sums"][name]


@pytest.mark.parametrize("slots", [[-1], [0, 4], [2**40]])
def test_blocks_outside_the_pool_are_refused(slots):
    """Compiled code does not look at bounds."""
    with pytest.raises(Bug):
        block_sums(undamaged().pool(), TWIN, PAGED, np.array(slots), np.arange(len(slots)), 1)


def test_the_checks_for_machines_with_a_gpu_pass_here():
    cpu = torch.device("cpu")
    assert seals.golden(cpu, cases()[:2]).passed
    assert seals.random_bits("SmolLM2-135M", cpu, 1).passed
