"""Qwen3.5 text: Qwen3-Next with projections stored by kind, and dense or mixture MLPs (2026)."""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.engine.models.config import Mixture
from baton.engine.models.gated_delta import ByKind, DeltaFiles
from baton.engine.models.qwen3_next import Qwen3NextFamily

NEXT_LAYERS = "mtp_num_hidden_layers"


class Qwen35Family(Qwen3NextFamily):
    """Implements Family."""

    name = "Qwen3.5"
    architectures: Sequence[str] = (
        "Qwen3_5ForCausalLM",
        "Qwen3_5ForConditionalGeneration",
    )
    examples = "Qwen3.5 0.8B to 27B (dense), Qwen3.6 27B"
    notes = "without images; gated-delta layers: one slot a request"
    files: DeltaFiles = ByKind()
    next_layers = NEXT_LAYERS
    defaults: Mapping[str, Any] = {**Qwen3NextFamily.defaults, "num_key_value_heads": 4}

    def mixture(self, config: Mapping[str, Any]) -> Mixture | None:
        return None


class Qwen35MoeFamily(Qwen3NextFamily):
    """Implements Family."""

    name = "Qwen3.5-MoE"
    architectures: Sequence[str] = (
        "Qwen3_5MoeForCausalLM",
        "Qwen3_5MoeForConditionalGeneration",
    )
    examples = "Qwen3.5 35B-A3B to 397B-A17B, Qwen3.6 35B-A3B"
    notes = (
        "without images; gated-delta layers: one slot a request; mixture of experts with a shared "
        "one"
    )
    files: DeltaFiles = ByKind()
    next_layers = NEXT_LAYERS
    defaults: Mapping[str, Any] = {
        **Qwen3NextFamily.defaults,
        "num_experts": 256,
        "num_experts_per_tok": 8,
    }
