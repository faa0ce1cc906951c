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
from baton.engine.models.rope import Rope, rotate


class Norm:
    """RMS norm (Zhang and Sennrich 2019), statistics in float32."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., dim]."""
        return F.rms_norm(x, (x.shape[-1],), self.weight, self.eps)


class Linear:
    """y = x W^T (+ b)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self.weight, self.bias = weight, bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [rows, in] -> [rows, out]."""
        return F.linear(x, self.weight, self.bias)


class Layer:
    """One transformer layer."""

    def __init__(self, load: "Loader", config: Mapping[str, Any], index: int) -> None:
        at, eps = f"model.layers.{index}.", float(config["rms_norm_eps"])
        self.norm1 = Norm(load(at + "input_layernorm.weight"), eps)
        self.norm2 = Norm(load(at + "post_attention_layernorm.weight"), eps)
        self.qkv = load.stacked(at + "self_attn.", ("q_proj", "k_proj", "v_proj"))
        self.out = load.stacked(at + "self_attn.", ("o_proj",))
        self.gate_up = load.stacked(at + "mlp.", ("gate_proj", "up_proj"))
        self.down = load.stacked(at + "mlp.", ("down_proj",))
        self.head_norms = load.head_norms(at + "self_attn.", eps)


class Loader:
    """Reads tensors of a checkpoint in the served dtype."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, *, head_norms: bool) -> None:
        self._checkpoint, self._dtype, self._head_norms = checkpoint, dtype, head_norms

    def __call__(self, name: str) -> torch.Tensor:
        """One tensor. Raises ConfigError if the checkpoint lacks it."""
        return self._checkpoint.load(name, self._dtype)

    def stacked(self, at: str, names: Sequence[str]) -> Linear:
        """Several matrices over the same input as one."""
        weights = [self(f"{at}{n}.weight") for n in names]
        biased = f"{at}{names[0]}.bias" in self._checkpoint.tensors
        bias = torch.cat([self(f"{at}{n}.bias") for n in names]) if biased else None
        return Linear(torch.cat(weights) if len(weights) > 1 else weights[0], bias)

    def head_norms(self, at: str, eps: float) -> tuple[Norm, Norm] | None:
        """Norms of q and k heads, in families that have them."""
        if not self._head_norms:
            return None
        return Norm(self(f"{at}q_norm.weight"), eps), Norm(self(f"{at}k_norm.weight"), eps)


class LlamaModel:
    """All layers of one rank (tensor and pipeline width 1)."""

    def __init__(self, checkpoint: Checkpoint, dtype: torch.dtype, *, head_norms: bool) -> None:
        config = checkpoint.config
        if config.get("hidden_act", "silu") != "silu":
            raise ConfigError(f"activation {config['hidden_act']!r} is not supported; supported is 'silu'")
        load = Loader(checkpoint, dtype, head_norms=head_norms)
        self.heads = int(config["num_attention_heads"])
        self.kv_heads = int(config.get("num_key_value_heads") or self.heads)
        self.dim = head_dim(config)
        self.rope = Rope(config, dim=self.dim, dtype=dtype)
        self.embedding = load("model.embed_tokens.weight")
        self.vocab_size = self.embedding.shape[0]
        self.layers = [Layer(load, config, i) for i in range(int(config["num_hidden_layers"]))]
        self.norm = Norm(load("model.norm.weight"), float(config["rms_norm_eps"]))
        tied = bool(config.get("tie_word_embeddings", False))
        self.head = Linear(self.embedding if tied else load("lm_head.weight"), None)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """See Model."""
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.rope.at(positions)
        for index, layer in enumerate(self.layers):
            x = x + layer.out(self._attention(layer, index, layer.norm1(x), cos, sin, attend))
            gate, up = layer.gate_up(layer.norm2(x)).chunk(2, -1)
            x = x + layer.down(F.silu(gate) * up)
        return self.norm(x)

    def _attention(
        self, layer: Layer, index: int, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        rows = x.shape[0]
        qkv = layer.qkv(x).view(rows, self.heads + 2 * self.kv_heads, self.dim)
        q, k, v = torch.split(qkv, [self.heads, self.kv_heads, self.kv_heads], 1)
        if layer.head_norms is not None:
            q, k = layer.head_norms[0](q), layer.head_norms[1](k)
        return attend(index, rotate(q, cos, sin), rotate(k, cos, sin), v).view(rows, -1)

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

    def build(self, checkpoint: Checkpoint, placement: Placement, dtype: DType) -> LlamaModel:
        """See Family."""
        if placement.tp != 1 or placement.pp != 1:
            raise ConfigError(f"tp={placement.tp}, pp={placement.pp}: this version computes with tp=1 and pp=1")
        return LlamaModel(checkpoint, DTYPES[dtype], head_norms=self.head_norms)
