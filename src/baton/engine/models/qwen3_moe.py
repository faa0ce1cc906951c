"""Qwen3 with mixtures of experts, in all layers or in some (Qwen Team 2025)."""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.errors import ConfigError
from baton.core.memory.state import Full
from baton.engine.attention.interface import Seen
from baton.engine.models.config import Mixture, ModelConfig, count, sliding
from baton.engine.models.mixtral import MixtureWeights, require_used
from baton.engine.models.qwen3 import Qwen3Family


class Qwen3MoeFamily(Qwen3Family):
    """Implements Family."""

    name = "Qwen3-MoE"
    architectures: Sequence[str] = ("Qwen3MoeForCausalLM",)
    examples = "Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder"
    notes = "mixture of experts, by decoder_sparse_step and mlp_only_layers"
    window = "all layers, if switched on"
    defaults: Mapping[str, Any] = {
        **Qwen3Family.defaults,
        "head_dim": None,
        "num_key_value_heads": 4,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 768,
        "num_experts_per_tok": 8,
        "num_experts": 128,
        "norm_topk_prob": False,
        "mlp_only_layers": [],
    }

    def seen(self, config: Mapping[str, Any], layers: int) -> tuple[Seen, ...]:
        """Return what each layer sees: the same for all; `max_window_layers` is ignored."""
        return (sliding(config) if config.get("use_sliding_window") else Full(),) * layers

    def mixture(self, config: Mapping[str, Any], layers: int) -> Mixture:
        step, dense = count(config, "decoder_sparse_step"), config["mlp_only_layers"] or []
        if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
            raise ConfigError(
                f"config.json: mlp_only_layers is {dense!r}; expected is a list of layers"
            )
        named = "num_experts" if "num_local_experts" not in config else "num_local_experts"
        return require_used(
            Mixture(
                experts=count(config, named),
                used=count(config, "num_experts_per_tok"),
                inner=count(config, "moe_intermediate_size"),
                sparse=tuple(i not in dense and (i + 1) % step == 0 for i in range(layers)),
                renormalised=bool(config["norm_topk_prob"]),
            )
        )

    def weights(self, config: ModelConfig) -> MixtureWeights:
        return MixtureWeights(config, path="mlp", names=("gate_proj", "up_proj", "down_proj"))
