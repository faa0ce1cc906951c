"""config.json of a Llama-like model, read and checked once."""

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import msgspec

from baton.core.errors import ConfigError
from baton.core.memory.state import Full, Window
from baton.engine.attention.interface import Seen
from baton.engine.rope import LARGEST, RopeSettings


class Mixture(msgspec.Struct, frozen=True, kw_only=True):
    """A model's routed experts.

    Attributes:
        experts: number of experts of a layer
        used: number of experts for each row
        inner: inner size of an expert
        sparse: for each layer, whether its MLP is a mixture
        renormalised: whether the weights of the experts used are scaled to sum to 1
        limit: inputs of the gate are clamped to it; None = no clamp
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
    """Everything that a model's computation depends on, beside its weights. Sizes in elements.

    Two workers with equal values and equal weights compute the same.

    Attributes:
        inner: inner size of dense MLPs; 0 = there are none
        seen: for each layer, the positions that a row attends to
        rotated: for each layer, whether q and k are rotated (SmolLM3 has layers without positions)
        window_rope: rope of layers with a window; None = that of all layers
        tied: whether the output matrix is the embedding
        head_norms: whether each head of q and k is normalised before the rotation
        norm_offset: added to every norm's weights, which Gemma stores as differences from 1
        outer_norms: whether the outputs of attention and MLP are normalised before they are added
        embedding_scale: factor of embeddings
        query_scale: factor of rotated queries, before they are divided by sqrt(head_dim)
        softcap: logits x become softcap * tanh(x / softcap); None = unchanged
        sinks: whether each head has a score without a value in its softmax
        mixture: experts of layers whose MLP is a mixture
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
        """The number of elements of all query heads of a row."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """The number of elements of all key heads of a row; values have as many."""
        return self.kv_heads * self.head_dim


def identity(weights: str, config: msgspec.Struct) -> str:
    """Return a digest, in hex, of the weights' identity and the config.

    Workers with the same weights but different rope scalings or windows would continue each other's
    requests wrongly, so the identity covers the config as well.
    """
    encoded = msgspec.json.encode(config, order="deterministic")
    return blake2b(weights.encode() + b"\0" + encoded, digest_size=32).hexdigest()


def count(config: Mapping[str, Any], name: str, *, least: int = 1) -> int:
    """Return a whole number of a config. Raises
    ConfigError if it is missing, invalid or too small."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(
            f"config.json: {name} is {value!r}; expected is a whole number from {least} on"
        )
    return value


def number(config: Mapping[str, Any], name: str) -> float:
    """Return a positive number of a config. Raises ConfigError if it is missing or invalid."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LARGEST:
        raise ConfigError(
            f"config.json: {name} is {str(value)[:80]}; expected is a positive number below "
            f"{LARGEST:g}"
        )
    return float(value)


def named_layers(config: Mapping[str, Any], layers: int) -> tuple[Seen, ...] | None:
    """Return what each layer sees, from `layer_types`; None if the config does not have it.

    Raises:
        ConfigError: a kind of attention is not supported, or the length of a window is missing
    """
    kinds = config.get("layer_types")
    if kinds is None:
        return None
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise ConfigError(f"config.json: layer_types must name the attention of {layers} layers")
    if other := sorted({str(k) for k in kinds} - {"full_attention", "sliding_attention"}):
        raise ConfigError(
            f"config.json: layer type {other[0]!r} is not supported; supported "
            "are full and sliding attention"
        )
    window = sliding(config)
    if window == Full() and "sliding_attention" in kinds:
        raise ConfigError(
            "config.json: layer_types names layers with a window, but "
            "sliding_window is null or switched off"
        )
    return tuple(window if kind == "sliding_attention" else Full() for kind in kinds)


def sliding(config: Mapping[str, Any]) -> Seen:
    """Return what a layer sees, from `sliding_window`; null = no window. Raises ConfigError."""
    if config.get("sliding_window") is None:
        return Full()
    return Window(count(config, "sliding_window"))
