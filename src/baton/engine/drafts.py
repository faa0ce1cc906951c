"""A step's part of the draft layer (models/mtp.py): its rows, the last hidden states, and drafts.

    forward ──▶ draw ──▶ the draft layer over the same rows, as far as drafts were right ──▶ seal
                          └ and over the drawn token, where its room wants drafts ──▶ head ──▶ draft 1
                             └ and over draft 1 .. ──▶ draft 2, ..

The rows of drawn and drafted tokens lie behind the room's last computed position. The next step
writes them again. The slot gets the hidden state of the last position whose token was right: so
after wrong drafts the room's state is what it would be without them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import torch

from baton.core.ids import GroupName, TokenId
from baton.core.memory.state import Placement
from baton.core.messages import Drawn, RowFailure
from baton.core.work import Row
from baton.engine.attention.hidden import HiddenSlots
from baton.engine.attention.interface import Attend
from baton.engine.comm import Comm
from baton.engine.models.base import DraftLayer
from baton.engine.models.mtp import DRAFT
from baton.engine.ops import padded
from baton.ports.fabric import Pool

# tokens, positions: int64 [rows], padded; how to attend from them
Inputs = tuple[torch.Tensor, torch.Tensor, Attend]
Draws = Mapping[int, Sequence[Drawn | RowFailure]]  # by row of the batch


class RowOutcome(NamedTuple):
    """What became of a row: how many of its tokens were right, and the last token that was drawn
    after them, if any was."""

    right: int
    drawn: tuple[TokenId, ...]


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
        self, rows: Sequence[Row], hidden: torch.Tensor, drawn: Draws
    ) -> dict[int, tuple[TokenId, ...]]:
        """Compute the layer's rows of a batch and keep the last hidden states.

        Args:
            hidden: [tokens of all rows, maybe padded, hidden], of the model
            drawn: by row, what was drawn; empty on ranks that do not sample

        Returns:
            by row, the drafts that it wants; empty on ranks that do not sample
        """
        outcomes = self._outcomes(rows, drawn)
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

    def _outcomes(self, rows: Sequence[Row], drawn: Draws) -> list[RowOutcome]:
        """Return what became of each row. Every rank gets what was drawn on the one that
        samples."""
        # of each row: tokens that were right, tokens that were drawn, the last of these
        found = torch.zeros(len(rows), 3, dtype=torch.int64)
        for i, row in enumerate(rows):
            said = [d.token for d in drawn.get(i, ()) if isinstance(d, Drawn)]
            found[i, 0] = len(row.tokens) - len(row.ahead) + max(0, len(said) - 1)
            found[i, 1] = len(said)
            if said:
                found[i, 2] = said[-1]
        if any(row.draw is not None for row in rows):
            found = self._shared(found)
        return [
            RowOutcome(right, (TokenId(token),) if count else ())
            for right, count, token in found.tolist()
        ]

    def _shared(self, x: torch.Tensor) -> torch.Tensor:
        """Return int64 x as the first rank has it."""
        return self._comm.add_up(x if self._comm.tp_rank == 0 else torch.zeros_like(x))

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
            for i, token in zip(rows, self._shared(best).tolist(), strict=True):
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
