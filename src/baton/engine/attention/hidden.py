"""The last hidden state of each sequence, which a draft layer goes on from (models/mtp.py)."""

import torch

from baton.core.memory.state import Placement
from baton.engine.attention.reference import pool_view
from baton.ports.fabric import Pool

HIDDEN = "hidden"  # name of the spec


class HiddenSlots:
    """The hidden states in one rank's slots."""

    def __init__(self, pool: Pool, placement: Placement) -> None:
        self._rows = pool_view(pool, placement, HIDDEN)[:, 0, 0, 0, 0]

    def read(self, slot: int) -> torch.Tensor:
        """Return a slot's hidden state, [1, hidden]; it does not change with the slot."""
        return self._rows[slot : slot + 1].clone()

    def write(self, slot: int, hidden: torch.Tensor) -> None:
        """Set a slot's hidden state, [hidden]."""
        self._rows[slot] = hidden
