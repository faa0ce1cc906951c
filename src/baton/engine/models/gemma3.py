"""Gemma 3: layers with a window and layers without, each kind with a rope of its own (Gemma
Team 2025).

Differences from Llama: norms before and after attention and MLP, whose weights are stored as
differences from 1; norms of heads; embeddings times sqrt(hidden); scores over
sqrt(query_pre_attn_scalar); GELU in the gate.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import torch
import torch.nn.functional as F

from baton.core.errors import ConfigError
from baton.engine.attention.interface import Seen
from baton.engine.models.config import ModelConfig, count, named_layers, number
from baton.engine.models.llama import LayerWeights, LlamaFamily
from baton.engine.ops import Linear, Ops
from baton.engine.rope import rope_settings

LOCAL, GLOBAL = "sliding_attention", "full_attention"


class Gemma3Weights(LayerWeights):
    """Four norms in a layer, and GELU."""

    second_norm = "pre_feedforward_layernorm"

    def gate(self, ops: Ops) -> Linear:
        return gelu_gate


def gelu_gate(x: torch.Tensor) -> torch.Tensor:
    """Compute gelu(first half of the columns) * second half, with the tanh approximation of GELU.

    Hendrycks and Gimpel 2016.
    """
    first, second = x.float().chunk(2, -1)
    return (F.gelu(first, approximate="tanh") * second).to(x.dtype)


class Gemma3Family(LlamaFamily):
    """Implements Family."""

    name = "Gemma 3"
    architectures: Sequence[str] = (
        "Gemma3ForCausalLM",
        "Gemma3ForConditionalGeneration",
    )
    examples = "Gemma 3 270M, 1B, 4B, 12B, 27B; models derived from Gemma 3"
    notes = "without images; ropes of their own for local and global layers"
    window = "five of six layers, or by layer_types"
    defaults: Mapping[str, Any] = {
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "query_pre_attn_scalar": 256,
        "hidden_activation": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }
    head_norms = True

    def complete(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The activation has a name of its own, and the rope of global layers is the config's."""
        found = super().complete(config)
        if found["hidden_activation"] != "gelu_pytorch_tanh":
            raise ConfigError(
                f"activation {found['hidden_activation']!r} is not supported; "
                "supported is 'gelu_pytorch_tanh'"
            )
        return {**found, "hidden_act": "silu", **_rope_of(found, GLOBAL, "rope_theta", 1e6)}

    def read(self, config: Mapping[str, Any], *, longest: int | None = None) -> ModelConfig:
        c, found = self.complete(config), super().read(config, longest=longest)
        for name in ("attn_logit_softcapping", "use_bidirectional_attention"):
            if c.get(name):
                raise ConfigError(
                    f"config.json: {name} is {c[name]!r}, which is not supported for Gemma 3"
                )
        local = {
            **c,
            "rope_scaling": None,
            "rope_parameters": None,
            **_rope_of(config, LOCAL, "rope_local_base_freq", 1e4),
        }
        return msgspec.structs.replace(
            found,
            window_rope=rope_settings(
                local, dim=found.head_dim, longest=longest or self.longest(config)[0]
            ),
            norm_offset=1.0,
            outer_norms=True,
            embedding_scale=found.hidden**0.5,
            query_scale=(found.head_dim / number(c, "query_pre_attn_scalar")) ** 0.5,
            softcap=None
            if c.get("final_logit_softcapping") is None
            else number(c, "final_logit_softcapping"),
        )

    def seen(self, config: Mapping[str, Any], layers: int) -> tuple[Seen, ...]:
        """Return what each layer sees; without `layer_types`, every sixth layer has no window."""
        pattern = count(config, "sliding_window_pattern")
        kinds = [LOCAL if (i + 1) % pattern else GLOBAL for i in range(layers)]
        return (
            named_layers({**config, "layer_types": config.get("layer_types") or kinds}, layers)
            or ()
        )

    def weights(self, config: ModelConfig) -> Gemma3Weights:
        return Gemma3Weights(config)


def _rope_of(config: Mapping[str, Any], kind: str, name: str, theta: float) -> dict[str, Any]:
    """Return the rope of one kind of layer; newer
    configs have it by kind, older ones by other keys."""
    by_kind = config.get("rope_parameters") or {}
    if kind not in by_kind:
        return {"rope_theta": config.get(name) or theta}
    own = by_kind[kind] or {}
    return {"rope_parameters": own, "rope_theta": own.get("rope_theta") or theta}
