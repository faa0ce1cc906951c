"""DeepSeek-V2 and -V3: latent attention; after the first layers, routed and shared experts (2024).

Kimi-K2 is a DeepSeek-V3 of other sizes. V2 and V3 differ in the choice of experts (routing.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
)
from baton.engine.attention.interface import Attend
from baton.engine.attention.latent import LATENT
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Comm
from baton.engine.models.base import DTYPES, KV, NEXT, no_draft_layer
from baton.engine.models.config import count
from baton.engine.models.deepseek_config import DEFAULTS, DeepseekConfig, read_deepseek
from baton.engine.models.ends import Ends, end_tensors
from baton.engine.models.experts import ExpertFiles, Router
from baton.engine.models.indexer import Indexer, IndexSettings, indexer_tensors
from baton.engine.models.latent import LatentAttention, LatentRopes, latent_tensors
from baton.engine.models.mtp import (
    DEEPSEEK,
    Mixer,
    MtpLayer,
    has_draft_rows,
    require_one_stage,
    with_draft_rows,
)
from baton.engine.models.routing import Routing, by_sigmoid, by_softmax, read_routing
from baton.engine.models.stack import Layer, Stack
from baton.engine.models.weights import Filed, Loader, Matrix, require_all
from baton.engine.ops import Linear, Ops
from baton.engine.rope import longest_by_rope

GATE, BIAS, SHARED = "mlp.gate.weight", "mlp.gate.e_score_correction_bias", "mlp.shared_experts."


class GatedMlp:
    """A gated MLP: silu(gate) * up, then down.

    `at` is the prefix of its tensors' names; `inner` the columns on all ranks of the stage
    together.
    """

    def __init__(self, load: Loader, at: str, hidden: int, inner: int, *, biased: bool) -> None:
        tp, rank = load.comm.tp, load.comm.tp_rank
        held = Interval(rank * inner // tp, (rank + 1) * inner // tp)
        both, down = gated_matrices(hidden, inner, biased=biased)
        self._gate_up = load.by_outputs(at, both, held, held)
        self._down, self._gate = load.by_inputs(at, down, held), load.ops.gate

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute [rows, hidden] from x [rows, hidden]; the same on every rank of the stage."""
        return self._down(self._gate(self._gate_up(x)))


def gated_matrices(hidden: int, inner: int, *, biased: bool) -> tuple[Matrix, Matrix]:
    """Return the stacked gate and up matrix, and the down matrix."""
    both = tuple(Filed(name, (inner,)) for name in ("gate_proj", "up_proj"))
    return Matrix(both, hidden, biased), Matrix((Filed("down_proj", (hidden,)),), inner, biased)


