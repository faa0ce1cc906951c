"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and a window in the upper layers where it is
switched on (2024)."""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.memory.state import Full
from baton.engine.attention.interface import Seen
from baton.engine.models.config import count, named_layers, sliding
from baton.engine.models.llama import LlamaFamily


class Qwen2Family(LlamaFamily):
    """Implements Family."""

    name = "Qwen2"
    architectures: Sequence[str] = ("Qwen2ForCausalLM",)
    examples = "Qwen2, Qwen2.5, Qwen2.5-Coder, DeepSeek-R1-Distill-Qwen"
    notes = "biases on q, k, v"
    window = "upper layers, if switched on"
    defaults: Mapping[str, Any] = {
        "max_position_embeddings": 32_768,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }
    own_biases: Mapping[str, bool] = {"qkv": True, "out": False, "mlp": False}

    def seen(self, config: Mapping[str, Any], layers: int) -> tuple[Seen, ...]:
        """Return what each layer sees; published configs have a window that is switched off."""
        if not config.get("use_sliding_window"):
            return named_layers({**config, "sliding_window": None}, layers) or (Full(),) * layers
        below = min(layers, count(config, "max_window_layers", least=0))
        return named_layers(config, layers) or (Full(),) * below + (sliding(config),) * (
            layers - below
        )
