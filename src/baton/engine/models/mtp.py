"""The draft layer of DeepSeek's checkpoints, which guesses the token after the next one
(DeepSeek-AI 2024: DeepSeek-V3, section 2.2, multi-token prediction).

    hidden state at j - 1 ──▶ norm ─┐
    embedding of token j ───▶ norm ─┴▶ product ─▶ layer, row j ─▶ norm ─▶ the model's head: token j + 1

In the paper the layer's row of token j has number j - 1. Here it has the token's own position: the
distances of rotated keys are the same, and the row needs nothing of tokens after j. So it lies in
the page of the model's rows of token j and has their life: it is sealed, cached, handed over and
written over with them. Row 0, which the paper does not have, is of a hidden state of zeros.

Beside these rows the layer needs the hidden state of the last position, which is the model's after
its last norm (as in vLLM and SGLang). A slot holds it between two steps. Where it is not known,
such as behind cached pages, it counts as zeros.

A token is drafted as the likeliest one of that hidden state and those rows. So nothing else has to
be handed over: SGLang sends the likeliest tokens of the first draft too, as it drafts trees.
"""

from collections.abc import Iterator

import msgspec
import torch

from baton.core.ids import GroupName
from baton.core.memory.state import Group, Interval, StateSpec, StateTable, Unit, Whole
from baton.engine.attention.hidden import HIDDEN
from baton.engine.attention.interface import Attend
from baton.engine.models.ends import Ends
from baton.engine.models.latent import LatentAttention
from baton.engine.models.stack import Layer
from baton.engine.models.weights import Filed, Loader, Matrix

DRAFT = GroupName("draft")
# of the embedding, of the hidden state, and the last one
NORMS = "enorm.weight", "hnorm.weight", "shared_head.norm.weight"


def with_draft_rows(table: StateTable, hidden: int) -> StateTable:
    """Return a table with one more layer of every spec, and a slot for the last hidden state."""
    layer = table.num_layers
    specs = [msgspec.structs.replace(spec, layers=(*spec.layers, layer)) for spec in table.specs]
    last = StateSpec(
        HIDDEN, DRAFT, (layer,), ("h",), heads=1, row=hidden, dtype=table.specs[0].dtype
    )
    groups = (*table.groups, Group(DRAFT, Unit.SLOT, Whole(), optional=True))
    return StateTable(layer + 1, table.block_tokens, groups, (*specs, last))


def has_draft_rows(table: StateTable) -> bool:
    """Whether a table has the rows of a draft layer."""
    return any(spec.name == HIDDEN for spec in table.specs)


class MtpLayer:
    """Implements DraftLayer: one rank's part of the layer with index `index`, whose tensors' names
    begin with `at`. Embedding and head are the model's; checkpoints have copies of them, which are
    not read."""

    def __init__(
        self,
        load: Loader,
        at: str,
        layer: Layer[LatentAttention],
        ends: Ends,
        *,
        index: int,
        hidden: int,
        eps: float,
    ) -> None:
        self._layer, self._ends, self._ops = layer, ends, load.ops
        self._index, self._eps = index, eps
        self._token_norm, self._before_norm, self._last_norm = (load(at + name) for name in NORMS)
        self._product = load.by_outputs(at, _product(hidden), Interval(0, hidden))

    def __call__(
        self,
        before: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        attend: Attend,
    ) -> torch.Tensor:
        token = self._norm(self._ends.begin(tokens), self._token_norm)
        x = self._product(torch.cat((token, self._norm(before, self._before_norm)), 1)).float()
        layer = self._layer
        add, _ = layer.mixer(self._norm(x, layer.norm1), self._index, positions, attend, None)
        add = layer.mlp(self._norm(x, layer.norm2, add))
        return self._norm(x, self._last_norm, add)

    def _norm(
        self, x: torch.Tensor, weight: torch.Tensor, add: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._ops.norm(x, weight, self._eps, add=add)


def mtp_tensors(at: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the tensors that such a layer has besides those of other layers, with their shapes."""
    yield from ((at + name, (hidden,)) for name in NORMS)
    yield from _product(hidden).tensors(at)


def _product(hidden: int) -> Matrix:
    return Matrix((Filed("eh_proj", (hidden,)),), 2 * hidden)
