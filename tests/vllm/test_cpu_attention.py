"""vLLM's own CPU attention over a KV cache in both layouts: the same bits in a cell, and the same
answer. vLLM's backend declares LBHNC alone; its kernels go by strides. Needs vLLM."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

ops = pytest.importorskip("vllm._custom_ops", reason="vLLM is not installed")

LAYERS, BLOCKS, HEADS, TOKENS, SIZE = 3, 9, 2, 32, 64
QUERY_HEADS = 6
LBHNC, BHLNC = (0, 1, 2, 3, 4), (1, 2, 0, 3, 4)
LENGTHS = (70, 33)
TABLE = ((5, 2, 7), (1, 8, 0))
LAYER = 1


def cache(order: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The memory of a cache with its axes in this order, and a view [L, B, H, N, C] of it."""
    shape = (LAYERS, BLOCKS, HEADS, TOKENS, 2 * SIZE)
    memory = torch.zeros([shape[axis] for axis in order], dtype=dtype)
    return memory, memory.permute([list(order).index(axis) for axis in range(5)])


def attend(order: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Write two prompts into a layer, and attend: the cells of the layer, and the output."""
    from vllm.v1.attention.backends.cpu_attn import _get_attn_isa

    isa, draw = _get_attn_isa(dtype, TOKENS, SIZE), torch.Generator().manual_seed(0)
    count = sum(LENGTHS)

    def drawn(heads: int) -> torch.Tensor:
        return torch.randn(count, heads, SIZE, generator=draw).to(dtype)

    query, key, value = drawn(QUERY_HEADS), drawn(HEADS), drawn(HEADS)
    _, view = cache(order, dtype)
    cells = view[LAYER].view(BLOCKS, HEADS, 2 * TOKENS, SIZE)
    keys, values = cells.chunk(2, dim=2)
    slots = [
        row[p // TOKENS] * TOKENS + p % TOKENS
        for row, length in zip(TABLE, LENGTHS, strict=True)
        for p in range(length)
    ]
    ops.cpu_attn_reshape_and_cache(key, value, keys, values, torch.tensor(slots), isa)
    starts = torch.tensor([0, LENGTHS[0], count], dtype=torch.int32)
    lengths = torch.tensor(LENGTHS, dtype=torch.int32)
    metadata = ops.cpu_attn_get_scheduler_metadata(
        num_reqs=len(LENGTHS),
        num_heads=QUERY_HEADS,
        num_kv_heads=HEADS,
        head_dim=SIZE,
        seq_lens=lengths,
        dtype=dtype,
        query_start_loc=starts,
        causal=True,
        sliding_window_size=-1,
        isa=isa,
        enable_kv_split=False,
    )
    output = torch.empty_like(query)
    ops.cpu_attention_with_kv_cache(
        query=query,
        key_cache=keys,
        value_cache=values,
        output=output,
        query_start_loc=starts,
        seq_lens=lengths,
        scale=SIZE**-0.5,
        causal=True,
        alibi_slopes=None,
        sliding_window=-1,
        block_table=torch.tensor(TABLE, dtype=torch.int32),
        softcap=0.0,
        scheduler_metadata=metadata,
        s_aux=None,
    )
    return cells, output


def bits(tensor: torch.Tensor) -> np.ndarray:
    return tensor.contiguous().view(torch.uint8).numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_layouts_have_the_same_bits(dtype: torch.dtype) -> None:
    cells, output = attend(LBHNC, dtype)
    others, answer = attend(BHLNC, dtype)
    assert np.array_equal(bits(cells), bits(others))
    assert np.array_equal(bits(output), bits(answer))
    assert output.abs().sum() > 0


def test_a_block_of_all_layers_is_one_range_in_one_of_them() -> None:
    for order, whole in ((BHLNC, True), (LBHNC, False)):
        memory, view = cache(order, torch.float32)
        assert view[:, 4].untyped_storage().data_ptr() == memory.untyped_storage().data_ptr()
        memory.fill_(0)
        view[:, 4].fill_(1)
        places = memory.flatten().nonzero().flatten()
        assert (int(places[-1] - places[0]) + 1 == len(places)) is whole
