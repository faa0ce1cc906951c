"""What a model family offers the engine, and the table of families."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch

from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.state import DType, Full, Group, Placement, StateSpec, StateTable, Unit
from baton.engine.checkpoint import Checkpoint
from baton.engine.ops import Ops

KV = GroupName("full")
DTYPES: Mapping[DType, torch.dtype] = {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.F16: torch.float16}

# (layer on this rank, q [rows, heads, dim], k, v [rows, kv heads, dim]) -> [rows, heads, dim]
Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Model(Protocol):
    """One rank's part of a network. q, k and v given to `attend` are views of one tensor: a row's heads are adjacent."""

    vocab_size: int

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Hidden states after the last norm. tokens, positions: int64 [rows]; returns [rows, hidden]."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """float32 [rows, vocab]."""
        ...


class Family(Protocol):
    """One architecture family."""

    architectures: Sequence[str]

    def table(self, config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
        """What it caches."""
        ...

    def build(self, checkpoint: Checkpoint, placement: Placement, dtype: DType, ops: Ops) -> Model:
        """Load one rank's weights. Raises ConfigError for a setting of the config that is not supported."""
        ...


def grouped_query_table(config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
    """K and V of every layer: what all grouped-query models cache."""
    layers, heads = int(config["num_hidden_layers"]), int(config["num_attention_heads"])
    spec = StateSpec(
        name="kv",
        group=KV,
        layers=tuple(range(layers)),
        parts=("k", "v"),
        heads=int(config.get("num_key_value_heads") or heads),
        row=head_dim(config),
        dtype=dtype,
    )
    return StateTable(layers, block_tokens, (Group(KV, Unit.PAGE, Full()),), (spec,))


def head_dim(config: Mapping[str, Any]) -> int:
    """Elements of one head's row."""
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def family_of(config: Mapping[str, Any], families: Sequence[Family]) -> Family:
    """The family that serves a config.

    Raises:
        ConfigError: none does; names what is supported
    """
    named = list(config.get("architectures") or [])
    for family in families:
        if any(name in family.architectures for name in named):
            return family
    supported = sorted(name for family in families for name in family.architectures)
    raise ConfigError(f"architecture {named or config.get('model_type')} is not supported; supported are {supported}")
