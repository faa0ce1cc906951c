"""Qwen3-Next: three gated-delta layers to one of gated attention, and mixtures of experts (Qwen
Team 2025).

A layer is a mixer over the sequence, of one of the two kinds, and an MLP. Norms' weights are stored
as differences from 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from baton.core.errors import ConfigError
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Interval,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
)
from baton.engine.attention.interface import Attend
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Comm
from baton.engine.models.base import DTYPES, KV, NEXT, SLOT, no_draft_layer
from baton.engine.models.config import Mixture, count
from baton.engine.models.deepseek import GatedMlp, gated_matrices
from baton.engine.models.ends import Ends, end_tensors
from baton.engine.models.experts import GATE_UP, ExpertFiles, SoftmaxRouter, StackedExpertFiles
from baton.engine.models.gated_attention import OFFSET, GatedAttention, gated_attention_tensors
from baton.engine.models.gated_delta import (
    ByKeyHead,
    DeltaFiles,
    GatedDelta,
    delta_specs,
    delta_tensors,
)
from baton.engine.models.mixtral import require_used
from baton.engine.models.mtp import (
    QWEN,
    Mixer,
    MtpLayer,
    has_draft_rows,
    require_one_stage,
    with_draft_rows,
)
from baton.engine.models.qwen3_next_config import (
    Qwen3NextConfig,
    Qwen3NextShards,
    read_qwen3_next,
    require_width,
)
from baton.engine.models.stack import Layer, Stack
from baton.engine.models.weights import Filed, Loader, Matrix, require_all
from baton.engine.ops import Ops, sigmoid
from baton.engine.rope import Rope, longest_by_rope

MLP, SHARED, EXPERTS = "mlp.", "mlp.shared_expert.", "mlp.experts"
LAYERS, DRAFT_LAYER = "model.layers.", "mtp."  # what the names of their tensors begin with


class SharedMlp:
    """An MLP with routed experts and one shared expert, whose output is weighted by a gate."""

    def __init__(
        self, load: Loader, at: str, c: Qwen3NextConfig, m: Mixture, experts: ExpertFiles
    ) -> None:
        whole = load.by_outputs(at, _router(c, m), Interval(0, m.experts))
        self._route = SoftmaxRouter(whole, used=m.used, renormalised=m.renormalised)
        self._experts = experts.load(load, at, load.ops.gate)
        self._shared = GatedMlp(load, at + SHARED, c.hidden, c.shared_inner, biased=False)
        self._weigh = load.by_outputs(at, _weigh(c), Interval(0, 1))

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute [rows, hidden] from x [rows, hidden]; the same on every rank of the stage."""
        shared = self._shared(x) * sigmoid(self._weigh(x))
        return shared.add_(self._experts(x, *self._route(x)))


def _router(c: Qwen3NextConfig, m: Mixture) -> Matrix:
    return Matrix((Filed(MLP + "gate", (m.experts,)),), c.hidden)


def _weigh(c: Qwen3NextConfig) -> Matrix:
    return Matrix((Filed(MLP + "shared_expert_gate", (1,)),), c.hidden)


def _experts(c: Qwen3NextConfig, m: Mixture, checkpoint: Checkpoint, at: str) -> ExpertFiles:
    """Return how the checkpoint stores the experts whose names begin with `at`: those of Qwen3.5
    are stacked, unless they are quantised."""
    stacked = any(
        name.startswith(at) and name.endswith(f"{EXPERTS}.{GATE_UP}") for name in checkpoint.tensors
    )
    kind = StackedExpertFiles if stacked else ExpertFiles
    return kind(EXPERTS, "gate_proj", "up_proj", "down_proj", m.experts, c.hidden, m.inner)


class FiledLayer(NamedTuple):
    """One layer in a checkpoint: what the names of its tensors begin with, whether it is a
    gated-delta layer, and how its experts are stored; None if its MLP is dense."""

    at: str
    linear: bool
    experts: ExpertFiles | None


def layers_of(c: Qwen3NextConfig, checkpoint: Checkpoint, *, drafts: bool) -> list[FiledLayer]:
    """Return the model's layers, and with `drafts` the one behind them, which has attention and,
    where the model has any, experts."""
    m, found = c.mixture, list[FiledLayer]()
    experts = None if m is None else _experts(c, m, checkpoint, LAYERS)
    for index, linear in enumerate(c.linear):
        mixed = m is not None and m.sparse[index]
        found.append(FiledLayer(f"{LAYERS}{index}.", linear, experts if mixed else None))
    if drafts:
        own = None if m is None else _experts(c, m, checkpoint, DRAFT_LAYER)
        found.append(FiledLayer(f"{DRAFT_LAYER}layers.0.", False, own))
    return found


class Qwen3NextModel(Stack[Mixer]):
    """One rank's part of the model: its part of each of its layers."""

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor | None:
        return self.run(tokens, lambda index, mixer, x: mixer(x, index, positions, attend))


