"""Admission: which of the waiting rooms get their pages now.

    QUEUED, in the policy's order ──follows nobody, the policy lets it, its pages are free──▶ HELD
                                                          └── not free: those behind it wait too, and the policy makes way

All roles share one loop and differ in the policy: prefill bounds what runs ahead of decode
(ahead.py), and workers that generate bring preempted rooms back first (preemption.py).
"""

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Generic, Protocol, TypeVar

from baton.core.ids import GroupName
from baton.core.memory.pages import PageState
from baton.core.memory.prefix_cache import CachedPage
from baton.core.scheduler.room import OpenRoom, Saw
from baton.core.scheduler.worker import Worker

R = TypeVar("R", bound=OpenRoom)

Want = Mapping[GroupName, int]
Reuse = Sequence[CachedPage]


class Judgement(Enum):
    """What a policy decides about one room."""

    ADMIT = "admit"  # if its pages are free
    SKIP = "skip"  # it waits, but those behind it need not
    MAKE_WAY = "make way"  # others are to give up memory for it first
    STOP = "stop"  # nobody can be admitted now


class AdmissionPolicy(Protocol[R]):
    """Decides which room is admitted first, and which has to wait though memory is free."""

    def waiting(self) -> list[R]:
        """Return the rooms that wait for memory, in the order in which they are to be admitted."""
        ...

    def judge(self, room: R, want: Want, reuse: Reuse) -> Judgement:
        """Decide whether a room may have the pages that it wants, those in `reuse` among them."""
        ...

    def make_way(self, room: R, want: Want, reuse: Reuse) -> None:
        """A room cannot have its pages. Let others give up theirs, if that helps."""
        ...

    def entered(self, room: R) -> None:
        """A room is being admitted."""
        ...

    def unadmitted(self, room: R) -> bool:
        """Whether a room that has its pages here still waits for memory elsewhere."""
        ...


class Admission(Generic[R]):
    """The admission loop of one worker."""

    def __init__(self, worker: Worker[R], policy: AdmissionPolicy[R]) -> None:
        self._worker, self.policy = worker, policy

    def admit(self) -> Iterator[tuple[R, Reuse]]:
        """Give pages to rooms that wait, as far as the policy and memory allow. Yields each
        admitted room with the cached pages that it begins with."""
        worker, policy, role = self._worker, self.policy, self._worker.role
        waiting = policy.waiting()
        leading = worker.rooms.in_state(*role.bringing) if waiting else []
        for room in waiting:
            if worker.followers.waits(room, leading, worker.marks):
                continue
            reuse = worker.reuse.find(room)
            want = worker.pages_for(room, room.length + role.generates)
            judgement = policy.judge(room, want, reuse)
            if judgement is Judgement.SKIP:
                continue
            if judgement is Judgement.STOP:
                return
            state = PageState.COMPUTING if room.computes else PageState.FETCHING
            position = room.begins_at if room.computes else room.length
            admits = judgement is Judgement.ADMIT
            if not (
                admits and worker.blocks.take(room, want, state, position=position, reuse=reuse)
            ):
                policy.make_way(room, want, reuse)
                return
            worker.followers.forget(room.key)
            leading.append(room)
            policy.entered(room)
            worker.see(room, _held(room))
            yield room, reuse


def _held(room: OpenRoom) -> Saw:
    """Return what has happened to a room that has got its pages."""
    if not room.computes:
        return Saw.HELD
    return Saw.HELD_TO_COMPUTE if room.checkpoint is None else Saw.HELD_TO_RESUME
