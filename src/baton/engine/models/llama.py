"""Llama: pre-norm transformer with grouped-query attention, rotary positions and a gated MLP (Touvron et al. 2023).

Serves Llama and SmolLM2; the families beside it differ in what their configs mean and in how their weights are filed.
q, k, v and gate, up are one matrix each.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import structlog
import torch
import torch.nn.functional as F

from baton.core.errors import ConfigError
from baton.core.state import DType, Full, Group, Placement, StateSpec, StateTable, Unit
from baton.engine.attention.interface import Seen
from baton.engine.checkpoint import Checkpoint
from baton.engine.models.base import DTYPES, KV, Attend
from baton.engine.models.config import ModelConfig, count, named_layers, number, sliding
from baton.engine.models.weights import LISTED, Loader, Matrix, require, unread
from baton.engine.ops import HeadNorms, Ops
from baton.engine.rope import Rope, longest_by_rope, rope_settings

log = structlog.get_logger()


class LayerWeights:
    """The products of one layer, by what they compute."""

    def __init__(self, c: ModelConfig) -> None:
        at, mlp = "self_attn.", "mlp."
        rows = ((at + "q_proj", c.queries), (at + "k_proj", c.keys), (at + "v_proj", c.keys))
        self.qkv = Matrix(rows, c.hidden, c.qkv_bias)
        self.out = Matrix(((at + "o_proj", c.hidden),), c.queries, c.out_bias)
        self.gate_up = Matrix(((mlp + "gate_proj", c.inner), (mlp + "up_proj", c.inner)), c.hidden, c.mlp_bias)
        self.down = Matrix(((mlp + "down_proj", c.hidden),), c.inner, c.mlp_bias)


class Layer:
    """One transformer layer's weights."""

    def __init__(self, load: Loader, index: int, weights: LayerWeights, config: ModelConfig) -> None:
        at = f"model.layers.{index}."
        self.norm1 = load(at + "input_layernorm.weight")
        self.norm2 = load(at + "post_attention_layernorm.weight")
        self.qkv, self.out = load.linear(at, weights.qkv), load.linear(at, weights.out)
        self.gate_up, self.down = load.linear(at, weights.gate_up), load.linear(at, weights.down)
        norms = [load(f"{at}self_attn.{n}_norm.weight") for n in ("q", "k") if config.head_norms]
        self.head_norms = HeadNorms(*norms) if norms else None
        self.seen, self.rotated = config.seen[index], config.rotated[index]


