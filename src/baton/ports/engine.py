"""Port: one rank's compute. Runs beside the pump, never inside it.

E1 No call blocks: work is queued and its end is seen by `poll`; the `wake` given at construction is called when there is an end.
E2 Batches run one after the other in the order of submission; digests run beside them on their own thread.
E3 Blocks named in `Row.final` are sealed at birth, by the batch that completed them, tail rows beyond `valid` zeroed before.
E4 A token's draw depends on (logits, sampling, index) alone, never on the batch it rode in.
E5 Digests are computed from the pool's bytes at the time they run.
E6 A failure of compute is the end of the process (law: a rank without its state is a dead rank), never a result.
"""

from collections.abc import Mapping
from typing import NewType, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.ids import BlockIndex, GroupName, Key, Seq, TokenId, TokenIndex
from baton.core.messages import Drawn, Sampling
from baton.ports.fabric import Pool

Job = NewType("Job", int)


class Draw(msgspec.Struct, frozen=True):
    """Sample after the row's last token: the request's generated token `index`."""

    sampling: Sampling
    index: TokenIndex


class Row(msgspec.Struct, frozen=True):
    """One room's part of a batch: `tokens` at positions start, start + 1, ...

    `pages` are the room's whole page lists from block 0 on (page p of the list holds blocks p * k ...).
    `final` names blocks [first, end) that no later step writes, to be sealed by this batch; `valid` is the number of
    positions of the sequence that hold accepted tokens after it.
    """

    key: Key
    start: int
    tokens: tuple[TokenId, ...]
    pages: Mapping[GroupName, NDArray[np.int32]]
    final: Mapping[GroupName, tuple[BlockIndex, BlockIndex]]
    valid: int
    draw: Draw | None


class Batch(msgspec.Struct, frozen=True):
    """What one forward pass computes."""

    seq: Seq
    rows: tuple[Row, ...]


class RowDone(msgspec.Struct, frozen=True):
    """One row's result. `sums[group]` is uint64 [blocks of final, units of the group on this rank] (Placement.units)."""

    key: Key
    drawn: Drawn | None
    sums: Mapping[GroupName, NDArray[np.uint64]]


class BatchDone(msgspec.Struct, frozen=True):
    """A batch has ended; every write of it is visible to readers of the pools."""

    seq: Seq
    rows: tuple[RowDone, ...]


class DigestOrder(msgspec.Struct, frozen=True):
    """Hash blocks of one group as they lie in our pool.

    slots: int64 [n], block index in the pool: page * k + j
    numbers: int64 [n], block number in its sequence (positions start at number * B)
    """

    job: Job
    group: GroupName
    slots: NDArray[np.int64]
    numbers: NDArray[np.int64]


class DigestDone(msgspec.Struct, frozen=True):
    """sums: uint64 [n, units]."""

    job: Job
    sums: NDArray[np.uint64]


class Engine(Protocol):
    """One rank's model shard and its pools."""

    @property
    def pools(self) -> Mapping[GroupName, Pool]:
        """The memory of every group, allocated at construction."""
        ...

    @property
    def pool_pages(self) -> Mapping[GroupName, int]:
        """Pages of every group."""
        ...

    def submit(self, batch: Batch) -> None:
        """Queue a forward pass."""
        ...

    def digest(self, order: DigestOrder) -> None:
        """Queue a digest."""
        ...

    def poll(self) -> list[BatchDone | DigestDone]:
        """All ends since the last call."""
        ...

    def close(self) -> None:
        """End the threads and free the pools. May be called twice."""
        ...
