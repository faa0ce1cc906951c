"""What a rank under vLLM has to hash, in order: batches whose rows vLLM has computed, and digests.

    plan ──batch──▶ waits ──vLLM has computed all its rows──▶ may be sealed, behind the batches before it
                                     digests wait for nothing, and come first

It has no thread and no lock: its owner sees to that.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName, Key
from baton.core.work import Batch, DigestOrder, Row

# Waits until what vLLM had begun on a device is done.
Fence = Callable[[], None]


def passed() -> None:
    """The fence of what is done already: vLLM on a CPU ends a step before it says so."""


class Computed(NamedTuple):
    """A batch whose rows vLLM has computed; the pools have the result when the fences have
    passed."""

    batch: Batch
    fences: tuple[Fence, ...]


class SealQueue:
    """The orders of one rank that have not been taken yet."""

    def __init__(self) -> None:
        self._batches: deque[Batch] = deque()
        self._digests: deque[DigestOrder] = deque()
        # positions, as vLLM says, and the fence of the step that computed the last of them
        self._computed: dict[Key, tuple[int, Fence]] = {}

    def add(self, order: Batch | DigestOrder) -> None:
        """Add an order of the leader."""
        if isinstance(order, Batch):
            self._batches.append(order)
        else:
            self._digests.append(order)

    def computed(self, rows: Mapping[Key, int], fence: Fence) -> None:
        """vLLM has computed these requests up to these positions, behind this fence."""
        for key, end in rows.items():
            self._computed[key] = max(end, self._known(key)[0]), fence

    def forget(self, key: Key) -> None:
        """vLLM computes no more of a request."""
        self._computed.pop(key, None)

    def take(self) -> Computed | DigestOrder | None:
        """Return the next order that can be carried out; None if there is none yet."""
        if self._digests:
            return self._digests.popleft()
        if self._batches and self._is_computed(self._batches[0]):
            batch = self._batches.popleft()
            return Computed(batch, tuple(self._known(row.key)[1] for row in batch.rows))
        return None

    def _is_computed(self, batch: Batch) -> bool:
        return all(self._known(row.key)[0] >= row.valid for row in batch.rows)

    def _known(self, key: Key) -> tuple[int, Fence]:
        return self._computed.get(key, (0, passed))


Places = tuple[GroupName, NDArray[np.int64], NDArray[np.int64]]


def places_of(row: Row) -> Iterator[Places]:
    """Yield, for each group of a row, the blocks that are sealed with it: where they lie in the
    pool, and which blocks of the sequence they are."""
    for group, (start, past) in row.final.items():
        begins = row.begins.get(group, 0)
        slots = row.pages[group][start - begins : past - begins].astype(np.int64)
        yield group, slots, np.arange(start, past, dtype=np.int64)
