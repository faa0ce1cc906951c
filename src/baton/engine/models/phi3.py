"""Phi-3: Llama whose checkpoints have q, k, v in one matrix, and gate, up in one (Abdin et al.
2024).

Its rope may rotate only a part of each head, and may be scaled by longrope.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.engine.models.config import ModelConfig
from baton.engine.models.llama import LayerWeights, LlamaFamily
from baton.engine.models.weights import Filed, Matrix


class Phi3Weights(LayerWeights):
    """Weights with one tensor for each product."""

    def __init__(self, c: ModelConfig) -> None:
        super().__init__(c)
        self.qkv = Matrix((Filed("self_attn.qkv_proj", (c.queries, c.keys, c.keys)),), c.hidden)
        self.gate_up = Matrix((Filed("mlp.gate_up_proj", (c.inner, c.inner)),), c.hidden)


class Phi3Family(LlamaFamily):
    """Implements Family."""

    name = "Phi-3"
    architectures: Sequence[str] = ("Phi3ForCausalLM",)
    examples = "Phi-3-mini, Phi-3-medium, Phi-3.5-mini, Phi-4, Phi-4-mini"
    notes = "longrope factors chosen by --max-model-len"
    defaults: Mapping[str, Any] = {"max_position_embeddings": 4096, "rms_norm_eps": 1e-5}
    own_biases: Mapping[str, bool] = {"qkv": False, "out": False, "mlp": False}

    def complete(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Complete the config; the default original length is 4096."""
        found = super().complete(config)
        rope = found.get("rope_parameters") or found.get("rope_scaling") or {}
        if (
            found.get("original_max_position_embeddings") is None
            and "original_max_position_embeddings" not in rope
        ):
            return {**found, "original_max_position_embeddings": 4096}
        return found

    def weights(self, config: ModelConfig) -> LayerWeights:
        return Phi3Weights(config)
