"""A rank's part of checkpoints: what cached pages lack at the end of a sequence, out of a room's
pages into the host store, and into the pages of later rooms.

    Keep   ──▶ Save, and Digest if it is to be sealed ──▶ vote      under a name that outlives the room
    Resume ──▶ Load ──▶ Digest of the same blocks, where they lie now ──▶ vote, with the sums; the leader judges them
    forget ──▶ Discard

The leader has the sums that the blocks had when they were computed, or when they were kept, if they
had not been sealed; a copy that is right must have these. While a copy or a hash is under way the
room is *busy*, and `quiet` is not said of it. A room that is dropped meanwhile does not end a Keep.
"""

from collections.abc import Callable, Iterable, Iterator

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Ballot, Keep, Resume, Vote
from baton.core.ids import BlockIndex, CheckpointName, GroupName, Key
from baton.core.memory.checkpoints import kept_blocks
from baton.core.memory.state import Placement
from baton.core.rank.block_tables import BlockTables
from baton.core.rank.rank_effects import Digest, Discard, Load, RankEffect, Save
from baton.core.rank.rank_room import RankRooms, RankRoomState, RankSaw
from baton.core.rank.rows import pack
from baton.core.work import Copied, DigestDone, HostCopy, Job

Hash = Callable[[Job, Key, GroupName, Iterable[BlockIndex], int], Digest]


class CheckpointTask(msgspec.Struct):
    """A copy that the leader has ordered and that has not ended."""

    order: Keep | Resume
    jobs: dict[Job, GroupName | None] = {}  # still open: a hash of a group, or the copy (None)
    sums: dict[GroupName, bytes] = {}
    why: str = ""  # what has failed


class CheckpointCopies:
    """Keeps and brings back the checkpoints of one rank."""

    def __init__(
        self,
        placement: Placement,
        rooms: RankRooms,
        pages: BlockTables,
        jobs: Iterator[int],
        digest: Hash,
    ) -> None:
        self._placement, self._rooms, self._pages = placement, rooms, pages
        self._jobs, self._digest = jobs, digest
        self._of: dict[Job, CheckpointTask] = {}

    def __len__(self) -> int:
        """Count the copies and hashes under way."""
        return len(self._of)

    def forget(self, name: CheckpointName) -> Discard:
        """Nobody resumes from this checkpoint any more, and no copy of it is under way."""
        return Discard(name)

    def keep(self, order: Keep) -> list[RankEffect]:
        """The leader has ordered to keep what cached pages lack of a room."""
        task = CheckpointTask(order)
        return [Save(self._copy(task)), *(self._hash(task) if order.seal else ())]

    def resume(self, order: Resume) -> list[RankEffect]:
        """The leader has ordered to bring a checkpoint into a room's pages."""
        if self._rooms.see(order.key, RankSaw.RESUME) is RankRoomState.DROPPED:
            return []  # given up in the same turn
        return [Load(self._copy(CheckpointTask(order)))]

    def _copy(self, task: CheckpointTask) -> HostCopy:
        order = task.order
        slots = {g: self._pages.slots(order.key, g, b) for g, b in self._blocks(order).items()}
        return HostCopy(self._job(task, None), order.name, slots)

    def _blocks(self, order: Keep | Resume) -> dict[GroupName, NDArray[np.int64]]:
        """Return the blocks of every group of which this rank holds a part."""
        placement = self._placement
        due = kept_blocks(placement.table, order.length, placement.page_blocks)
        return {
            group: np.arange(each.start, each.end, dtype=np.int64)
            for group, each in due.items()
            if each.size and placement.block_bytes(group)
        }

    def _job(self, task: CheckpointTask, group: GroupName | None) -> Job:
        job = Job(next(self._jobs))
        task.jobs[job] = group
        self._of[job] = task
        return job

    # ---- ends -----------------------------------------------------------------------------------

    def owns(self, job: Job) -> bool:
        """Return whether a copy or a hash was ordered here."""
        return job in self._of

    def copied(self, done: Copied) -> tuple[list[RankEffect], Ballot | None]:
        """A copy has ended."""
        task = self._of.pop(done.job)
        del task.jobs[done.job]
        task.why = done.why
        effects: list[RankEffect] = []
        if isinstance(task.order, Resume) and not task.why and not self._dropped(task):
            effects += self._hash(task)
        return effects, self._ballot(task)

    def _hash(self, task: CheckpointTask) -> list[RankEffect]:
        """Hash the blocks where they lie in the room's pages."""
        effects: list[RankEffect] = []
        for group, numbers in self._blocks(task.order).items():
            blocks = [BlockIndex(int(b)) for b in numbers]
            job, length = self._job(task, group), task.order.length
            effects.append(self._digest(job, task.order.key, group, blocks, length))
        return effects

    def hashed(self, done: DigestDone) -> tuple[list[RankEffect], Ballot | None]:
        """A hash has ended."""
        task = self._of.pop(done.job)
        group = task.jobs.pop(done.job)
        assert group is not None
        task.sums[group] = pack(done.sums)
        return [], self._ballot(task)

    def _ballot(self, task: CheckpointTask) -> Ballot | None:
        """Return the vote on a task when nothing of it is under way any more."""
        if task.jobs:
            return None
        order = task.order
        if isinstance(order, Resume) and not self._dropped(task):
            self._rooms.see(order.key, RankSaw.COPY_FAILED if task.why else RankSaw.RESUMED)
        vote = Vote.FAILED if task.why else Vote.ARRIVED
        return Ballot(order.order, vote, task.why, (), task.sums)

    def _dropped(self, task: CheckpointTask) -> bool:
        return self._rooms.state(task.order.key) is RankRoomState.DROPPED

    def busy(self) -> set[Key]:
        """Return the rooms of which a copy or a hash is under way."""
        return {task.order.key for task in self._of.values()}
