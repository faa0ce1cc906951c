"""config.json of a Qwen3-Next-like model, read and checked once."""

from collections.abc import Mapping
from typing import Any

import msgspec

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval, Placement, shard
from baton.engine.models.config import Mixture, count, number
from baton.engine.rope import RopeSettings, longest_by_rope, rope_settings

FULL, LINEAR = "full_attention", "linear_attention"


class DeltaSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Gated-delta layers. Each key head serves `value_heads / key_heads` adjacent value heads.

    Attributes:
        key: elements of a head of q and k
        value: elements of a head of v
        taps: rows that the convolution sees, the newest included
    """

    key_heads: int
    value_heads: int
    key: int
    value: int
    taps: int

    @property
    def shared(self) -> int:
        """The number of value heads of one key head."""
        return self.value_heads // self.key_heads


class Qwen3NextConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a model's computation depends on, beside its weights.

    Two workers with equal values and equal weights compute the same.

    Attributes:
        inner, shared_inner: columns of a dense MLP, and of the shared expert; 0 = there is none
        linear: for each layer, whether it is a gated-delta layer; others have full attention
        biased: whether products of attention have biases
        mixture: experts of layers whose MLP is a mixture
    """

    vocab: int
    hidden: int
    inner: int
    shared_inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    tied: bool
    biased: bool
    rope: RopeSettings
    linear: tuple[bool, ...]
    delta: DeltaSettings
    mixture: Mixture | None


class Qwen3NextShards:
    """One rank's heads of attention and of gated-delta layers, numbered in the whole model.

    Raises:
        ConfigError: heads cannot be divided over the ranks
    """

    def __init__(self, c: Qwen3NextConfig, placement: Placement) -> None:
        tp, rank, d = placement.tp, placement.tp_rank, c.delta
        require_width(c, tp)
        self.heads = Interval(rank * c.heads // tp, (rank + 1) * c.heads // tp)
        self.kv_heads = shard(c.kv_heads, tp, rank, what="K/V")
        self.keys = shard(d.key_heads, tp, rank, what="linear attention's keys")
        self.values = shard(d.value_heads, tp, rank, what="linear attention's values")


def require_width(c: Qwen3NextConfig, tp: int) -> None:
    """Raise ConfigError if the model cannot be divided
    over `tp` ranks; names the widths that fit."""
    divided = {"attention heads": c.heads, "value heads of linear attention": c.delta.value_heads}
    divided |= {"columns of the MLP": c.inner, "columns of the shared expert": c.shared_inner}
    divided |= {"experts": c.mixture.experts if c.mixture is not None else 0}
    repeated = {"K/V heads": c.kv_heads, "key heads of linear attention": c.delta.key_heads}

    def short(width: int) -> list[str]:
        found = [f"{n} {what}" for what, n in divided.items() if n % width]
        return found + [f"{n} {what}" for what, n in repeated.items() if n % width and width % n]

    if short(tp):
        fits = [n for n in range(1, c.heads + 1) if not short(n)]
        raise ConfigError(
            f"{short(tp)[0]} cannot be divided over tensor parallel width {tp}; "
            f"widths that fit: {fits}"
        )


def read_qwen3_next(
    c: Mapping[str, Any], *, mixture: Mixture | None, longest: int | None
) -> Qwen3NextConfig:
    """Read a complete config. Raises ConfigError."""
    if c["hidden_act"] != "silu":
        raise ConfigError(f"activation {c['hidden_act']!r} is not supported; supported is 'silu'")
    layers, heads, kv_heads = (
        count(c, f"num_{n}") for n in ("hidden_layers", "attention_heads", "key_value_heads")
    )
    if heads % kv_heads:
        raise ConfigError(
            f"config.json: {heads} query heads cannot share {kv_heads} key and value heads evenly"
        )
    dim = count(c, "head_dim")
    return Qwen3NextConfig(
        vocab=count(c, "vocab_size"),
        hidden=count(c, "hidden_size"),
        inner=0 if mixture is not None and all(mixture.sparse) else count(c, "intermediate_size"),
        shared_inner=0 if mixture is None else count(c, "shared_expert_intermediate_size"),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=dim,
        eps=number(c, "rms_norm_eps"),
        tied=bool(c["tie_word_embeddings"]),
        biased=bool(c.get("attention_bias")),
        rope=rope_settings(c, dim=dim, longest=longest or longest_by_rope(c)[0]),
        linear=_linear(c, layers),
        delta=_delta(c),
        mixture=mixture,
    )


def _linear(c: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Return which layers are gated-delta layers.

    Without `layer_types`, every layer whose number from 1 is a multiple of an interval has
    attention.
    """
    step = count(c, "full_attention_interval")
    kinds = c.get("layer_types") or [LINEAR if (i + 1) % step else FULL for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ConfigError(f"config.json: layer_types must name the attention of {layers} layers")
    if other := sorted({str(k) for k in kinds} - {FULL, LINEAR}):
        raise ConfigError(
            f"config.json: layer type {other[0]!r} is not supported; supported "
            "are full and linear attention"
        )
    if FULL not in kinds:
        raise ConfigError(
            f"config.json: none of {layers} layers has {FULL}; supported are "
            "models with at least one"
        )
    return tuple(kind == LINEAR for kind in kinds)


def _delta(c: Mapping[str, Any]) -> DeltaSettings:
    d = DeltaSettings(
        key_heads=count(c, "linear_num_key_heads"),
        value_heads=count(c, "linear_num_value_heads"),
        key=count(c, "linear_key_head_dim"),
        value=count(c, "linear_value_head_dim"),
        taps=count(c, "linear_conv_kernel_dim", least=2),
    )
    if d.value_heads % d.key_heads:
        raise ConfigError(
            f"config.json: {d.value_heads} value heads cannot share {d.key_heads} key heads evenly"
        )
    # even, so that float32 state beside 16-bit rows is aligned to words
    if d.key % 2 or d.value % 2:
        raise ConfigError(
            f"config.json: heads of linear attention have {d.key} and {d.value} elements; "
            "supported are even numbers"
        )
    return d
