"""Several rows of one step."""

from collections.abc import Sequence

import torch

from baton.core.messages import Drawn, RowFailure
from baton.core.work import Draw
from baton.engine.sampler import Allowed, draw, everything


def draw_rows(
    logits: torch.Tensor, orders: Sequence[Draw], allowed: Sequence[Allowed] | None = None
) -> list[Drawn | RowFailure]:
    """One token of each row. logits: float32 [rows, vocab]"""
    each = allowed or [everything] * len(orders)
    return [draw(row, order, a) for row, order, a in zip(logits, orders, each, strict=True)]
