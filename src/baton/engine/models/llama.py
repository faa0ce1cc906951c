"""Llama: pre-norm transformer with grouped-query attention, rotary positions and a gated MLP (Touvron et al. 2023).

Serves Llama and SmolLM2, and Qwen3 (per-head norms of q and k) through `qwen3.py`. q, k, v and gate, up are one matrix each.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from baton.core.errors import ConfigError
from baton.core.state import DType, Placement, StateTable
from baton.engine.checkpoint import Checkpoint
from baton.engine.models.base import DTYPES, Attend, grouped_query_table, head_dim
from baton.engine.ops import HeadNorms, Linear, Ops
from baton.engine.rope import Rope


class Layer:
    """One transformer layer's weights."""

    def __init__(self, load: "Loader", index: int) -> None:
        at = f"model.layers.{index}."
        self.norm1 = load(at + "input_layernorm.weight")
        self.norm2 = load(at + "post_attention_layernorm.weight")
        self.qkv = load.stacked(at + "self_attn.", ("q_proj", "k_proj", "v_proj"))
        self.out = load.stacked(at + "self_attn.", ("o_proj",))
        self.gate_up = load.stacked(at + "mlp.", ("gate_proj", "up_proj"))
        self.down = load.stacked(at + "mlp.", ("down_proj",))
        self.head_norms = load.head_norms(at + "self_attn.")


class Loader:
    """Reads tensors of a checkpoint in the served dtype, each once."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, ops: Ops, *, head_norms: bool) -> None:
        self._checkpoint, self._dtype, self._ops, self._head_norms = checkpoint, dtype, ops, head_norms

    def __call__(self, name: str) -> torch.Tensor:
        """One tensor. Raises ConfigError if the checkpoint lacks it."""
        return self._checkpoint.load(name, self._dtype)

    def stacked(self, at: str, names: Sequence[str]) -> Linear:
        """Several matrices over the same input as one."""
        weights = [self(f"{at}{n}.weight") for n in names]
        biased = f"{at}{names[0]}.bias" in self._checkpoint.tensors
        bias = torch.cat([self(f"{at}{n}.bias") for n in names]) if biased else None
        return self._ops.linear(torch.cat(weights) if len(weights) > 1 else weights[0], bias)

    def head_norms(self, at: str) -> HeadNorms | None:
        """Norms of q and k heads, in families that have them."""
        if not self._head_norms:
            return None
        return HeadNorms(self(f"{at}q_norm.weight"), self(f"{at}k_norm.weight"))


class LlamaModel:
    """All layers of one rank (tensor and pipeline width 1)."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, ops: Ops, *, head_norms: bool) -> None:
        config = checkpoint.config
        if config.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"activation {config['hidden_act']!r} is not supported; supported is 'silu'")
        load = Loader(checkpoint, dtype, ops, head_norms=head_norms)
        self.ops, self.eps = ops, float(config["rms_norm_eps"])
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config.get("num_key_value_heads") or self.heads)
        self.dim = head_dim(config)
        self.rope = Rope(config, dim=self.dim)
        self.embedding = load("model.embed_tokens.weight")
        self.vocab_size = self.embedding.shape[0]
        self.layers = [Layer(load, i) for i in range(int(config["num_hidden_layers"]))]
        self.last_norm = load("model.norm.weight")
        tied = bool(config.get("tie_word_embeddings", False))
        self.head = ops.linear(self.embedding if tied else load("lm_head.weight"), None)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """See Model."""
        x, add = F.embedding(tokens, self.embedding), None
        for index, layer in enumerate(self.layers):
            normed = self.ops.norm(x, layer.norm1, self.eps, add=add)
            add = layer.out(self._attention(layer, index, normed, positions, attend))
            normed = self.ops.norm(x, layer.norm2, self.eps, add=add)
            add = layer.down(self.ops.gate(layer.gate_up(normed)))
        return self.ops.norm(x, self.last_norm, self.eps, add=add)

    def _attention(self, layer: Layer, index: int, x: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        rows, turned = x.shape[0], self.heads + self.kv_heads
        qkv = layer.qkv(x).view(rows, turned + self.kv_heads, self.dim)
        self.ops.rotate(qkv[:, :turned], positions, self.rope, queries=self.heads, norms=layer.head_norms, eps=self.eps)
        return attend(index, qkv[:, : self.heads], qkv[:, self.heads : turned], qkv[:, turned:]).view(rows, -1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Model."""
        return self.head(hidden).float()


class LlamaFamily:
    """Implements Family."""

    architectures: Sequence[str] = ("LlamaForCausalLM",)
    head_norms = False

    def table(self, config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
        """See Family."""
        return grouped_query_table(config, block_tokens=block_tokens, dtype=dtype)

    def build(self, checkpoint: Checkpoint, placement: Placement, dtype: DType, ops: Ops) -> LlamaModel:
        """See Family."""
        if placement.tp != 1 or placement.pp != 1:
            raise ConfigError(f"tp={placement.tp}, pp={placement.pp}: this version computes with tp=1 and pp=1")
        return LlamaModel(checkpoint, DTYPES[dtype], ops, head_norms=self.head_norms)
