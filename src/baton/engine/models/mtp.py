"""The draft layer of DeepSeek's and Qwen's checkpoints, which guesses the token after the next one
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

from collections.abc import Callable, Iterator

import msgspec
import torch

from baton.core.ids import GroupName
from baton.core.memory.state import (
    Group,
    Interval,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
)
from baton.engine.attention.hidden import HIDDEN
from baton.engine.attention.interface import Attend
from baton.engine.models.base import no_draft_layer
from baton.engine.models.ends import Ends
from baton.engine.models.stack import Layer
from baton.engine.models.weights import Filed, Loader, Matrix

DRAFT = GroupName("draft")
# x, layer, positions, attend -> [rows, hidden]
Mixer = Callable[[torch.Tensor, int, torch.Tensor, Attend], torch.Tensor]


class MtpFiles(msgspec.Struct, frozen=True):
    """How checkpoints name the tensors that such a layer has besides those of other layers.

    Attributes:
        token, before, last: norms: of the embedding, of the hidden state, and the last one
        product: the matrix over both, the embedding first
    """

    token: str
    before: str
    last: str
    product: str

    def norms(self, at: str) -> tuple[str, ...]:
        """Return the names of the norms; `at` is their prefix."""
        return tuple(f"{at}{name}.weight" for name in (self.token, self.before, self.last))

    def matrix(self, hidden: int) -> Matrix:
        """Return the product's matrix, [hidden, 2 * hidden]."""
        return Matrix((Filed(self.product, (hidden,)),), 2 * hidden)

    def tensors(self, at: str, hidden: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield every tensor, with its shape."""
        yield from ((name, (hidden,)) for name in self.norms(at))
        yield from self.matrix(hidden).tensors(at)


DEEPSEEK = MtpFiles("enorm", "hnorm", "shared_head.norm", "eh_proj")
QWEN = MtpFiles("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "fc")


def with_draft_rows(table: StateTable, hidden: int) -> StateTable:
    """Return a table with one more layer of full attention, and a slot for the last hidden
    state."""
    layer = table.num_layers
    specs = [
        msgspec.structs.replace(spec, layers=(*spec.layers, layer))
        if spec.group in table.lasting
        else spec
        for spec in table.specs
    ]
    last = StateSpec(
        HIDDEN, DRAFT, (layer,), ("h",), heads=1, row=hidden, dtype=table.specs[0].dtype
    )
    groups = (*table.groups, Group(DRAFT, Unit.SLOT, Whole(), optional=True))
    return StateTable(layer + 1, table.block_tokens, groups, (*specs, last))


def has_draft_rows(table: StateTable) -> bool:
    """Whether a table has the rows of a draft layer."""
    return any(spec.name == HIDDEN for spec in table.specs)


class MtpLayer:
    """Implements DraftLayer: one rank's part of the layer with index `index`. The names of the
    tensors in `files` begin with `at`. Embedding and head are the model's; some checkpoints have
    copies of them, which are not read."""

    def __init__(
        self,
        load: Loader,
        files: MtpFiles,
        at: str,
        layer: Layer[Mixer],
        ends: Ends,
        *,
        index: int,
        hidden: int,
        eps: float,
        offset: float = 0.0,
    ) -> None:
        self._layer, self._ends, self._ops = layer, ends, load.ops
        self._index, self._eps, self._offset = index, eps, offset
        self._token_norm, self._before_norm, self._last_norm = map(load, files.norms(at))
        self._product = load.by_outputs(at, files.matrix(hidden), Interval(0, hidden))

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
        add = layer.mixer(self._norm(x, layer.norm1), self._index, positions, attend)
        add = layer.mlp(self._norm(x, layer.norm2, add))
        return self._norm(x, self._last_norm, add)

    def _norm(
        self, x: torch.Tensor, weight: torch.Tensor, add: torch.Tensor | None = None
    ) -> torch.Tensor:
        return self._ops.norm(x, weight, self._eps, add=add, offset=self._offset)


def require_one_stage(name: str, placement: Placement) -> None:
    """Raise ConfigError if embedding and draft layer would be on different stages.

    name: of the family
    """
    if placement.pp > 1:
        raise no_draft_layer(name, f"the stages of --pp {placement.pp} cannot share its layer yet")
