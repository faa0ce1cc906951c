"""Port: one rank's compute. It runs beside the pump, never inside it.

E1 No call blocks: work is queued, and `poll` returns its end; the `wake` given at construction is
called when there is an end. E2 Batches run one after the other in the order of submission; digests
run beside them on their own thread. E3 Blocks named in `Row.final` are sealed at birth, by the
batch that completes them; tail rows beyond `valid` are zeroed before. E4 The token that is drawn
depends on (logits, sampling, index, past, grammar) alone, never on the other rows of the batch. E5
Digests are computed from the pool's bytes at the time when they run. E6 A failure of compute ends
the process (law: a rank without its state is a dead rank); it is never a result. An error in
drawing one row's token concerns only that row: it ends without a token and says why
(`RowDone.failed`). E7 A pool is zero when `clear` returns. It is the one call that blocks, and is
made while no batch is queued. A digest that is queued may sum the old bytes, zeroes, or both. E8
`progress` changes while work is under way, at least once for every layer of a step and every 64
blocks of a digest. E9 From `constrain` to `release`, a row of that room whose past says so draws
only tokens that the grammar allows after the answer so far; if that cannot be told, the row ends
without a token and says why. `constrain` is answered by one GrammarReady, unless `release` comes
before; such rows are submitted only after it, so no step waits for a grammar to be built. What is
allowed is computed while the step is; the limits of a grammar (grammar/limits.py) bound how much
longer a step may take. E10 A row with `score` ends with
the logprobs of the tokens that follow its positions, on the rank that samples. Its memory for
logits does not grow with the row. E11 `BatchDone` is reported after the device has executed
everything that the batch wrote to the pools, so that any later read sees it: for pools on a device,
after the event has completed that was recorded behind the batch's last write. (A leader offers
blocks to other processes as soon as it hears of the end, and nobody fences their reads.) E12 A
digest sees everything that was in the pools when it was ordered: writes of batches whose end was
reported, and what reads of a fabric have brought that ended OK before.
"""

from collections.abc import Mapping
from typing import Protocol

from baton.core.ids import GroupName, Key
from baton.core.messages import Grammar
from baton.core.rank.watchdog import WorkKind
from baton.core.work import Batch, BatchDone, DigestDone, DigestOrder, Done, Draw, Job, Row, RowDone
from baton.ports.fabric import Pool

__all__ = [
    "Batch",
    "BatchDone",
    "DigestDone",
    "DigestOrder",
    "Done",
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

    def constrain(self, key: Key, grammar: Grammar) -> None:
        """Draw the tokens of this room by the grammar from now on (E9). Called once for a room."""
        ...

    def release(self, key: Key) -> None:
        """Forget the grammar of a room. Batches submitted before still use it."""
        ...

    def clear(self, group: GroupName) -> None:
        """Zero a pool at once (E7)."""
        ...

    @property
    def progress(self) -> Mapping[WorkKind, int]:
        """The number of signs of progress so far, by kind of work (E8)."""
        ...

    def poll(self) -> list[Done]:
        """Return all ends since the last call."""
        ...

    def close(self) -> None:
        """End the threads and free the pools. May be called twice."""
        ...
