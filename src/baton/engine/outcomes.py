"""What became of the rows of a batch: which tokens were right, and what was drawn after them.

Only one rank of a stage samples. Where state depends on which drafts were right, all of them have
to know.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from baton.core.ids import TokenId
from baton.core.messages import Drawn, RowFailure
from baton.core.work import Row
from baton.engine.comm import Comm

Draws = Mapping[int, Sequence[Drawn | RowFailure]]  # by row of the batch


class RowOutcome(NamedTuple):
    """What became of a row: how many of its tokens were right, and the last token that was drawn
    after them, if any was."""

    right: int
    drawn: tuple[TokenId, ...]


def shared(comm: Comm, x: torch.Tensor) -> torch.Tensor:
    """Return int64 x as the first rank of the stage has it."""
    return comm.add_up(x if comm.tp_rank == 0 else torch.zeros_like(x))


def outcomes_of(comm: Comm, rows: Sequence[Row], drawn: Draws) -> list[RowOutcome]:
    """Return what became of each row, the same on every rank of the stage.

    drawn: by row, what was drawn; empty on ranks that do not sample
    """
    # of each row: tokens that were right, tokens that were drawn, the last of these
    found = torch.zeros(len(rows), 3, dtype=torch.int64)
    for i, row in enumerate(rows):
        said = [d.token for d in drawn.get(i, ()) if isinstance(d, Drawn)]
        found[i, 0] = len(row.tokens) - len(row.ahead) + max(0, len(said) - 1)
        found[i, 1] = len(said)
        if said:
            found[i, 2] = said[-1]
    if any(row.draw is not None for row in rows):
        found = shared(comm, found)
    return [
        RowOutcome(right, (TokenId(token),) if count else ())
        for right, count, token in found.tolist()
    ]
