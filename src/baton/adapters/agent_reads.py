"""How reads by a transfer engine make progress on the fabric thread, and how they end when they do not.

    begin ─▶ parts posted, oldest read first, WINDOW_PARTS under way ─▶ all done ─▶ OK
                │ cancel, deadline: no further part; wait for those under way ─────▶ FAILED
                │   ... GRACE_US later, or at once when a part breaks:
                └─▶ the peer's reading agent is deleted, which ends all reads from it ─▶ FAILED
                        ... the engine keeps a part, so the agent lives on: UNKNOWN for all that were under way through it,
                            GRACE_US later; tried again until the engine lets go: the agent is deleted ─▶ Released

Invariant: a read of which a part was given back before it was done is not quiet until the agent has been deleted, whatever
the engine said when it took that part back: NIXL takes one whose bytes still come.

Each peer is read through an agent of its own, because only the end of an agent (NIXL: of its UCX worker) ends its reads: after
NIXL's `remove_remote_agent` alone, a read over TCP from a source that had been stopped still landed when the source woke.

Everything here runs on the fabric thread.
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

WINDOW_PARTS = 4  # under way at a time over all reads; keeps a network busy, and means nothing where posting copies
GRACE_US = 2_000_000  # from a stop to the end of the reading agent, and from there to UNKNOWN: 1 s drains the window at 1 Gbit/s


class PartState(Enum):
    """What an engine says about one posted part."""

    MOVING = "moving"
    DONE = "done"
    BROKEN = "broken"  # ended badly; some of its requests may still be under way until the endpoint is torn down


class Part(Protocol):
    """One posted transfer."""

    why: str

    @property
    def state(self) -> PartState:
        """As of the last look."""
        ...

    def look(self) -> PartState:
        """Ask the engine, which may also let it work."""
        ...

    def release(self) -> bool:
        """Give it back; False if the engine will not have it yet. May be asked again."""
        ...


class Agent(Protocol):
    """One instance of a transfer engine. Every call on one thread at a time."""

    def register(self, regions: Sequence[Region]) -> bytes:
        """Make memory readable and ready as a target; what a peer's agent needs to find us. Raises ConfigError."""
        ...

    def add(self, metadata: bytes) -> str:
        """Learn a peer; the name that stands in its metadata. Raises FabricError."""
        ...

    def remove(self, name: str) -> None:
        """Close what leads to a peer and forget it. An unknown name is ignored."""
        ...

    def post(self, name: str, ranges: Ranges) -> Part:
        """Start to read. Raises FabricError: refused before anything was submitted."""
        ...

    def progress(self) -> None:
        """Let the engine work where it has no thread of its own."""
        ...

    def close(self) -> None:
        """Delete the instance, which ends all it does; nobody may hold a part of it any more."""
        ...


@dataclass(frozen=True, slots=True)
class PartLimits:
    """Of one part. A stop is seen between parts."""

    part_bytes: int
    part_ranges: int


@dataclass(slots=True, eq=False)
class Link:
    """A peer as the fabric thread knows it.

    reader: the agent that reads from it, None until needed (again)
    leaving: why the reader is to go, while the engine keeps a part of it: nothing may be posted. "" if it is not
    leaving_since: when that was first tried
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
    adrift: bool = False  # a part was given back before it was done: it may land until the reader has been deleted
    why: str = ""  # it must end early
    stopped_at: Micros | None = None
    ended: bool = False  # UNKNOWN was said; Released is owed

    @property
    def may_land(self) -> bool:
        """Whether something of it may still come."""
        return bool(self.moving) or self.adrift


class AgentReads:
    """The reads under way. `make_reader` makes an agent in which our pools are registered as targets."""

    def __init__(self, make_reader: Callable[[], Agent], reads: OpenReads, clock: Clock, limits: PartLimits) -> None:
        self._make_reader, self._reads, self._clock, self._limits = make_reader, reads, clock, limits
        self._jobs: list[_Job] = []
        self._links: list[Link] = []

    @property
    def idle(self) -> bool:
        """No read is open."""
        return not self._jobs

    def load(self, link: Link) -> None:
        """Make the agent that reads from a peer; takes about 20 ms.

        Raises:
            FabricError: its metadata does not parse or is another agent's
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
        """Take in a read."""
        parts = cut(read.ranges, part_bytes=self._limits.part_bytes, part_ranges=self._limits.part_ranges)
        self._jobs.append(_Job(read, link, parts[::-1]))

    def tear_down(self, link: Link, why: str) -> None:
        """End all reads from a peer by ending the agent that reads from it; a later read makes a new one."""
        for job in self._of(link):
            self._stop(job, why)
        if link.reader is None or link.leaving:
            return
        link.reader.remove(link.agent)
        link.leaving, link.leaving_since = why, self._clock.now()
        self._delete_reader(link)

    def forget(self, link: Link) -> None:
        """The peer will not be read again; its reading agent stays ours until the engine lets go of it."""
        link.forgotten = True
        self.tear_down(link, "disconnected")
        self._drop_links()

    def step(self) -> bool:
        """Post at most one part and look at every read. True if anything moved on."""
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
        """Let UCX work on every connection."""
        for link in self._links:
            if link.reader is not None:
                link.reader.progress()

    def shut_down(self) -> None:
        """End every reading agent; all reads end but those that may land through an agent which the engine keeps."""
        for link in list(self._links):
            self.forget(link)
        for job in self._jobs:
            self._stop(job, "the fabric is closed")
        self.step()

    def _of(self, link: Link) -> list[_Job]:
        return [job for job in self._jobs if job.link is link]

    def _delete_reader(self, link: Link) -> None:
        """Give back what was posted through an agent that is to go, and delete it if the engine has taken everything."""
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
        self._links = [link for link in self._links if link.reader is not None or not link.forgotten]

    def _stop(self, job: _Job, why: str) -> None:
        if not job.why:
            job.why, job.stopped_at = why, self._clock.now()
            job.waiting.clear()

    def _heed(self, job: _Job) -> None:
        """Stop what must end early; tear down the endpoint where that was not enough."""
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
        """Look at the parts under way; True if one has ended."""
        there = len(job.moving)
        job.moving = [part for part in job.moving if not (part.look() is PartState.DONE and part.release())]
        broken = next((part.why for part in job.moving if part.state is PartState.BROKEN), None)
        if broken is not None and not job.link.leaving:
            self._stop(job, broken)
            self.tear_down(job.link, f"the endpoint broke: {broken}")
        return len(job.moving) != there

    def _finish(self, job: _Job) -> bool:
        """State the job's end if it has come; True when nothing more is owed."""
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
        """Whether its peer can be read. After a tear-down a new agent is made once the old one has been deleted.

        A read waits GRACE_US for that; after it one fails at once, so that it may be tried elsewhere.
        """
        if job.link.leaving:
            if self._clock.now() >= job.link.leaving_since + GRACE_US:
                self._stop(job, f"the engine keeps the agent that reads from this peer: {job.link.leaving}")
            return False
        try:
            if job.link.reader is None:
                self.load(job.link)
        except (FabricError, ConfigError) as error:
            self._stop(job, str(error))
            return False
        return True
