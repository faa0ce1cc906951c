"""vLLM's layouts as strides: each cell's address as vLLM's own documentation of a KVCacheTensor and
of a layout's axes gives it."""

import itertools
from types import SimpleNamespace as Made

import pytest

from baton.core.errors import ConfigError
from baton.core.handoff.plan import pair
from baton.vllm.layout import placement, state_table
from baton.vllm.names import FULL

LAYERS, BLOCKS, HEADS, TOKENS, CONTENT = 3, 5, 2, 16, 8
ELEMENT = 4


class FullAttentionSpec(Made):
    """Of vLLM, as far as it is looked at."""


class SlidingWindowSpec(Made):
    """Likewise."""


def configs(
    layout,
    *,
    kind=FullAttentionSpec,
    groups=1,
    tensors=1,
    block_size=TOKENS,
    names=None,
    dtype="torch.float32",
    more=0,
):
    """vLLM's configuration for one rank, and that of its cache."""
    page = HEADS * block_size * CONTENT * ELEMENT + more
    names = names or [f"model.layers.{n}.self_attn.attn" for n in range(LAYERS)]
    spec = kind(block_size=block_size, num_kv_heads=HEADS, page_size_bytes=page, dtype=dtype)
    strides = {"L": (page * BLOCKS, page), "B": (page, page * LAYERS)}
    layer_stride, block_stride = strides[layout[0]]
    if layout == "BHLNC":
        layer_stride = block_size * CONTENT * ELEMENT
    cache = Made(
        kv_cache_layout=layout,
        num_blocks=BLOCKS,
        kv_cache_groups=[Made(layer_names=names, kv_cache_spec=spec)] * groups,
        kv_cache_tensors=[
            Made(layers=names, offset=64, layer_stride=layer_stride, block_stride=block_stride)
        ]
        * tensors,
    )
    model = Made(get_total_num_hidden_layers=lambda: LAYERS, get_total_num_kv_heads=lambda: HEADS)
    return Made(model_config=model), cache


def placed(layout):
    vllm_config, cache = configs(layout)
    table = state_table(vllm_config, cache, cell="kv")
    return placement(table, cache, tp=1, tp_rank=0, num_kv_heads=HEADS)


@pytest.mark.parametrize("layout", ["LBHNC", "BLHNC", "BHLNC"])
def test_every_cell_lies_where_the_order_of_the_axes_says(layout) -> None:
    (place,) = placed(layout).places.values()
    sizes = {"L": LAYERS, "B": BLOCKS, "H": HEADS}
    cell = TOKENS * CONTENT * ELEMENT
    assert place.cell_bytes == cell
    for at in itertools.product(range(LAYERS), range(BLOCKS), range(HEADS)):
        index, want = dict(zip("LBH", at, strict=True)), 0
        for axis in layout[:3]:
            want = want * sizes[axis] + index[axis]
        got = (
            place.offset
            + index["B"] * place.block_stride
            + index["L"] * place.layer_stride
            + index["H"] * place.head_stride
        )
        assert got == 64 + want * cell


@pytest.mark.parametrize(("layout", "ranges"), [("BHLNC", 1), ("BLHNC", 1), ("LBHNC", LAYERS)])
def test_how_many_ranges_a_block_is(layout, ranges) -> None:
    plan = pair([placed(layout)], [placed(layout)])
    assert plan._spans[0, FULL].nbytes.size == ranges


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layout": "LBNHC"}, "VLLM_KV_CACHE_LAYOUT to one of BHLNC"),
        ({"block_size": 24}, "--block-size 24 is not a multiple of 16"),
        ({"kind": SlidingWindowSpec}, "SlidingWindowSpec is not supported"),
        ({"groups": 2}, "2 groups .*--disable-hybrid-kv-cache-manager.*without --kv-transfer"),
        ({"tensors": 2}, "2 shapes.*leave out --speculative-config"),
        ({"dtype": "torch.int4"}, "torch.int4 is not supported, only of float32.*--kv-cache-dtype"),
        ({"more": 4}, "a page of 1028 bytes is not made of equal rows.*--kv-cache-dtype auto"),
        ({"names": ["model.attn"]}, "has no number"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(changes, said) -> None:
    vllm_config, cache = configs(**{"layout": "BHLNC"} | changes)
    with pytest.raises(ConfigError, match=said):
        state_table(vllm_config, cache, cell="kv")
