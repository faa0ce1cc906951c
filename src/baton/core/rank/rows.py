"""A rank's rows: from the leader's order to what the engine computes, and from the engine's result
to the report."""

import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import RowOrder, RowResult, StepResult
from baton.core.ids import TokenIndex
from baton.core.rank.block_tables import BlockTables
from baton.core.work import BatchDone, Draw, Row, RowDone


def row_of(order: RowOrder, rooms: BlockTables) -> Row:
    """Return the row that the engine computes for an order, with the pages that the room holds
    now."""
    sampling = order.sampling
    ahead = (
        [Draw(sampling, TokenIndex(order.index + n), past) for n, past in enumerate(order.ahead, 1)]
        if sampling is not None
        else []
    )
    return Row(
        key=order.key,
        start=order.start,
        tokens=order.tokens,
        pages=dict(rooms[order.key]),
        final=order.final,
        valid=order.valid,
        draw=Draw(sampling, order.index, order.past) if sampling is not None else None,
        begins=rooms.begins(order.key),
        score=order.score,
        said=order.said,
        ahead=tuple(ahead),
        cold=order.cold,
        drafts=order.drafts,
    )


def step_sums(done: BatchDone) -> StepResult:
    """Return what the leader is told of a batch."""
    return StepResult(done.seq, tuple(_row_sums(row) for row in done.rows))


def _row_sums(row: RowDone) -> RowResult:
    sums = {group: pack(sums) for group, sums in row.sums.items()}
    return RowResult(row.key, row.drawn, sums, row.failed, row.scores, row.more, row.drafts)


def pack(sums: NDArray[np.uint64]) -> bytes:
    """Return sums as a report carries them."""
    return np.ascontiguousarray(sums, dtype="<u8").tobytes()
