"""A step's part of the draft layer (models/mtp.py): its rows, the last hidden states, and drafts.

    forward ──▶ draw ──▶ the draft layer over the same rows, as far as drafts were right ──▶ seal
                          └ and over the drawn token, where its room wants drafts ──▶ head ──▶ draft 1
                             └ and over draft 1 .. ──▶ draft 2, ..

The rows of drawn and drafted tokens lie behind the room's last computed position. The next step
writes them again. The slot gets the hidden state of the last position whose token was right: so
after wrong drafts the room's state is what it would be without them.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np
import torch

from baton.core.ids import GroupName, TokenId
from baton.core.memory.state import Placement
from baton.core.work import Row
from baton.engine.attention.hidden import HiddenSlots
from baton.engine.attention.interface import Attend
from baton.engine.comm import Comm
from baton.engine.models.base import DraftLayer
from baton.engine.models.mtp import DRAFT
from baton.engine.ops import padded
from baton.engine.outcomes import RowOutcome, shared
from baton.ports.fabric import Pool

# tokens, positions: int64 [rows], padded; how to attend from them
Inputs = tuple[torch.Tensor, torch.Tensor, Attend]


class Drafter:
    """The draft layer of one rank's engine.

    Args:
        logits: the model's; None on ranks that do not sample
        inputs: makes rows into what a model computes
        row_step: rows are padded to a multiple of it
    """

    def __init__(
        self,
        *,
        layer: DraftLayer,
        comm: Comm,
        placement: Placement,
        pools: Mapping[GroupName, Pool],
        logits: Callable[[torch.Tensor], torch.Tensor | None],
        inputs: Callable[[Sequence[Row]], Inputs],
        row_step: int,
    ) -> None:
        self._layer, self._comm, self._logits, self._inputs = layer, comm, logits, inputs
        self._row_step = row_step
        self._last = HiddenSlots(pools[DRAFT], placement)

    def after(
        self, rows: Sequence[Row], hidden: torch.Tensor, outcomes: Sequence[RowOutcome]
    ) -> dict[int, tuple[TokenId, ...]]:
        """Compute the layer's rows of a batch and keep the last hidden states.

        Args:
            hidden: [tokens of all rows, maybe padded, hidden], of the model
            outcomes: of each row

        Returns:
            by row, the drafts that it wants; empty on ranks that do not sample
        """
        ends, first = [], 0
        for row, outcome in zip(rows, outcomes, strict=True):
            ends.append(first + outcome.right - 1)  # in `hidden`, of the last position that counts
            first += len(row.tokens)
        # what follows the tokens of each row that were right, where drafts are wanted
        more = [o.drawn if row.drafts else () for row, o in zip(rows, outcomes, strict=True)]
        wants = [i for i, token in enumerate(more) if token]
        before, first = [], 0
        for row, end, token in zip(rows, ends, more, strict=True):
            before += [self._before(row), hidden[first : end + len(token)]]
            first += len(row.tokens)
        computed = [
            _cut(row, outcome.right, token)
            for row, outcome, token in zip(rows, outcomes, more, strict=True)
        ]
        out = self._run(computed, torch.cat(before))
        for row, end in zip(rows, ends, strict=True):
            self._last.write(int(row.pages[DRAFT][0]), hidden[end])
        return self._drafts(computed, wants, out) if wants else {}

    def _before(self, row: Row) -> torch.Tensor:
        """Return the hidden state of the position before a row, [1, hidden]."""
        last = self._last.read(int(row.pages[DRAFT][0]))
        return torch.zeros_like(last) if row.start == 0 or row.cold else last

    def _run(self, rows: Sequence[Row], before: torch.Tensor) -> torch.Tensor:
        tokens, positions, attend = self._inputs(rows)
        return self._layer(padded(before, len(tokens) - len(before)), tokens, positions, attend)

    def _drafts(
        self, computed: Sequence[Row], wants: Sequence[int], out: torch.Tensor
    ) -> dict[int, tuple[TokenId, ...]]:
        """Draft one token after the other. out: of `computed`, whose rows in `wants` end with the
        token that was drawn."""
        ends = np.cumsum([len(row.tokens) for row in computed])
        rows = {i: computed[i] for i in wants}
        found: dict[int, tuple[TokenId, ...]] = dict.fromkeys(wants, ())
        states = dict(zip(wants, out[[int(ends[i]) - 1 for i in wants]], strict=True))
        while rows:
            state = torch.stack([states[i] for i in rows])
            logits = self._logits(padded(state, -len(state) % self._row_step))
            best = torch.zeros(len(rows), dtype=torch.int64)
            if logits is not None:
                best = logits[: len(rows)].argmax(-1)
            for i, token in zip(rows, shared(self._comm, best).tolist(), strict=True):
                found[i] = (*found[i], TokenId(token))
            rows = {i: _next(r, found[i][-1]) for i, r in rows.items() if len(found[i]) < r.drafts}
            if rows:
                out = self._run(list(rows.values()), torch.stack([states[i] for i in rows]))
                states = dict(zip(rows, out, strict=False))
        return found if self._comm.tp_rank == 0 else {}


def _cut(row: Row, count: int, more: Sequence[TokenId]) -> Row:
    """Return a row of the first `count` tokens, and of `more` after them."""
    tokens = (*row.tokens[:count], *more)
    said = max(0, row.said - len(row.tokens) + count) + len(more)
    return msgspec.structs.replace(row, tokens=tokens, said=said)


def _next(row: Row, token: TokenId) -> Row:
    """Return the row of the token that follows a row."""
    return msgspec.structs.replace(row, start=row.start + len(row.tokens), tokens=(token,), said=1)
