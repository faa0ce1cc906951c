"""config.json of a Llama-like model, read and checked once: all that its computation depends on."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from baton.core.errors import ConfigError
from baton.core.memory.state import Full, Window
from baton.engine.attention.interface import Seen
from baton.engine.rope import RopeSettings


class Mixture(msgspec.Struct, frozen=True, kw_only=True):
    """A model's routed experts.

    Attributes:
        experts: of a layer
        used: by each row
        inner: elements inside an expert
        sparse: per layer, whether its MLP is a mixture
        renormalised: weights of the experts used sum to 1
        limit: inputs of the gate are clamped to it; None: they are not
        alpha: gain of the gate's sigmoid
    """

    experts: int
    used: int
    inner: int
    sparse: tuple[bool, ...]
    renormalised: bool = True
    limit: float | None = None
    alpha: float = 1.0


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one model computes. Sizes in elements; two workers with equal values and equal weights compute the same.

    Attributes:
        inner: of dense MLPs; 0 where there is none
        seen: per layer, which positions a row attends to
        rotated: per layer, whether q and k are rotated (SmolLM3 has layers without positions)
        window_rope: of layers with a window; None: the rope of all layers
        tied: the output matrix is the embedding
        head_norms: each head of q and k is normed before the rotation
        norm_offset: added to every norm's weights, which Gemma stores as distances from one
        outer_norms: what attention and the MLP find is normed before it is added
        embedding_scale, query_scale: what embeddings, and rotated queries before they are divided by sqrt(head_dim), are
            multiplied by
        softcap: logits x become softcap * tanh(x / softcap); None: they stay
        sinks: each head has a score without a value that takes part in its softmax
        mixture: of layers whose MLP is one
    """

    vocab: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    tied: bool
    rope: RopeSettings
    seen: tuple[Seen, ...]
    rotated: tuple[bool, ...]
    qkv_bias: bool
    out_bias: bool
    mlp_bias: bool
    head_norms: bool
    window_rope: RopeSettings | None = None
    norm_offset: float = 0.0
    outer_norms: bool = False
    embedding_scale: float = 1.0
    query_scale: float = 1.0
    softcap: float | None = None
    sinks: bool = False
    mixture: Mixture | None = None

    @property
    def queries(self) -> int:
        """Elements of all query heads of a row."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Elements of all key heads of a row, which are as many as those of its values."""
        return self.kv_heads * self.head_dim


def identity(weights: str, config: msgspec.Struct) -> str:
    """What a worker computes, hex: its weights' identity and its config in one digest. Two workers with the same weights that
    stretch positions differently, or see other windows, would continue each other's requests wrongly."""
    encoded = msgspec.json.encode(config, order="deterministic")
    return blake2b(weights.encode() + b"\0" + encoded, digest_size=32).hexdigest()


def count(config: Mapping[str, Any], name: str, *, least: int = 1) -> int:
    """A whole number of a config. Raises ConfigError if it is missing, none, or too small."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"config.json: {name} is {value!r}; expected is a whole number from {least} on")
    return value


def number(config: Mapping[str, Any], name: str) -> float:
    """A positive number of a config. Raises ConfigError if it is missing or none."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"config.json: {name} is {value!r}; expected is a positive number")
    return float(value)


def named_layers(config: Mapping[str, Any], layers: int) -> tuple[Seen, ...] | None:
    """By `layer_types`, where a config has them.

    Raises:
        ConfigError: a kind of attention that is not supported, or layers with a window of which nothing says how long it is
    """
    kinds = config.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ConfigError(f"config.json: layer_types must name the attention of {layers} layers")
    if other := sorted({str(k) for k in kinds} - {"full_attention", "sliding_attention"}):
        raise ConfigError(f"config.json: layer type {other[0]!r} is not supported; supported are full and sliding attention")
    window = sliding(config)
    if window == Full() and "sliding_attention" in kinds:
        raise ConfigError("config.json: layer_types names layers with a window, but sliding_window is null or switched off")
    return tuple(window if kind == "sliding_attention" else Full() for kind in kinds)


def sliding(config: Mapping[str, Any]) -> Seen:
    """What a layer sees by `sliding_window`: null means no window. Raises ConfigError if it is no length."""
    if config.get("sliding_window") is None:
        return Full()
    return Window(count(config, "sliding_window"))
