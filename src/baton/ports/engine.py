"""Port: one rank's compute. It runs beside the pump, never inside it.

E1 No call blocks: work is queued, and `poll` returns its end; the `wake` given at construction is
called when there is an end. E2 Batches run one after the other in the order of submission; digests
run beside them on their own thread. E3 Blocks named in `Row.final` are sealed at birth, by the
batch that completes them; tail rows beyond `valid` are zeroed before. E4 The token that is drawn
depends on (logits, sampling, index) alone, never on the other rows of the batch. E5 Digests are
computed from the pool's bytes at the time when they run. E6 A failure of compute ends the process
(law: a rank without its state is a dead rank); it is never a result. An error in drawing one row's
token concerns only that row: it ends without a token and says why (`RowDone.failed`). E7 A pool is
zero when `clear` returns. It is the one call that blocks, and is made while no batch is queued. A
digest that is queued may sum the old bytes, zeroes, or both. E8 `progress` changes while work is
under way, at least once for every layer of a step and every 64 blocks of a digest.
"""

from collections.abc import Mapping
from typing import Protocol

from baton.core.ids import GroupName
from baton.core.rank.watchdog import WorkKind
from baton.core.work import Batch, BatchDone, DigestDone, DigestOrder, Draw, Job, Row, RowDone
from baton.ports.fabric import Pool

__all__ = [
    "Batch",
    "BatchDone",
    "DigestDone",
    "DigestOrder",
    "Draw",
    "Engine",
    "Job",
    "Pool",
    "Row",
    "RowDone",
]


class Engine(Protocol):
    """The model shard of one rank, and its pools."""

    @property
    def pools(self) -> Mapping[GroupName, Pool]:
        """The memory of every group, allocated at construction."""
        ...

    @property
    def pool_pages(self) -> Mapping[GroupName, int]:
        """The number of pages of every group."""
        ...

    def submit(self, batch: Batch) -> None:
        """Queue a forward pass."""
        ...

    def digest(self, order: DigestOrder) -> None:
        """Queue a digest."""
        ...

    def clear(self, group: GroupName) -> None:
        """Zero a pool at once (E7)."""
        ...

    @property
    def progress(self) -> Mapping[WorkKind, int]:
        """The number of signs of progress so far, by kind of work (E8)."""
        ...

    def poll(self) -> list[BatchDone | DigestDone]:
        """Return all ends since the last call."""
        ...

    def close(self) -> None:
        """End the threads and free the pools. May be called twice."""
        ...
