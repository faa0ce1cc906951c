"""The interface of models and model families, and the choice of the family for a config."""

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
NEXT = "num_nextn_predict_layers"  # in config.json: how many draft layers a checkpoint has
DTYPES: Mapping[DType, torch.dtype] = {
    DType.F32: torch.float32,
    DType.BF16: torch.bfloat16,
    DType.F16: torch.float16,
}


class DraftLayer(Protocol):
    """A layer that guesses the token after the next one (models/mtp.py)."""

    def __call__(
        self,
        before: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
    ) -> torch.Tensor:
        """Compute hidden states of which the model's `logits` are those of the tokens after
        `tokens`.

        Args:
            before: [rows, hidden], what `Model.forward` returned for the position before each row,
                or this layer for a guessed one; zeros where that is not known
            tokens, positions: int64 [rows]
            attend: attends from rows to cached state

        Returns:
            [rows, hidden]
        """
        ...


class Model(Protocol):
    """One rank's part of a network. The rows that it passes to `attend` have adjacent heads.

    Attributes:
        draft_layer: None where the state table has no rows of one
    """

    vocab_size: int
    draft_layer: DraftLayer | None

    def forward(
        self, tokens: torch.Tensor, positions: torch.Tensor, attend: Attend
    ) -> torch.Tensor | None:
        """Compute the hidden states after the last norm.

        Args:
            tokens, positions: int64 [rows]
            attend: attends from rows to cached state

        Returns:
            [rows, hidden]; None if this is not the last stage, which sends them to the next one
        """
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor | None:
        """Compute logits, float32 [rows, vocab]; None
        on all but the first rank of the last stage."""
        ...


class Family(Protocol):
    """One architecture family.

    Attributes:
        name: name for people
        architectures: names in config.json's `architectures`
        examples: models of the family
        notes: notes for users
        window: how its configs state a sliding window
    """

    name: str
    architectures: Sequence[str]
    examples: str
    notes: str
    window: str

    def longest(self, config: Mapping[str, Any]) -> tuple[int, int]:
        """Return (default, largest) maximum length of a request. Raises ConfigError."""
        ...

    def read(self, config: Mapping[str, Any], *, longest: int | None = None) -> msgspec.Struct:
        """Return everything that the computation depends on, for requests of `longest` positions.

        `longest` None = the config's default.

        Raises:
            ConfigError: the config is not supported
        """
        ...

    def require_width(self, config: Mapping[str, Any], tp: int) -> None:
        """Raise ConfigError if the model cannot be divided
        over `tp` ranks; names the widths that fit."""
        ...

    def table(self, config: Mapping[str, Any], *, block_tokens: int, dtype: DType) -> StateTable:
        """Return the state table, which has everything
        that the model caches. Raises ConfigError."""
        ...

    def with_draft_layer(self, config: Mapping[str, Any], table: StateTable) -> StateTable:
        """Return the table with what the checkpoint's draft layer caches. `build` loads that layer
        for a placement of such a table.

        Raises:
            ConfigError: the model has none, or it is not supported
        """
        ...

    def build(
        self,
        checkpoint: Checkpoint,
        placement: Placement,
        dtype: DType,
        ops: Ops,
        comm: Comm,
        *,
        longest: int | None = None,
    ) -> Model:
        """Load one rank's weights, for requests of `longest` positions (None = the config's
        default).

        Raises:
            ConfigError: a setting of the config is not supported, or a tensor is missing, has
                another shape, or is quantised; raised before any tensor is read
        """
        ...


def no_draft_layer(name: str, why: str) -> ConfigError:
    """Return the error that says why a family's draft layers are not served."""
    return ConfigError(
        f"--speculative-config: method mtp: {name}: {why}; leave the flag out, or choose method "
        "suffix"
    )


def family_of(config: Mapping[str, Any], families: Sequence[Family]) -> Family:
    """Return the family of a config.

    Raises:
        ConfigError: no family supports it; the message names the supported architectures
    """
    named = config.get("architectures")
    names = [str(name) for name in named] if isinstance(named, list) else []
    for family in families:
        if any(name in family.architectures for name in names):
            return family
    supported = ", ".join(sorted(name for family in families for name in family.architectures))
    what = ", ".join(names) or f"of model_type {config.get('model_type')!r}"
    raise ConfigError(f"architecture {what} is not supported; supported are {supported}")
