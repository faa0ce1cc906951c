"""DeepSeek-V3.2 and GLM-5: DeepSeek-V3 whose layers attend to the positions that an index chooses
(DeepSeek-AI 2025).

The published V3.2 multiplies index queries and keys by one orthogonal matrix and rounds both to
fp8. The matrix does not change their products, and fp8 only serves speed; both are left out, as in
transformers.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.errors import ConfigError
from baton.core.memory.state import DType, Placement, StateSpec, StateTable
from baton.engine.attention.index import INDEX
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Comm
from baton.engine.models.base import KV
from baton.engine.models.config import count
from baton.engine.models.deepseek import DeepseekModel, DeepseekV3Family
from baton.engine.models.indexer import IndexSettings
from baton.engine.ops import Ops


class DeepseekV32Family(DeepseekV3Family):
    """Implements Family."""

    name = "DeepSeek-V3.2"
    architectures: Sequence[str] = ("DeepseekV32ForCausalLM",)
    examples = "DeepSeek-V3.2, -V3.2-Exp"
    notes = (
        "latent attention to the positions that an index chooses; chats of V3.2, which has no "
        "template, are rendered in its published format"
    )
    defaults: Mapping[str, Any] = {
        **DeepseekV3Family.defaults,
        "max_position_embeddings": 163_840,
        "index_topk": 2048,
        "index_head_dim": 128,
        "index_n_heads": 64,
    }
    turns_neighbours = False  # whether the index rotates adjacent elements

    def interleaved(self, config: Mapping[str, Any]) -> bool:
        """Return True: these models rotate adjacent elements, and their configs do not say so."""
        return True

    def index(self, config: Mapping[str, Any]) -> IndexSettings:
        dim, turned = count(config, "index_head_dim"), count(config, "qk_rope_head_dim")
        if dim < turned:
            raise ConfigError(
                f"config.json: index_head_dim {dim} is less than the {turned} "
                "elements that are rotated"
            )
        count(config, "q_lora_rank")  # index queries are computed from compressed queries
        return IndexSettings(
            heads=count(config, "index_n_heads"),
            dim=dim,
            count=count(config, "index_topk"),
            interleaved=self.turns_neighbours,
            own=self.own(config, count(config, "num_hidden_layers")),
        )

    def own(self, config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
        """Return which layers have an index. Raises ConfigError."""
        return (True,) * layers

    def table(self, config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
        """Return the table; index keys are beside the latent rows, in the same pages."""
        table, index = (
            super().table(config, block_tokens=block_tokens, dtype=dtype),
            self.index(self.complete(config)),
        )
        layers = tuple(i for i, own in enumerate(index.own) if own)
        keys = StateSpec(INDEX, KV, layers, ("k",), heads=1, row=index.dim, dtype=dtype)
        return StateTable(table.num_layers, block_tokens, table.groups, (*table.specs, keys))

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
        first, own = (
            placement.layer_interval.start,
            self.index(self.complete(checkpoint.config)).own,
        )
        if not own[first]:
            raise ConfigError(
                f"layer {first} attends to what the index of an earlier layer chose, so a "
                f"stage of pipeline width {placement.pp} "
                "cannot begin with it; choose another width"
            )
        return super().build(checkpoint, placement, dtype, ops, comm, longest=longest)


class GlmMoeDsaFamily(DeepseekV32Family):
    """Implements Family. A `shared` layer uses the
    positions chosen by the last `full` layer before it."""

    name = "GLM-5"
    architectures: Sequence[str] = ("GlmMoeDsaForCausalLM",)
    examples = "GLM-5, GLM-5.1, GLM-5.2"
    notes = "latent attention to the positions that an index chooses; layers may share one"
    defaults: Mapping[str, Any] = {
        **DeepseekV32Family.defaults,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 202_752,
        "q_lora_rank": 2048,
        "qk_nope_head_dim": 192,
        "v_head_dim": 256,
        "n_group": 1,
        "topk_group": 1,
        "index_n_heads": 32,
    }
    turns_neighbours = True

    def own(self, config: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
        """Decide by `indexer_types`, else `index_topk_pattern`,
        else every `index_topk_freq` layers."""
        kinds = config.get("indexer_types") or config.get("index_topk_pattern")
        if kinds is None:
            rhythm = {"index_topk_freq": 1, "index_skip_topk_offset": 2, **config}
            every, offset = (
                count(rhythm, name, least=0)
                for name in ("index_topk_freq", "index_skip_topk_offset")
            )
            return tuple(max(i - offset + 1, 0) % max(every, 1) == 0 for i in range(layers))
        own = {"full": True, "F": True, "shared": False, "S": False}
        if (
            not isinstance(kinds, list | str)
            or len(kinds) != layers
            or not set(kinds) <= set(own)
            or not own[kinds[0]]
        ):
            raise ConfigError(
                f"config.json: indexer_types must say 'full' or 'shared' for each of {layers} "
                "layers, and 'full' for the first"
            )
        return tuple(own[kind] for kind in kinds)
