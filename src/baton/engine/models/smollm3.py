"""SmolLM3: Llama in which every fourth layer has no positions (NoPE; Yang et al. 2025, Bakouch et
al. 2025)."""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.errors import ConfigError
from baton.core.memory.state import Full
from baton.engine.attention.interface import Seen
from baton.engine.models.config import count, named_layers, sliding
from baton.engine.models.llama import LlamaFamily


class SmolLM3Family(LlamaFamily):
    """Implements Family."""

    name = "SmolLM3"
    architectures: Sequence[str] = ("SmolLM3ForCausalLM",)
    examples = "SmolLM3-3B"
    notes = "every fourth layer without positions"
    window = "layers without positions, if switched on"
    defaults: Mapping[str, Any] = {
        "max_position_embeddings": 32_768,
        "num_key_value_heads": 4,
        "rope_theta": 2_000_000.0,
        "no_rope_layer_interval": 4,
        "tie_word_embeddings": True,
    }

    def rotated(self, config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
        """Return which layers rotate: a 1 in `no_rope_layers`
        means, despite its name, that one does."""
        flags = config.get("no_rope_layers")
        if flags is None:
            interval = count(config, "no_rope_layer_interval")
            return tuple((i + 1) % interval != 0 for i in range(layers))
        if not isinstance(flags, list) or len(flags) < layers:
            raise ConfigError(
                f"config.json: no_rope_layers must have a 0 or a 1 for each of {layers} layers"
            )
        return tuple(bool(flag) for flag in flags[:layers])

    def seen(self, config: Mapping[str, Any], layers: int) -> tuple[Seen, ...]:
        """Return what each layer sees; without `layer_types`,
        layers without positions have a window."""
        if named := named_layers(config, layers):
            return named
        window = sliding(config) if config.get("use_sliding_window") else Full()
        return tuple(Full() if rotated else window for rotated in self.rotated(config, layers))
