"""A rank's part of looking at its own memory again: blocks of a room, or pages of the prefix cache,
hashed where they lie.

    Rehash, Inspect ──▶ one Digest for each group ──▶ Rehashed, when all of them have ended

A room whose blocks are hashed is *busy*: `quiet` is not said of it. Cached pages are nobody's, and
may go meanwhile.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Inspect, Rehash, Rehashed
from baton.core.ids import BlockIndex, GroupName, Key
from baton.core.memory.state import Placement
from baton.core.rank.rank_effects import Digest
from baton.core.rank.rows import pack
from baton.core.work import DigestDone, DigestOrder, Job

Hash = Callable[[Job, Key, GroupName, Iterable[BlockIndex], int], Digest]


class RehashTask(msgspec.Struct):
    """An order to hash something again that has not ended."""

    order: Rehash | Inspect
    open: set[Job] = set()
    sums: dict[GroupName, bytes] = {}


class Rehashing:
    """Carries out such orders on one rank."""

    def __init__(self, placement: Placement, jobs: Iterator[int], digest: Hash) -> None:
        self._placement, self._jobs, self._digest = placement, jobs, digest
        self._of: dict[Job, tuple[RehashTask, GroupName]] = {}

    def __len__(self) -> int:
        return len(self._of)

    def rehash(self, order: Rehash) -> list[Digest]:
        """Blocks of a room are to be hashed."""
        job = self._job(RehashTask(order), order.group)
        return [self._digest(job, order.key, order.group, order.blocks, order.length)]

    def inspect(self, order: Inspect) -> list[Digest]:
        """Cached pages are to be hashed, of the groups of which this rank holds a part."""
        task, found = RehashTask(order), list[Digest]()
        for group, pages in order.pages.items():
            if self._placement.block_bytes(group):
                slots, numbers = (self._blocks(group, of) for of in (pages, order.numbers))
                found.append(
                    Digest(DigestOrder(self._job(task, group), group, slots, numbers), passing=True)
                )
        assert found, "every rank holds some layers"
        return found

    def _job(self, task: RehashTask, group: GroupName) -> Job:
        job = Job(next(self._jobs))
        task.open.add(job)
        self._of[job] = task, group
        return job

    def _blocks(self, group: GroupName, pages: Iterable[int]) -> NDArray[np.int64]:
        """Return the blocks of these pages, in the pool or in a sequence."""
        k = self._placement.blocks_per_page(group)
        return (np.array([*pages], dtype=np.int64)[:, None] * k + np.arange(k)).ravel()

    def owns(self, job: Job) -> bool:
        """Return whether a hash was ordered here."""
        return job in self._of

    def hashed(self, done: DigestDone) -> Rehashed | None:
        """A hash has ended. Returns the answer to its order if that was the last."""
        task, group = self._of.pop(done.job)
        task.open.discard(done.job)
        task.sums[group] = pack(done.sums)
        return None if task.open else Rehashed(task.order.order, task.sums)

    def busy(self) -> set[Key]:
        """Return the rooms of which blocks are being hashed."""
        return {task.order.key for task, _ in self._of.values() if isinstance(task.order, Rehash)}
