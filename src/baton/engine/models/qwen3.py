"""Qwen3: Llama with norms over each head of q and k before the rotation (Qwen Team 2025)."""

from collections.abc import Sequence

from baton.engine.models.llama import LlamaFamily


class Qwen3Family(LlamaFamily):
    """Implements Family."""

    architectures: Sequence[str] = ("Qwen3ForCausalLM",)
    head_norms = True
