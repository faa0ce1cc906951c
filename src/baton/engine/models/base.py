"""What a model family offers the engine, and the way from a config to its family."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec
import torch

from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.memory.state import DType, Placement, StateTable
from baton.engine.attention.interface import Attend
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Comm
from baton.engine.ops import Ops

KV, WINDOW, SLOT = GroupName("full"), GroupName("window"), GroupName("slot")
DTYPES: Mapping[DType, torch.dtype] = {DType.F32: torch.float32, DType.BF16: torch.bfloat16, DType.F16: torch.float16}


class Model(Protocol):
    """One rank's part of a network. A row's heads are adjacent in what is given to `attend`."""

    vocab_size: int

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor | None:
        """Hidden states after the last norm. tokens, positions: int64 [rows]; returns [rows, hidden].

        None on a rank whose stage is not the last: what it has computed has gone to the next one.
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """float32 [rows, vocab] on the first rank of the last stage; None on the others of it."""
        ...


class Family(Protocol):
    """One architecture family.

    Attributes:
        name: what people call it
        architectures: names in config.json's `architectures`
        examples: models of it
        notes: what a user should know
        window: how a sliding window is given in its configs
    """

    name: str
    architectures: Sequence[str]
    examples: str
    notes: str
    window: str

    def longest(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Positions served by default, and at most when asked to. Raises ConfigError."""
        ...

    def read(self, config: Mapping[str, Any], *, longest: int | None = None) -> msgspec.Struct:
        """What a config means where `longest` positions are served (None: its default): all that the computation depends on.

        Raises:
            ConfigError: it cannot be served
        """
        ...

    def require_width(self, config: Mapping[str, Any], tp: int) -> None:
        """Raises ConfigError where the model cannot be divided over so many ranks; names the widths that fit."""
        ...

    def table(self, config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
        """What it caches. Raises ConfigError."""
        ...

    def build(
        self, checkpoint: Checkpoint, placement: Placement, dtype: DType, ops: Ops, comm: Comm, *, longest: int | None = None
    ) -> Model:
        """Load one rank's weights, to serve `longest` positions (None: the config's default).

        Raises:
            ConfigError: a setting of the config is not supported, or a tensor is missing, of another shape or quantised;
                found before any tensor is read
        """
        ...


def family_of(config: Mapping[str, Any], families: Sequence[Family]) -> Family:
    """The family that serves a config.

    Raises:
        ConfigError: none does; names what is supported
    """
    named = config.get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    for family in families:
        if any(name in family.architectures for name in names):
            return family
    supported = ", ".join(sorted(name for family in families for name in family.architectures))
    what = ", ".join(names) or f"of model_type {config.get('model_type')!r}"
    raise ConfigError(f"architecture {what} is not supported; supported are {supported}")