class LlamaModel:
    """All layers of one rank (tensor and pipeline width 1). longest: positions that are served."""

    def __init__(self, config: ModelConfig, weights: LayerWeights, load: Loader, ops: Ops, *, longest: int) -> None:
        self.ops, self.eps = ops, config.eps
        self.heads, self.kv_heads, self.dim = config.heads, config.kv_heads, config.head_dim
        self.rope = Rope(config.rope, positions=longest)
        self.embedding = load("model.embed_tokens.weight")
        self.vocab_size = config.vocab
        self.layers = [Layer(load, i, weights, config) for i in range(config.layers)]
        self.last_norm = load("model.norm.weight")
        self.head = ops.linear(self.embedding if config.tied else load("lm_head.weight"), None)

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
        if layer.rotated:
            self.ops.rotate(qkv[:, :turned], positions, self.rope, queries=self.heads, norms=layer.head_norms, eps=self.eps)
        q, k, v = qkv[:, : self.heads], qkv[:, self.heads : turned], qkv[:, turned:]
        return attend(index, q, k, v, layer.seen).view(rows, -1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """See Model."""
        return self.head(hidden).float()


class LlamaFamily:
    """Implements Family; what others of its kind change is overridden there.

    Attributes:
        defaults: what a config means where it is silent (those of transformers)
        own_biases: biases that the architecture has whatever its config says, by name of the flag
    """

    name = "Llama"
    architectures: Sequence[str] = ("LlamaForCausalLM",)
    examples = "Llama 2, 3, 3.1, 3.2, 3.3; SmolLM2; TinyLlama"
    notes = "biases as the config says"
    window = "where the config has one"
    defaults: Mapping[str, Any] = {"max_position_embeddings": 2048}
    own_biases: Mapping[str, bool] = {}
    head_norms = False

    def complete(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """The config with what it leaves out."""
        common = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
        found = {**common, **self.defaults, **config}
        count(found, "max_position_embeddings")
        return found

    def longest(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """See Family."""
        return longest_by_rope(self.complete(config))

    def read(self, config: Mapping[str, Any], *, longest: int | None = None) -> ModelConfig:
        """See Family."""
        c = self.complete(config)
        if c["hidden_act"] != "silu":
            raise ConfigError(f"activation {c['hidden_act']!r} is not supported; supported is 'silu'")
        layers, heads, hidden = (count(c, f"{n}") for n in ("num_hidden_layers", "num_attention_heads", "hidden_size"))
        kv_heads = heads if c.get("num_key_value_heads") is None else count(c, "num_key_value_heads")
        if heads % kv_heads:
            raise ConfigError(f"config.json: {heads} query heads cannot share {kv_heads} key and value heads evenly")
        dim = hidden // heads if c.get("head_dim") is None else count(c, "head_dim")
        biases = {"qkv": bool(c.get("attention_bias")), "out": bool(c.get("attention_bias")), "mlp": bool(c.get("mlp_bias"))}
        biases |= self.own_biases
        return ModelConfig(
            vocab=count(c, "vocab_size"),
            hidden=hidden,
            inner=count(c, "intermediate_size"),
            layers=layers,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=dim,
            eps=number(c, "rms_norm_eps"),
            tied=bool(c["tie_word_embeddings"]),
            rope=rope_settings(c, dim=dim, longest=longest or longest_by_rope(c)[0]),
            seen=self.seen(c, layers),
            rotated=self.rotated(c, layers),
            qkv_bias=biases["qkv"],
            out_bias=biases["out"],
            mlp_bias=biases["mlp"],
            head_norms=self.head_norms,
        )

    def seen(self, config: Mapping[str, Any], layers: int) -> tuple[Seen, ...]:
        """Which positions the rows of each layer attend to."""
        return named_layers(config, layers) or (sliding(config),) * layers

    def rotated(self, config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
        """Which layers rotate q and k."""
        return (True,) * layers

    def weights(self, config: ModelConfig) -> LayerWeights:
        """How a layer's matrices are filed."""
        return LayerWeights(config)

    def table(self, config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
        """See Family: K and V of every layer. Layers with a window keep all positions too, for now."""
        c = self.read(config)
        layers = tuple(range(c.layers))
        spec = StateSpec("kv", KV, layers, ("k", "v"), heads=c.kv_heads, row=c.head_dim, dtype=dtype)
        return StateTable(c.layers, block_tokens, (Group(KV, Unit.PAGE, Full()),), (spec,))

    def build(
        self, checkpoint: Checkpoint, placement: Placement, dtype: DType, ops: Ops, *, longest: int | None = None
    ) -> LlamaModel:
        """See Family."""
        if placement.tp != 1 or placement.pp != 1:
            raise ConfigError(f"tp={placement.tp}, pp={placement.pp}: this version computes with tp=1 and pp=1")
        positions = longest or self.longest(checkpoint.config)[0]
        config = self.read(checkpoint.config, longest=positions)
        weights = self.weights(config)
        wanted = list(_tensors(config, weights))
        require(checkpoint, wanted)
        if others := unread(checkpoint, wanted, tied=config.tied):
            log.warning("tensors_not_used", count=len(others), first=others[:LISTED])
        return LlamaModel(config, weights, Loader(checkpoint, DTYPES[dtype], ops), ops, longest=positions)


def _tensors(c: ModelConfig, weights: LayerWeights) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Every tensor that is read, with its shape."""
    yield "model.embed_tokens.weight", (c.vocab, c.hidden)
    for index in range(c.layers):
        at = f"model.layers.{index}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}{norm}.weight", (c.hidden,)
        for matrix in (weights.qkv, weights.out, weights.gate_up, weights.down):
            yield from matrix.tensors(at)
        if c.head_norms:
            yield from ((f"{at}self_attn.{n}_norm.weight", (c.head_dim,)) for n in ("q", "k"))
    yield "model.norm.weight", (c.hidden,)
    if not c.tied:
        yield "lm_head.weight", (c.vocab, c.hidden)
