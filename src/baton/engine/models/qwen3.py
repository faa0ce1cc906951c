"""Qwen3: Qwen2 with norms over each head of q and k before the rotation instead of biases (Qwen
Team 2025)."""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.engine.models.qwen2 import Qwen2Family


class Qwen3Family(Qwen2Family):
    """Implements Family."""

    name = "Qwen3"
    architectures: Sequence[str] = ("Qwen3ForCausalLM",)
    examples = "Qwen3 0.6B to 32B (dense)"
    notes = "each head of q and k is normed"
    defaults: Mapping[str, Any] = {**Qwen2Family.defaults, "head_dim": 128}
    own_biases: Mapping[str, bool] = {"mlp": False}
    head_norms = True
