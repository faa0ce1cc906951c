"""Llama: pre-norm transformer with grouped-query attention, rotary positions and a gated MLP
(Touvron et al. 2023).

It serves Llama and SmolLM2. Other families differ in the defaults of their configs and in the names
of their weights. q, k and v are one stacked matrix, and so are gate and up.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Window,
)
from baton.engine.attention.interface import Attend, AttentionRows, Seen
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Comm
from baton.engine.models.base import DTYPES, KV, WINDOW, DraftLayer, no_draft_layer
from baton.engine.models.config import Mixture, ModelConfig, count, named_layers, number, sliding
from baton.engine.models.ends import Ends, end_tensors
from baton.engine.models.weights import Filed, Loader, Matrix, require_all
from baton.engine.ops import HeadNorms, Linear, Ops
from baton.engine.rope import Rope, longest_by_rope, rope_settings
from baton.engine.shards import Shards, require_width


class LayerWeights:
    """How a checkpoint stores one layer's weights.
    Models with other MLPs override the last three."""

    second_norm = "post_attention_layernorm"  # the norm before the MLP

    def __init__(self, c: ModelConfig) -> None:
        at, mlp = "self_attn.", "mlp."
        self.config = c
        sizes = (("q_proj", c.queries), ("k_proj", c.keys), ("v_proj", c.keys))
        self.qkv = Matrix(
            tuple(Filed(at + name, (size,)) for name, size in sizes), c.hidden, c.qkv_bias
        )
        self.out = Matrix((Filed(at + "o_proj", (c.hidden,)),), c.queries, c.out_bias)
        both = tuple(Filed(mlp + name, (c.inner,)) for name in ("gate_proj", "up_proj"))
        self.gate_up = Matrix(both, c.hidden, c.mlp_bias)
        self.down = Matrix((Filed(mlp + "down_proj", (c.hidden,)),), c.inner, c.mlp_bias)

    @property
    def norms(self) -> tuple[str, ...]:
        """The names of the norms over the hidden state."""
        outer = (
            ("post_attention_layernorm", "post_feedforward_layernorm")
            if self.config.outer_norms
            else ()
        )
        return ("input_layernorm", self.second_norm, *outer)

    def tensors(self, at: str, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of every tensor of layer `index`; names begin with `at`."""
        c = self.config
        yield from ((f"{at}{norm}.weight", (c.hidden,)) for norm in self.norms)
        for matrix in (self.qkv, self.out):
            yield from matrix.tensors(at)
        if c.head_norms:
            yield from ((f"{at}self_attn.{n}_norm.weight", (c.head_dim,)) for n in ("q", "k"))
        if c.sinks:
            yield f"{at}self_attn.sinks", (c.heads,)
        yield from self.mlp_tensors(at, index)

    def gate(self, ops: Ops) -> Linear:
        """Return the function between the MLP's two products."""
        return ops.gate

    def mlp_tensors(self, at: str, index: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of every tensor of the MLP."""
        for matrix in (self.gate_up, self.down):
            yield from matrix.tensors(at)

    def mlp(self, load: Loader, at: str, index: int, held: Shards) -> Linear:
        """Load this rank's part of the MLP; the results of the ranks of the stage are summed."""
        gate_up = load.by_outputs(at, self.gate_up, held.inner, held.inner)
        gate, down = self.gate(load.ops), load.by_inputs(at, self.down, held.inner)
        return lambda x: down(gate(gate_up(x)))


class LlamaLayer:
    """One rank's part of one transformer layer's weights."""

    def __init__(
        self, load: Loader, index: int, weights: LayerWeights, config: ModelConfig, held: Shards
    ) -> None:
        at = f"model.layers.{index}."
        self.norm1, self.norm2, *outer = (load(f"{at}{name}.weight") for name in weights.norms)
        self.after1, self.after2 = (*outer, None, None)[:2]
        self.qkv = load.by_outputs(at, weights.qkv, held.queries, held.keys, held.keys)
        self.out = load.by_inputs(at, weights.out, held.queries)
        self.mlp = weights.mlp(load, at, index, held)
        norms = [load(f"{at}self_attn.{n}_norm.weight") for n in ("q", "k") if config.head_norms]
        self.head_norms = HeadNorms(*norms, offset=config.norm_offset) if norms else None
        self.sinks = load(f"{at}self_attn.sinks", held.heads).float() if config.sinks else None
        self.seen, self.rotated = config.seen[index], config.rotated[index]


class LlamaModel:
    """One rank's part of each of its layers; `longest` is the maximum length of a request."""

    def __init__(
        self,
        config: ModelConfig,
        held: Shards,
        weights: LayerWeights,
        load: Loader,
        *,
        longest: int,
    ) -> None:
        self.ops, self.config, self.vocab_size = load.ops, config, config.vocab
        self.draft_layer: DraftLayer | None = None
        self.heads, self.kv_heads, self.dim = held.heads.size, held.kv_heads.size, config.head_dim
        self.rope = Rope(config.rope, positions=longest)
        self.window_rope = (
            self.rope if config.window_rope is None else Rope(config.window_rope, positions=longest)
        )
        self.layers = [LlamaLayer(load, i, weights, config, held) for i in held.layers]
        self.ends = Ends(
            load,
            vocab=config.vocab,
            hidden=config.hidden,
            tied=config.tied,
            eps=config.eps,
            offset=config.norm_offset,
            scale=config.embedding_scale,
            softcap=config.softcap,
        )

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor | None:
        x, add = self.ends.begin(tokens), None
        for index, layer in enumerate(self.layers):
            add = layer.out(
                self._attention(layer, index, self._norm(x, layer.norm1, add), positions, attend)
            )
            add = add if layer.after1 is None else self._norm(add, layer.after1)
            add = layer.mlp(self._norm(x, layer.norm2, add))
            add = add if layer.after2 is None else self._norm(add, layer.after2)
        return self.ends.end(x, add)

    def _norm(
        self, x: torch.Tensor, weight: torch.Tensor, add: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self.ops.norm(x, weight, self.config.eps, add=add, offset=self.config.norm_offset)

    def _attention(
        self,
        layer: LlamaLayer,
        index: int,
        x: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
    ) -> torch.Tensor:
        rows, turned = x.shape[0], self.heads + self.kv_heads
        qkv = layer.qkv(x).view(rows, turned + self.kv_heads, self.dim)
        if layer.rotated:
            rope = self.window_rope if isinstance(layer.seen, Window) else self.rope
            norms, eps = layer.head_norms, self.config.eps
            self.ops.rotate(
                qkv[:, :turned], positions, rope, queries=self.heads, norms=norms, eps=eps
            )
        if self.config.query_scale != 1.0:
            qkv[:, : self.heads] *= self.config.query_scale
        q, k, v = qkv[:, : self.heads], qkv[:, self.heads : turned], qkv[:, turned:]
        return attend(AttentionRows(q, k, v, layer.sinks), index).view(rows, -1)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        return self.ends.logits(hidden)


class LlamaFamily:
    """Implements Family; related families override what differs.

    Attributes:
        defaults: values for keys that a config lacks (those of transformers)
        own_biases: biases that the architecture always has, by name of the config's flag
    """

    name = "Llama"
    architectures: Sequence[str] = ("LlamaForCausalLM",)
    examples = "Llama 2, 3, 3.1, 3.2 (1B, 3B), 3.3; SmolLM2; TinyLlama"
    notes = "biases as the config says"
    window = "where the config has one"
    defaults: Mapping[str, Any] = {"max_position_embeddings": 2048}
    own_biases: Mapping[str, bool] = {}
    head_norms = False

    def complete(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config with defaults for missing keys."""
        common = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": False}
        found = {**common, **self.defaults, **config}
        count(found, "max_position_embeddings")
        return found

    def longest(self, config: Mapping[str, Any]) -> tuple[int, int]:
        return longest_by_rope(self.complete(config))

    def read(self, config: Mapping[str, Any], *, longest: int | None = None) -> ModelConfig:
        c = self.complete(config)
        if c["hidden_act"] != "silu":
            raise ConfigError(
                f"activation {c['hidden_act']!r} is not supported; supported is 'silu'"
            )
        layers, heads, hidden = (
            count(c, f"{n}") for n in ("num_hidden_layers", "num_attention_heads", "hidden_size")
        )
        kv_heads = (
            heads if c.get("num_key_value_heads") is None else count(c, "num_key_value_heads")
        )
        if heads % kv_heads:
            raise ConfigError(
                f"config.json: {heads} query heads cannot share {kv_heads} key "
                "and value heads evenly"
            )
        dim = hidden // heads if c.get("head_dim") is None else count(c, "head_dim")
        biases = {
            "qkv": bool(c.get("attention_bias")),
            "out": bool(c.get("attention_bias")),
            "mlp": bool(c.get("mlp_bias")),
        }
        biases |= self.own_biases
        mixture = self.mixture(c, layers)
        return ModelConfig(
            vocab=count(c, "vocab_size"),
            hidden=hidden,
            inner=0
            if mixture is not None and all(mixture.sparse)
            else count(c, "intermediate_size"),
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
            mixture=mixture,
        )

    def seen(self, config: Mapping[str, Any], layers: int) -> tuple[Seen, ...]:
        """Return the positions that the rows of each layer attend to."""
        return named_layers(config, layers) or (sliding(config),) * layers

    def rotated(self, config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
        """Return which layers rotate q and k."""
        return (True,) * layers

    def mixture(self, config: Mapping[str, Any], layers: int) -> Mixture | None:
        """Return the settings of its experts; None = it has none."""
        return None

    def weights(self, config: ModelConfig) -> LayerWeights:
        """Return how the checkpoint stores a layer's weights."""
        return LayerWeights(config)

    def require_width(self, config: Mapping[str, Any], tp: int) -> None:
        require_width(self.read(config), tp)

    def with_draft_layer(self, config: Mapping[str, Any], table: StateTable) -> StateTable:
        raise no_draft_layer(self.name, "its checkpoints have no layer that predicts more tokens")

    def table(self, config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
        """Return the table: K and V of every layer; layers with a window have their own group."""
        c = self.read(config)
        windows = {seen for seen in c.seen if isinstance(seen, Window)}
        if len(windows) > 1:
            raise ConfigError(
                f"config.json: windows of {sorted(w.tokens for w in windows)} "
                "tokens; supported is one length"
            )
        groups, specs = [], []
        kinds: list[tuple[str, GroupName, Seen]] = [
            ("kv", KV, Full()),
            *(("swa", WINDOW, window) for window in windows),
        ]
        for name, group, extent in kinds:
            layers = tuple(i for i, seen in enumerate(c.seen) if seen == extent)
            if layers:
                groups.append(Group(group, Unit.PAGE, extent))
                specs.append(
                    StateSpec(
                        name,
                        group,
                        layers,
                        ("k", "v"),
                        heads=c.kv_heads,
                        row=c.head_dim,
                        dtype=dtype,
                    )
                )
        return StateTable(c.layers, block_tokens, tuple(groups), tuple(specs))

    def build(
        self,
        checkpoint: Checkpoint,
        placement: Placement,
        dtype: DType,
        ops: Ops,
        comm: Comm,
        *,
        longest: int | None = None,
    ) -> LlamaModel:
        positions = longest or self.longest(checkpoint.config)[0]
        config = self.read(checkpoint.config, longest=positions)
        held = Shards(config, placement)
        weights = self.weights(config)
        require_all(checkpoint, list(_tensors(config, weights)), tied=config.tied)
        load = Loader(checkpoint, DTYPES[dtype], ops, comm)
        return LlamaModel(config, held, weights, load, longest=positions)


def _tensors(c: ModelConfig, weights: LayerWeights) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield every tensor that is read, with its shape."""
    yield from end_tensors(c.vocab, c.hidden, tied=c.tied)
    for index in range(c.layers):
        yield from weights.tensors(f"model.layers.{index}.", index)
