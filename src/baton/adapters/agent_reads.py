"""Reads by a transfer engine: how they progress on the fabric thread, and how they are ended.

    begin ─▶ parts posted, oldest read first, WINDOW_PARTS under way ─▶ all done ─▶ OK
                │ cancel, deadline: post no further part; wait for those under way ─▶ FAILED
                │   ... GRACE_US later, or at once if a part breaks:
                └─▶ the peer's reading agent is deleted, which ends all reads from it ─▶ FAILED
                      ... if the engine keeps a part, the agent cannot be deleted. GRACE_US later
                          all reads with parts under way through it end ─▶ UNKNOWN
                          when the engine lets go and the agent is deleted ─▶ Released

Invariant: if a part was released before it was done, its read may land until the agent is deleted,
even if the engine accepted the release: NIXL accepts it for parts whose bytes still come.

Each peer is read through an agent of its own, because only the deletion of an agent (in NIXL: of
its UCX worker) ends its reads. After NIXL's `remove_remote_agent` alone, a TCP read from a stopped
source still landed when the source continued.

Everything in this module runs on the fabric thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from baton.adapters.reads import OpenRead, OpenReads, Ranges, Region, cut
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import GroupName, Micros, RankId
from baton.ports.clock import Clock
from baton.ports.fabric import ReadOutcome

WINDOW_PARTS = 4  # under way over all reads; keeps a network busy; no effect if posting copies
# from stop to tear-down, and from there to UNKNOWN; 1 s drains the window at 1 Gbit/s
GRACE_US = 2_000_000


class PartState(Enum):
    """The state of a posted part, as the engine reports it."""

    MOVING = "moving"
    DONE = "done"
    # failed; some of its requests may be under way until the endpoint is torn down
    BROKEN = "broken"


class Part(Protocol):
    """One posted transfer."""

    why: str

    @property
    def state(self) -> PartState:
        """The state at the last look."""
        ...

    def look(self) -> PartState:
        """Ask the engine for the state; this may also let the engine make progress."""
        ...

    def release(self) -> bool:
        """Release the part; returns False if the engine
        does not allow it yet. May be called again."""
        ...


class Agent(Protocol):
    """One instance of a transfer engine. Only one thread may call it at a time."""

    def register(self, regions: Sequence[Region]) -> bytes:
        """Register memory as source and target; returns the
        metadata that peers need. Raises ConfigError."""
        ...

    def add(self, metadata: bytes) -> str:
        """Load a peer's metadata; returns the name in it. Raises FabricError."""
        ...

    def remove(self, name: str) -> None:
        """Close the connection to a peer and forget it. An unknown name is ignored."""
        ...

    def post(self, name: str, ranges: Ranges) -> Part:
        """Start a read. Raises FabricError if it is refused; then nothing was submitted."""
        ...

    def progress(self) -> None:
        """Let an engine without a thread of its own make progress."""
        ...

    def close(self) -> None:
        """Delete the instance, which ends all its work. No part of it may be in use any more."""
        ...


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Limits of one part. A stop takes effect between parts."""

    part_bytes: int
    part_ranges: int


@dataclass(slots=True, eq=False)
class Link:
    """The fabric thread's view of a peer.

    Attributes:
        reader: the agent that reads from the peer; None until it is needed (again)
        leaving: why the reader must be deleted, while the engine keeps a part of it and nothing may
            be posted; "" = it need not be deleted
        leaving_since: time of the first attempt to delete it
        forgotten: the peer will not be read again through this link
    """

    peer: RankId
    agent: str
    metadata: bytes
    regions: dict[GroupName, Region]
    reader: Agent | None = None
    leaving: str = ""
    leaving_since: Micros = field(default=Micros(0))
    forgotten: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    read: OpenRead
    link: Link
    waiting: list[Ranges]  # parts to post, the next one last
    moving: list[Part] = field(default_factory=list)
    # a part was released before it was done, so it may land until the reader is deleted
    adrift: bool = False
    why: str = ""  # why the read must end early; "" = it need not
    stopped_at: Micros | None = None
    ended: bool = False  # it ended UNKNOWN, and Released has still to be reported

    @property
    def may_land(self) -> bool:
        """Whether bytes of the read may still land."""
        return bool(self.moving) or self.adrift


class AgentReads:
    """The reads under way. `make_reader` makes an agent with our pools registered as targets."""

    def __init__(
        self, make_reader: Callable[[], Agent], reads: OpenReads, clock: Clock, limits: PartLimits
    ) -> None:
        self._make_reader, self._reads, self._clock, self._limits = (
            make_reader,
            reads,
            clock,
            limits,
        )
        self._jobs: list[_Job] = []
        self._links: list[Link] = []

    @property
    def idle(self) -> bool:
        """Whether no read is open."""
        return not self._jobs

    def load(self, link: Link) -> None:
        """Make the agent that reads from a peer; takes about 20 ms.

        Raises:
            FabricError: the peer's metadata does not parse, or is another agent's
        """
        reader = self._make_reader()
        try:
            name = reader.add(link.metadata)
            if name != link.agent:
                raise FabricError(f"the metadata of {link.agent} is that of {name}")
        except FabricError:
            reader.close()
            raise
        link.reader = reader
        if link not in self._links:
            self._links.append(link)

    def begin(self, read: OpenRead, link: Link) -> None:
        """Begin a read."""
        parts = cut(
            read.ranges, part_bytes=self._limits.part_bytes, part_ranges=self._limits.part_ranges
        )
        self._jobs.append(_Job(read, link, parts[::-1]))

    def tear_down(self, link: Link, why: str) -> None:
        """End all reads from a peer by deleting its
        reading agent; a later read makes a new agent."""
        for job in self._of(link):
            self._stop(job, why)
        if link.reader is None or link.leaving:
            return
        link.reader.remove(link.agent)
        link.leaving, link.leaving_since = why, self._clock.now()
        self._delete_reader(link)

    def forget(self, link: Link) -> None:
        """Note that a peer will not be read again; keep
        its agent until the engine lets go of it."""
        link.forgotten = True
        self.tear_down(link, "disconnected")
        self._drop_links()

    def step(self) -> bool:
        """Post at most one part and look at every read; returns whether anything progressed."""
        for link in [link for link in self._links if link.leaving]:
            self._delete_reader(link)
        self._drop_links()
        for job in self._jobs:
            self._heed(job)
        moved = self._post_one()
        for job in self._jobs:
            moved |= self._look(job)
        still = [job for job in self._jobs if not self._finish(job)]
        moved |= len(still) != len(self._jobs)
        self._jobs = still
        return moved

    def progress(self) -> None:
        """Let the engine make progress on every connection."""
        for link in self._links:
            if link.reader is not None:
                link.reader.progress()

    def shut_down(self) -> None:
        """Delete every reading agent. Reads end, except
        those that may land through an agent still kept."""
        for link in list(self._links):
            self.forget(link)
        for job in self._jobs:
            self._stop(job, "the fabric is closed")
        self.step()

    def _of(self, link: Link) -> list[_Job]:
        return [job for job in self._jobs if job.link is link]

    def _delete_reader(self, link: Link) -> None:
        """Release the parts of an agent that must go, and delete the agent if all are released."""
        assert link.reader is not None
        jobs = self._of(link)
        for job in jobs:
            kept = [part for part in job.moving if not part.release()]
            job.adrift |= len(kept) < len(job.moving)
            job.moving = kept
        if any(job.moving for job in jobs):
            return
        link.reader.close()
        link.reader, link.leaving = None, ""
        for job in jobs:
            job.adrift = False

    def _drop_links(self) -> None:
        self._links = [
            link for link in self._links if link.reader is not None or not link.forgotten
        ]

    def _stop(self, job: _Job, why: str) -> None:
        if not job.why:
            job.why, job.stopped_at = why, self._clock.now()
            job.waiting.clear()

    def _heed(self, job: _Job) -> None:
        """Stop a read that must end early; tear down the endpoint if that was not enough."""
        now = self._clock.now()
        if job.read.stop:
            self._stop(job, job.read.stop)
        elif now >= job.read.due:
            self._stop(job, "deadline passed")
        if job.stopped_at is None or now < job.stopped_at + GRACE_US or not job.may_land:
            return
        if not job.link.leaving:
            self.tear_down(job.link, f"a read did not end in time ({job.why})")
        if job.may_land and not job.ended:
            job.ended = True
            self._reads.end(job.read, ReadOutcome.UNKNOWN, job.why)

    def _look(self, job: _Job) -> bool:
        """Look at the parts under way; returns True if one has ended."""
        there = len(job.moving)
        job.moving = [
            part for part in job.moving if not (part.look() is PartState.DONE and part.release())
        ]
        broken = next((part.why for part in job.moving if part.state is PartState.BROKEN), None)
        if broken is not None and not job.link.leaving:
            self._stop(job, broken)
            self.tear_down(job.link, f"the endpoint broke: {broken}")
        return len(job.moving) != there

    def _finish(self, job: _Job) -> bool:
        """Report the job's end if it has come; returns True if nothing is left to report."""
        if job.may_land or job.waiting:
            return False
        if job.ended:
            self._reads.release(job.read.handle)
        else:
            self._reads.end(job.read, ReadOutcome.FAILED if job.why else ReadOutcome.OK, job.why)
        return True

    def _post_one(self) -> bool:
        if sum(len(job.moving) for job in self._jobs if not job.link.leaving) >= WINDOW_PARTS:
            return False
        job = next((job for job in self._jobs if job.waiting and self._ready(job)), None)
        if job is None:
            return False
        assert job.link.reader is not None
        try:
            job.moving.append(job.link.reader.post(job.link.agent, job.waiting.pop()))
        except FabricError as error:
            self._stop(job, str(error))
        return True

    def _ready(self, job: _Job) -> bool:
        """Whether the job's peer can be read.

        After a tear-down, a new agent is made once the old one is deleted. A read waits GRACE_US
        for that; later reads fail at once, so that their requests can go elsewhere.
        """
        if job.link.leaving:
            if self._clock.now() >= job.link.leaving_since + GRACE_US:
                self._stop(
                    job, f"the engine keeps the agent that reads from this peer: {job.link.leaving}"
                )
            return False
        try:
            if job.link.reader is None:
                self.load(job.link)
        except (FabricError, ConfigError) as error:
            self._stop(job, str(error))
            return False
        return True