class Qwen3NextFamily:
    """Implements Family; Qwen3.5 overrides what differs.

    Attributes:
        defaults: values for keys that a config lacks (those of transformers)
        files: how checkpoints store the tensors of gated-delta layers
        next_layers: key of a config that says how many draft layers there are
    """

    name = "Qwen3-Next"
    architectures: Sequence[str] = ("Qwen3NextForCausalLM",)
    examples = "Qwen3-Next-80B-A3B"
    notes = "gated-delta layers: one slot a request; mixture of experts with a shared one"
    window = "none"
    files: DeltaFiles = ByKeyHead()
    next_layers = NEXT
    defaults: Mapping[str, Any] = {
        "max_position_embeddings": 32_768,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "num_key_value_heads": 2,
        "head_dim": 256,
        "full_attention_interval": 4,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
        "num_experts_per_tok": 10,
        "num_experts": 512,
        "norm_topk_prob": True,
    }

    def complete(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config with defaults for missing keys."""
        found = {**self.defaults, **config}
        count(found, "max_position_embeddings")
        if "partial_rotary_factor" not in (
            config.get("rope_parameters") or config.get("rope_scaling") or {}
        ):
            found.setdefault("partial_rotary_factor", 0.25)
        return found

    def longest(self, config: Mapping[str, Any]) -> tuple[int, int]:
        return longest_by_rope(self.complete(config))

    def read(self, config: Mapping[str, Any], *, longest: int | None = None) -> Qwen3NextConfig:
        c = self.complete(config)
        return read_qwen3_next(c, mixture=self.mixture(c), longest=longest)

    def mixture(self, config: Mapping[str, Any]) -> Mixture | None:
        """Return the settings of its experts; None = it has none. Raises ConfigError."""
        step, layers = count(config, "decoder_sparse_step"), count(config, "num_hidden_layers")
        dense = config["mlp_only_layers"] or []
        if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
            raise ConfigError(
                f"config.json: mlp_only_layers is {dense!r}; expected is a list of layers"
            )
        return require_used(
            Mixture(
                experts=count(config, "num_experts"),
                used=count(config, "num_experts_per_tok"),
                inner=count(config, "moe_intermediate_size"),
                sparse=tuple(i not in dense and (i + 1) % step == 0 for i in range(layers)),
                renormalised=bool(config["norm_topk_prob"]),
            )
        )

    def require_width(self, config: Mapping[str, Any], tp: int) -> None:
        require_width(self.read(config), tp)

    def with_draft_layer(self, config: Mapping[str, Any], table: StateTable) -> StateTable:
        # as in vLLM: one, where a config does not say
        if not count({self.next_layers: 1, **config}, self.next_layers, least=0):
            raise no_draft_layer(self.name, f"config.json has {self.next_layers} 0")
        if config.get("mtp_use_dedicated_embeddings"):
            raise no_draft_layer(self.name, "its draft layer has an embedding of its own")
        return with_draft_rows(table, self.read(config).hidden)

    def table(self, config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
        """Return the table: K and V in pages; recurrent
        state and convolutions' past inputs in a slot."""
        c = self.read(config)
        full, linear = (
            tuple(i for i, x in enumerate(c.linear) if x is kind) for kind in (False, True)
        )
        groups = [Group(KV, Unit.PAGE, Full())]
        specs = [
            StateSpec("kv", KV, full, ("k", "v"), heads=c.kv_heads, row=c.head_dim, dtype=dtype)
        ]
        if linear:
            groups.append(Group(SLOT, Unit.SLOT, Whole()))
            specs += delta_specs(c.delta, linear, SLOT, dtype)
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
    ) -> Qwen3NextModel:
        positions = longest or self.longest(checkpoint.config)[0]
        c = self.read(checkpoint.config, longest=positions)
        held, stage = Qwen3NextShards(c, placement), placement.layer_interval
        drafts = has_draft_rows(placement.table)
        if drafts:
            require_one_stage(self.name, placement)
        layout = layers_of(c, checkpoint, drafts=drafts)
        require_all(checkpoint, list(self.tensors(c, layout)), tied=c.tied)
        load, rope = Loader(checkpoint, DTYPES[dtype], ops, comm), Rope(c.rope, positions=positions)

        def layer(filed: FiledLayer) -> Layer[Mixer]:
            at = filed.at
            norms = [load(f"{at}{name}_layernorm.weight") for name in ("input", "post_attention")]
            mixer = (
                GatedDelta(load, at, c, held, self.files)
                if filed.linear
                else GatedAttention(load, at, c, held, rope)
            )
            if c.mixture is not None and filed.experts is not None:
                return Layer(norms, mixer, SharedMlp(load, at, c, c.mixture, filed.experts))
            return Layer(norms, mixer, GatedMlp(load, at + MLP, c.hidden, c.inner, biased=False))

        ends = Ends(load, vocab=c.vocab, hidden=c.hidden, tied=c.tied, eps=c.eps, offset=OFFSET)
        own = layout[stage.start : min(stage.end, c.layers)]
        model = Qwen3NextModel(
            [layer(filed) for filed in own], ends, ops, vocab=c.vocab, eps=c.eps, offset=OFFSET
        )
        if drafts:
            model.draft_layer = MtpLayer(
                load,
                QWEN,
                DRAFT_LAYER,
                layer(layout[c.layers]),
                ends,
                index=c.layers,
                hidden=c.hidden,
                eps=c.eps,
                offset=OFFSET,
            )
        return model

    def tensors(
        self, c: Qwen3NextConfig, layout: Sequence[FiledLayer]
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every tensor that is read, with its shape."""
        yield from end_tensors(c.vocab, c.hidden, tied=c.tied)
        if len(layout) > c.layers:
            yield from QWEN.tensors(DRAFT_LAYER, c.hidden)
        for at, linear, experts in layout:
            yield from (
                (f"{at}{name}_layernorm.weight", (c.hidden,))
                for name in ("input", "post_attention")
            )
            yield from (
                delta_tensors(at, c.delta, c.hidden, self.files)
                if linear
                else gated_attention_tensors(at, c)
            )
            mixed = experts is not None
            for matrix in gated_matrices(
                c.hidden, c.shared_inner if mixed else c.inner, biased=False
            ):
                yield from matrix.tensors(at + (SHARED if mixed else MLP))
            if c.mixture is not None and experts is not None:
                yield from experts.tensors(at)
                yield from (*_router(c, c.mixture).tensors(at), *_weigh(c).tensors(at))
