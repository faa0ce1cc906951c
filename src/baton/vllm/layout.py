"""What vLLM's configuration says of its KV cache, as a state table and strides.

vLLM names the order of its axes: L(ayer), B(lock), H(ead), N (token), C (content: K and V of a
token). Wherever N and C are innermost, what a head of a layer has in a block is one byte range, a
cell. Sizes and strides come from the configuration, never from the shape of a tensor.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from baton.core.errors import ConfigError
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Strides,
    Unit,
)
from baton.vllm.names import FULL

LATENT = "MLAAttentionSpec"
ATTENTION = ("FullAttentionSpec", LATENT)  # vLLM's names of what is supported
SPEC = "kv"
DTYPES: Mapping[str, DType] = MappingProxyType(
    {
        "torch.float32": DType.F32,
        "torch.bfloat16": DType.BF16,
        "torch.float16": DType.F16,
        "torch.uint8": DType.FP8,
        "torch.float8_e4m3fn": DType.FP8,
    }
)
# where a block of a layer, or of all layers, is one byte range, head after head
SUPPORTED = ("BHLNC", "BLHNC", "LBHNC")
LAYER = re.compile(r"\.(\d+)\.")
BLOCK = 16


def require_one_group(kv_cache_config: Any) -> Any:
    """Return the only group of layers.

    Raises:
        ConfigError: there are several, or its attention is not supported
    """
    groups = kv_cache_config.kv_cache_groups
    kinds = sorted({type(g.kv_cache_spec).__name__ for g in groups})
    if len(groups) != 1:
        raise ConfigError(
            f"this model has {len(groups)} groups of KV caches ({', '.join(kinds)}), and the "
            "connector supports one. --disable-hybrid-kv-cache-manager makes one of full and "
            "sliding-window attention; serve a model with state of another kind by one engine, "
            "without --kv-transfer-config"
        )
    if (tensors := len(kv_cache_config.kv_cache_tensors)) != 1:
        raise ConfigError(
            f"the KV caches of this model's layers have {tensors} shapes, and the connector "
            "supports one; if the layers of a draft model are the reason, leave out "
            "--speculative-config"
        )
    if kinds[0] not in ATTENTION:
        raise ConfigError(f"a KV cache of kind {kinds[0]} is not supported")
    return groups[0]


def state_table(vllm_config: Any, kv_cache_config: Any, *, cell: str) -> StateTable:
    """Return the state of the model. cell: how the content of a cell is arranged; two engines with
    different arrangements do not pair

    Raises:
        ConfigError: the connector does not support this layout
    """
    group = require_one_group(kv_cache_config)
    spec, layout = group.kv_cache_spec, kv_cache_config.kv_cache_layout
    if layout not in SUPPORTED:
        raise ConfigError(
            f"the KV cache layout {layout} scatters the tokens of a block; set "
            f"VLLM_KV_CACHE_LAYOUT to one of {', '.join(SUPPORTED)}"
        )
    if spec.block_size % BLOCK:
        raise ConfigError(f"--block-size {spec.block_size} is not a multiple of {BLOCK}")
    heads = _total_heads(vllm_config, spec)
    dtype = _dtype_of(spec)
    row, rest = divmod(spec.page_size_bytes, spec.block_size * spec.num_kv_heads * dtype.size)
    if rest:
        raise ConfigError(
            f"a page of {spec.page_size_bytes} bytes is not made of equal rows for "
            f"{spec.block_size} tokens and {spec.num_kv_heads} heads; --kv-cache-dtype auto makes "
            "such a page"
        )
    layers = tuple(sorted(layer_index(name) for name in group.layer_names))
    return StateTable(
        num_layers=vllm_config.model_config.get_total_num_hidden_layers(),
        block_tokens=spec.block_size,
        groups=(Group(FULL, Unit.PAGE, Full()),),
        specs=(StateSpec(SPEC, FULL, layers, (cell,), heads, row, dtype),),
    )


def _dtype_of(spec: Any) -> DType:
    if (found := DTYPES.get(str(spec.dtype))) is None:
        known = ", ".join(name.removeprefix("torch.") for name in DTYPES)
        raise ConfigError(
            f"a KV cache of {spec.dtype} is not supported, only of {known}; choose one of them "
            "with --kv-cache-dtype"
        )
    return found


def placement(
    table: StateTable, kv_cache_config: Any, *, tp: int, tp_rank: int, num_kv_heads: int
) -> Placement:
    """Return where the cells of one rank lie in its pool."""
    (tensor,) = kv_cache_config.kv_cache_tensors
    names = [layer_index(name) for name in tensor.layers]
    if names != sorted(names):
        raise ConfigError(f"the layers of the KV cache are not in order: {names[:4]}")
    (spec,) = table.specs
    cell = table.block_tokens * spec.row * spec.dtype.size
    return Placement(
        table,
        tp,
        1,
        tp_rank,
        0,
        1,
        (
            Strides(
                SPEC,
                tensor.offset,
                tensor.block_stride,
                tensor.layer_stride,
                _by_head(kv_cache_config, tensor, cell, num_kv_heads),
            ),
        ),
    )


def _by_head(kv_cache_config: Any, tensor: Any, cell: int, heads: int) -> int:
    """Return the bytes from a cell to that of the next head."""
    steps = {
        "LBHNC": cell,
        "BLHNC": cell,
        "BHLNC": cell * len(tensor.layers),
    }
    return steps[kv_cache_config.kv_cache_layout] if heads > 1 else cell


def _total_heads(vllm_config: Any, spec: Any) -> int:
    if type(spec).__name__ == LATENT:
        return 1
    return int(vllm_config.model_config.get_total_num_kv_heads())


def layer_index(name: str) -> int:
    """Return the number of a layer: `model.layers.7.self_attn.attn` is layer 7."""
    found = LAYER.search(name)
    if found is None:
        raise ConfigError(f"the layer {name!r} has no number")
    return int(found[1])
