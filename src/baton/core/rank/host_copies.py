"""A rank's part of preemption: a room's whole state out of its pages into the host store, and back
into others.

    Offload ──▶ Save + Digest of every group's blocks ──▶ vote          the sums stay here, the bytes in the store
    Restore ──▶ Load ──▶ Digest of the same blocks, where they lie now ──▶ equal sums: vote, Discard

Which blocks: those that a handoff of so many positions would carry, of every group of the table.
While a copy or a hash of a room is under way the room is *busy*: its pages are given to nobody, and
`quiet` is not said of it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Ballot, Offload, Restore, Vote
from baton.core.ids import BlockIndex, GroupName, Key
from baton.core.memory.state import Placement, extent_blocks
from baton.core.rank.block_tables import BlockTables
from baton.core.rank.rank_effects import Digest, Discard, Load, RankEffect, Save
from baton.core.rank.rank_room import RankRooms, RankRoomState, RankSaw
from baton.core.work import Copied, DigestDone, HostCopy, Job

Hash = Callable[[Job, Key, GroupName, Iterable[BlockIndex], int], Digest]
Sums = dict[GroupName, NDArray[np.uint64]]


class CopyTask(msgspec.Struct):
    """A copy that the leader has ordered and that has not ended."""

    order: Offload | Restore
    jobs: dict[Job, GroupName | None] = {}  # still open: a hash of a group, or the copy (None)
    sums: Sums = {}
    why: str = ""  # what has failed


class HostCopies:
    """Copies the state of rooms into the host store of one rank, and back."""

    def __init__(
        self,
        placement: Placement,
        rooms: RankRooms,
        pages: BlockTables,
        jobs: Iterator[int],
        digest: Hash,
        *,
        seal: bool,
    ) -> None:
        self._placement, self._rooms, self._pages = placement, rooms, pages
        self._jobs, self._digest, self._seal = jobs, digest, seal
        self._tasks: dict[Key, CopyTask] = {}
        self._of: dict[Job, CopyTask] = {}
        self._stored: dict[Key, Sums] = {}  # what the store may hold something of, and its sums

    def begin(self, order: Offload | Restore) -> list[RankEffect]:
        """The leader has ordered a copy."""
        saw = RankSaw.RESTORE if isinstance(order, Restore) else RankSaw.SAVE
        if self._rooms.see(order.key, saw) is RankRoomState.DROPPED:
            return []  # given up in the same turn
        task = self._tasks[order.key] = CopyTask(order)
        effects: list[RankEffect] = []
        blocks = self._blocks(order.length)
        slots = {g: self._pages.slots(order.key, g, b) for g, b in blocks.items()}
        copy = HostCopy(self._job(task, None), order.key, slots)
        if isinstance(order, Restore):
            return [Load(copy)]
        self._stored[order.key] = {}
        effects.append(Save(copy))
        return effects + self._hash(task)

    def _blocks(self, length: int) -> Mapping[GroupName, NDArray[np.int64]]:
        """Return the blocks of every group of which this rank holds a part."""
        table = self._placement.table
        due = {g.name: extent_blocks(g.extent, length, table.block_tokens) for g in table.groups}
        return {
            g: np.arange(b.start, b.end, dtype=np.int64)
            for g, b in due.items()
            if self._placement.block_bytes(g)
        }

    def _job(self, task: CopyTask, group: GroupName | None) -> Job:
        job = Job(next(self._jobs))
        task.jobs[job] = group
        self._of[job] = task
        return job

    def _hash(self, task: CopyTask) -> list[RankEffect]:
        if not self._seal:
            return []
        blocks = {
            g: [BlockIndex(int(b)) for b in numbers]
            for g, numbers in self._blocks(task.order.length).items()
        }
        order = task.order
        return [
            self._digest(self._job(task, g), order.key, g, numbers, order.length)
            for g, numbers in blocks.items()
        ]

    # ---- ends -----------------------------------------------------------------------------------

    def copied(self, done: Copied) -> tuple[list[RankEffect], Ballot | None]:
        """A copy has ended."""
        task = self._of.pop(done.job)
        del task.jobs[done.job]
        task.why = task.why or done.why
        loaded = isinstance(task.order, Restore) and not task.why
        return self._end(task, self._hash(task) if loaded and not self._dropped(task) else [])

    def _dropped(self, task: CopyTask) -> bool:
        return self._rooms.state(task.order.key) is RankRoomState.DROPPED

    def owns(self, job: Job) -> bool:
        """Return whether a hash was ordered here."""
        return job in self._of

    def hashed(self, done: DigestDone) -> tuple[list[RankEffect], Ballot | None]:
        """A hash has ended."""
        task = self._of.pop(done.job)
        group = task.jobs.pop(done.job)
        assert group is not None
        task.sums[group] = done.sums
        return self._end(task, [])

    def _end(
        self, task: CopyTask, effects: list[RankEffect]
    ) -> tuple[list[RankEffect], Ballot | None]:
        """Return the vote on a task when nothing of it is under way any more."""
        if task.jobs:
            return effects, None
        key, restores = task.order.key, isinstance(task.order, Restore)
        del self._tasks[key]
        if self._dropped(task):
            return [*effects, *self._discard(key)], None
        if not task.why and restores:
            task.why = self._difference(self._stored[key], task.sums)
        if task.why:
            self._rooms.see(key, RankSaw.COPY_FAILED)
            return effects, Ballot(task.order.order, Vote.FAILED, task.why, ())
        self._rooms.see(key, RankSaw.RESTORED if restores else RankSaw.SAVED)
        if restores:
            effects = [*effects, *self._discard(key)]
        else:
            self._stored[key] = task.sums
        return effects, Ballot(task.order.order, Vote.ARRIVED, "", ())

    def _difference(self, before: Sums, after: Sums) -> str:
        """Say which blocks do not come back as they went. The answer is empty if all do."""
        for group, sums in before.items():
            wrong = int((sums != after[group]).any(axis=1).sum())
            if wrong:
                return (
                    f"{wrong} of {len(sums)} blocks of group {group} came back from the "
                    "host store with other sums"
                )
        return ""

    def _discard(self, key: Key) -> list[RankEffect]:
        return [Discard(key)] if self._stored.pop(key, None) is not None else []

    # ---- rooms that end -------------------------------------------------------------------------

    def drop(self, key: Key) -> list[RankEffect]:
        """A room has been dropped: its copy is forgotten, now or when what is under way has
        ended."""
        return [] if key in self._tasks else self._discard(key)

    def busy(self) -> set[Key]:
        """Return the rooms of which a copy or a hash is under way."""
        return set(self._tasks)

    def __len__(self) -> int:
        """Count the rooms of which the store holds something, or of which a copy is under way."""
        return len(self._tasks.keys() | self._stored.keys())
