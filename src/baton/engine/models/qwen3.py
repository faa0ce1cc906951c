"""Qwen3: Llama with norms over each head of q and k before the rotation (Qwen Team 2025)."""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.errors import ConfigError
from baton.core.state import DType, Placement
from baton.engine.checkpoint import Checkpoint
from baton.engine.models.llama import LlamaFamily, LlamaModel
from baton.engine.ops import Ops


class Qwen3Family(LlamaFamily):
    """Implements Family."""

    architectures: Sequence[str] = ("Qwen3ForCausalLM",)
    head_norms = True

    def build(self, checkpoint: Checkpoint, placement: Placement, dtype: DType, ops: Ops) -> LlamaModel:
        """See Family."""
        if sliding := _sliding_layers(checkpoint.config):
            raise ConfigError(f"layers {sliding} attend to a sliding window; this version serves full attention in all layers")
        return super().build(checkpoint, placement, dtype, ops)


def _sliding_layers(config: Mapping[str, Any]) -> list[int]:
    """Layers that do not see the whole sequence: listed one by one, or in older configs all from one on."""
    layers = int(config["num_hidden_layers"])
    if kinds := config.get("layer_types"):
        return [i for i, kind in enumerate(kinds) if kind != "full_attention"]
    if not config.get("use_sliding_window") or config.get("sliding_window") is None:
        return []
    return list(range(int(config.get("max_window_layers", 28)), layers))
