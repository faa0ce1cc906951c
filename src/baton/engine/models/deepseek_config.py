"""config.json of a DeepSeek-like model, read and checked once."""

from collections.abc import Mapping
from typing import Any

import msgspec

from baton.core.errors import ConfigError
from baton.engine.models.config import count, number
from baton.engine.models.indexer import IndexSettings
from baton.engine.models.routing import Routing
from baton.engine.rope import RopeSettings, longest_by_rope, rope_settings, score_factor

DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "kv_lora_rank": 512,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
}


class LatentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Multi-head latent attention. Sizes in elements.

    Attributes:
        query_rank: elements of the compressed query; None = it is not compressed
        rank: elements of the compressed keys and values
        still: elements of a head's query and key that are not rotated
        turned: elements of a head's query and key that are rotated
        value: elements of a head's value
        interleaved: whether the checkpoint rotates adjacent elements, instead of halves
        biased: whether products from and to the hidden state have biases
        scale: factor of the scores
    """

    heads: int
    query_rank: int | None
    rank: int
    still: int
    turned: int
    value: int
    interleaved: bool
    biased: bool
    scale: float
    rope: RopeSettings

    @property
    def row(self) -> int:
        """Elements of a cached row."""
        return self.rank + self.turned


class DeepseekConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a model's computation depends on, beside its weights.

    Two workers with equal values and equal weights compute the same.

    Attributes:
        inner: columns of a dense layer's MLP
        expert_inner, shared_inner: columns of one expert, and of all shared experts together
        dense: for each layer, whether its MLP is dense
        index: settings of the index of sparse attention; None = all positions are attended to
    """

    vocab: int
    hidden: int
    inner: int
    layers: int
    eps: float
    tied: bool
    mlp_bias: bool
    attention: LatentSettings
    dense: tuple[bool, ...]
    routing: Routing
    expert_inner: int
    shared_inner: int
    index: IndexSettings | None = None


def latent_settings(c: Mapping[str, Any], *, interleaved: bool, longest: int) -> LatentSettings:
    """Return the attention settings of a complete config. Raises ConfigError."""
    still, turned = count(c, "qk_nope_head_dim"), count(c, "qk_rope_head_dim")
    if turned % 2:
        raise ConfigError(
            f"config.json: qk_rope_head_dim is {turned}; it must be even, as "
            "its elements are rotated in pairs"
        )
    return LatentSettings(
        heads=count(c, "num_attention_heads"),
        query_rank=None if c.get("q_lora_rank") is None else count(c, "q_lora_rank"),
        rank=count(c, "kv_lora_rank"),
        still=still,
        turned=turned,
        value=count(c, "v_head_dim"),
        interleaved=interleaved,
        biased=bool(c.get("attention_bias")),
        scale=(still + turned) ** -0.5 * score_factor(c, dim=turned),
        rope=rope_settings(c, dim=turned, longest=longest),
    )


def read_deepseek(
    c: Mapping[str, Any],
    routing: Routing,
    *,
    interleaved: bool,
    longest: int | None,
    index: IndexSettings | None,
) -> DeepseekConfig:
    """Read a complete config. Raises ConfigError if a setting is not supported."""
    if c["hidden_act"] != "silu":
        raise ConfigError(f"activation {c['hidden_act']!r} is not supported; supported is 'silu'")
    if c.get("moe_layer_freq", 1) != 1:
        raise ConfigError(
            f"config.json: moe_layer_freq is {c['moe_layer_freq']}; supported "
            "is 1, experts in every later layer"
        )
    expert_inner = count(c, "moe_intermediate_size")
    shared = 0 if c.get("n_shared_experts") is None else count(c, "n_shared_experts", least=0)
    layers = count(c, "num_hidden_layers")
    return DeepseekConfig(
        vocab=count(c, "vocab_size"),
        hidden=count(c, "hidden_size"),
        inner=count(c, "intermediate_size"),
        layers=layers,
        eps=number(c, "rms_norm_eps"),
        tied=bool(c["tie_word_embeddings"]),
        mlp_bias=bool(c.get("mlp_bias")),
        attention=latent_settings(
            c, interleaved=interleaved, longest=longest or longest_by_rope(c)[0]
        ),
        dense=_plain_layers(c, layers),
        routing=routing,
        expert_inner=expert_inner,
        shared_inner=shared * expert_inner,
        index=index,
    )


def _plain_layers(c: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """Return which layers are dense: by `mlp_layer_types`,
    else the first `first_k_dense_replace`."""
    kinds = c.get("mlp_layer_types")
    if kinds is None:
        first = count(c, "first_k_dense_replace", least=0)
        return tuple(i < first for i in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {"dense", "sparse"}:
        raise ConfigError(
            f"config.json: mlp_layer_types must say 'dense' or 'sparse' for each of {layers} layers"
        )
    return tuple(kind == "dense" for kind in kinds)