class MixedMlp:
    """An MLP with routed and shared experts."""

    def __init__(self, load: Loader, at: str, c: DeepseekConfig, route: Router) -> None:
        self._route = route
        self._experts = experts(c).load(load, at, load.ops.gate)
        self._shared: Linear | None = None
        if c.shared_inner:
            self._shared = GatedMlp(load, at + SHARED, c.hidden, c.shared_inner, biased=c.mlp_bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the output, as GatedMlp does."""
        routed = self._experts(x, *self._route(x))
        return routed if self._shared is None else routed + self._shared(x)


def experts(c: DeepseekConfig) -> ExpertFiles:
    """Return how the checkpoint stores the experts."""
    return ExpertFiles(
        "mlp.experts",
        "gate_proj",
        "up_proj",
        "down_proj",
        c.routing.experts,
        c.hidden,
        c.expert_inner,
    )


class DeepseekModel(Stack[LatentAttention]):
    """One rank's part of the model: its part of each of its layers."""

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor | None:
        chosen: torch.Tensor | None = None  # the positions that the previous layer attended to

        def mix(index: int, attention: LatentAttention, x: torch.Tensor) -> torch.Tensor:
            nonlocal chosen
            add, chosen = attention(x, index, positions, attend, chosen)
            return add

        return self.run(tokens, mix)


def alone(attention: LatentAttention) -> Mixer:
    """Return attention that takes no positions chosen by a layer before, and hands none on."""
    return lambda x, layer, positions, attend: attention(x, layer, positions, attend, None)[0]


class DeepseekV3Family:
    """Implements Family; DeepSeek-V2 overrides the choice of experts.

    Attributes:
        defaults: values for keys that a config lacks (those of transformers)
    """

    name = "DeepSeek-V3"
    architectures: Sequence[str] = ("DeepseekV3ForCausalLM",)
    examples = "DeepSeek-V3, -V3.1, -R1; Kimi-K2; Moonlight"
    notes = "latent attention, absorbed; Kimi's tiktoken.model is read without its code"
    window = "none"
    defaults: Mapping[str, Any] = {
        **DEFAULTS,
        "max_position_embeddings": 4096,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "norm_topk_prob": True,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "rope_interleave": True,
    }

    def complete(self, config: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the config with defaults for missing keys."""
        found = {**self.defaults, **config}
        count(found, "max_position_embeddings")
        return found

    def longest(self, config: Mapping[str, Any]) -> tuple[int, int]:
        return longest_by_rope(self.complete(config))

    def read(self, config: Mapping[str, Any], *, longest: int | None = None) -> DeepseekConfig:
        c = self.complete(config)
        return read_deepseek(
            c,
            self.routing(c),
            interleaved=self.interleaved(c),
            longest=longest,
            index=self.index(c),
        )

    def index(self, config: Mapping[str, Any]) -> IndexSettings | None:
        """Return the settings of the index; None = all
        positions are attended to. Raises ConfigError."""
        return None

    def routing(self, config: Mapping[str, Any]) -> Routing:
        """Return the settings of the routing. Raises ConfigError."""
        return read_routing(
            config,
            grouped=True,
            least=2 if count(config, "topk_group") < count(config, "n_group") else 1,
        )

    def interleaved(self, config: Mapping[str, Any]) -> bool:
        """Whether adjacent elements are rotated against each other, instead of halves."""
        return bool(config["rope_interleave"])

    def router(self, load: Loader, at: str, c: DeepseekConfig) -> Router:
        """Load the router of a layer; its scores are
        float32, since rounding may change the choice."""
        logits, bias = load.ops.linear(load.exactly(at + GATE), None), load.exactly(at + BIAS)
        return lambda x: by_sigmoid(logits(x.float()), bias, c.routing)

    def router_tensors(self, at: str, c: DeepseekConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the tensors that `router` reads."""
        yield at + GATE, (c.routing.experts, c.hidden)
        yield at + BIAS, (c.routing.experts,)

    def require_width(self, config: Mapping[str, Any], tp: int) -> None:
        _require_width(self.read(config), tp)

    def table(self, config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
        """Return the table: one row for each token and
        layer, replicated on each rank of a stage."""
        c = self.read(config)
        spec = StateSpec(
            LATENT, KV, tuple(range(c.layers)), ("c",), heads=1, row=c.attention.row, dtype=dtype
        )
        return StateTable(c.layers, block_tokens, (Group(KV, Unit.PAGE, Full()),), (spec,))

    def with_draft_layer(self, config: Mapping[str, Any], table: StateTable) -> StateTable:
        if not count({NEXT: 0, **config}, NEXT, least=0):
            raise no_draft_layer(self.name, f"config.json has no {NEXT}, or 0")
        return with_draft_rows(table, self.read(config).hidden)

    def build(
        self,
        checkpoint: Checkpoint,
        placement: Placement,
        dtype: DType,
        ops: Ops,
        comm: Comm,
        *,
        longest: int | None = None,
    ) -> DeepseekModel:
        positions = longest or self.longest(checkpoint.config)[0]
        c = self.read(checkpoint.config, longest=positions)
        heads, held = _heads(c, placement), placement.layer_interval
        drafts = has_draft_rows(placement.table)
        if drafts:
            require_one_stage(self.name, placement)
        wanted = list(self.tensors(c, drafts=drafts))
        require_all(checkpoint, wanted, tied=c.tied)
        load, ropes = (
            Loader(checkpoint, DTYPES[dtype], ops, comm),
            LatentRopes(c.attention, longest=positions),
        )

        def layer(index: int) -> Layer[LatentAttention]:
            at = f"model.layers.{index}."
            norms = [load(f"{at}{name}_layernorm.weight") for name in ("input", "post_attention")]
            chooses = None
            # the draft layer, which is behind the last one, has experts and an index of its own
            later = index == c.layers
            if c.index is not None and (later or c.index.own[index]):
                chooses = Indexer(load, at, c.index, ropes.keys)
            attention = LatentAttention(load, at, c.attention, c.hidden, heads, ropes, chooses)
            if not later and c.dense[index]:
                return Layer(
                    norms,
                    attention,
                    GatedMlp(load, f"{at}mlp.", c.hidden, c.inner, biased=c.mlp_bias),
                )
            return Layer(norms, attention, MixedMlp(load, at, c, self.router(load, at, c)))

        ends = Ends(load, vocab=c.vocab, hidden=c.hidden, tied=c.tied, eps=c.eps)
        own = range(held.start, min(held.end, c.layers))
        model = DeepseekModel([layer(i) for i in own], ends, ops, vocab=c.vocab, eps=c.eps)
        if drafts:
            at, last = f"model.layers.{c.layers}.", layer(c.layers)
            own_index = Layer((last.norm1, last.norm2), alone(last.mixer), last.mlp)
            model.draft_layer = MtpLayer(
                load, DEEPSEEK, at, own_index, ends, index=c.layers, hidden=c.hidden, eps=c.eps
            )
        return model

    def tensors(
        self, c: DeepseekConfig, *, drafts: bool = False
    ) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every tensor that is read, with its shape."""
        yield from end_tensors(c.vocab, c.hidden, tied=c.tied)
        if drafts:
            yield from DEEPSEEK.tensors(f"model.layers.{c.layers}.", c.hidden)
        for index, dense in enumerate((*c.dense, *[False] * drafts)):
            at = f"model.layers.{index}."
            yield from (
                (f"{at}{name}_layernorm.weight", (c.hidden,))
                for name in ("input", "post_attention")
            )
            yield from latent_tensors(at, c.attention, c.hidden)
            has_index = c.index is not None and (index == c.layers or c.index.own[index])
            if has_index and c.index is not None and c.attention.query_rank is not None:
                yield from indexer_tensors(
                    at, c.index, hidden=c.hidden, query_rank=c.attention.query_rank
                )
            for inner, path in ((c.inner, "mlp."),) if dense else ((c.shared_inner, SHARED),):
                for matrix in gated_matrices(c.hidden, inner, biased=c.mlp_bias) if inner else ():
                    yield from matrix.tensors(at + path)
            if not dense:
                yield from experts(c).tensors(at)
                yield from self.router_tensors(at, c)


def _heads(c: DeepseekConfig, placement: Placement) -> Interval:
    """Return a rank's heads. Raises ConfigError if heads,
    columns or experts cannot be divided evenly."""
    tp, heads = placement.tp, c.attention.heads
    _require_width(c, tp)
    return Interval(placement.tp_rank * heads // tp, (placement.tp_rank + 1) * heads // tp)


def _require_width(c: DeepseekConfig, tp: int) -> None:
    heads, experts = c.attention.heads, c.routing.experts
    columns = [
        n for n, used in ((c.inner, any(c.dense)), (c.shared_inner, not all(c.dense))) if used
    ]
    counts = {
        "attention heads": [heads],
        "columns of the MLP": columns,
        "experts": [] if all(c.dense) else [experts],
    }
    fits = [
        n
        for n in range(1, heads + 1)
        if all(size % n == 0 for sizes in counts.values() for size in sizes)
    ]
    for what, sizes in counts.items():
        for size in sizes:
            if size % tp:
                raise ConfigError(
                    f"{size} {what} cannot be divided over tensor parallel "
                    f"width {tp}; widths that fit: {fits}"
                )


class DeepseekV2Family(DeepseekV3Family):
    """Implements Family."""

    name = "DeepSeek-V2"
    architectures: Sequence[str] = ("DeepseekV2ForCausalLM",)
    examples = "DeepSeek-V2, -V2-Lite, -V2.5, DeepSeek-Coder-V2"
    notes = "latent attention, absorbed"
    defaults: Mapping[str, Any] = {
        **DEFAULTS,
        "max_position_embeddings": 2048,
        "moe_intermediate_size": 1407,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "topk_method": "greedy",
        "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 0,
    }

    def routing(self, config: Mapping[str, Any]) -> Routing:
        grouped = {"greedy": False, "group_limited_greedy": True}
        if config["topk_method"] not in grouped:
            raise ConfigError(
                f"config.json: topk_method {config['topk_method']!r} is not supported; "
                f"supported are {', '.join(grouped)}"
            )
        return read_routing(config, grouped=grouped[config["topk_method"]], least=1)

    def interleaved(self, config: Mapping[str, Any]) -> bool:
        return True

    def router(self, load: Loader, at: str, c: DeepseekConfig) -> Router:
        logits = load.ops.linear(load.exactly(at + GATE), None)
        return lambda x: by_softmax(logits(x.float()), c.routing)

    def router_tensors(self, at: str, c: DeepseekConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield at + GATE, (c.routing.experts, c.hidden)
