"""Mistral: Llama with a sliding window in all layers (Jiang et al. 2023), which later versions do
without."""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.engine.models.llama import LlamaFamily


class MistralFamily(LlamaFamily):
    """Implements Family."""

    name = "Mistral"
    architectures: Sequence[str] = ("MistralForCausalLM", "Mistral3ForConditionalGeneration")
    examples = "Mistral 7B v0.1 to v0.3, Mistral Nemo, Mistral Small 3, 3.1; Devstral Small"
    notes = (
        "without images; a window of 4096 where the config names none; tekken.json is read, but "
        "holds no chat template"
    )
    defaults: Mapping[str, Any] = {
        "max_position_embeddings": 131_072,
        "num_key_value_heads": 8,
        "sliding_window": 4096,
    }
    own_biases: Mapping[str, bool] = {"qkv": False, "out": False, "mlp": False}
