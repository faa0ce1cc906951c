"""How reads make progress on the NIXL fabric thread, and how they end when they do not.

    begin ─▶ parts posted, oldest read first, WINDOW_PARTS under way ─▶ all done ─▶ OK
                │ cancel, deadline: no further part; wait for those under way ─────▶ FAILED
                │   ... GRACE_US later, or at once when a part breaks:
                └─▶ the peer's reading agent is destroyed, which ends all reads from it ─▶ FAILED
                        ... NIXL keeps a part: UNKNOWN, tried again until it lets go: Released

Each peer is read through an agent of its own, because only the end of an agent (of its UCX worker) ends its reads: after
NIXL's `remove_remote_agent` alone, a read over TCP from a source that had been stopped still landed when the source woke.

Everything here runs on the fabric thread.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from baton.adapters.nixl_agent import Agent, Part, PartState
from baton.adapters.reads import Desk, Ranges, Read, Region, cut
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import GroupName, Micros, RankId
from baton.ports.clock import Clock
from baton.ports.fabric import Outcome

PART_BYTES = 32 << 20  # a stop is seen between parts: 2 to 4 ms on one host
PART_RANGES = 2048
WINDOW_PARTS = 4  # under way at a time over all reads; keeps a network busy, and means nothing where posting copies
GRACE_US = 2_000_000  # from a stop to the end of the reading agent: the window drains in 1 s at 1 Gbit/s


@dataclass(slots=True, eq=False)
class Link:
    """A peer as the fabric thread knows it.

    reader: the agent that reads from it, None until needed (again)
    dying: the reader is to go, but NIXL keeps a part of it: nothing may be posted
    """

    peer: RankId
    agent: str
    metadata: bytes
    regions: dict[GroupName, Region]
    reader: Agent | None = None
    dying: bool = False


@dataclass(slots=True, eq=False)
class _Job:
    read: Read
    link: Link
    waiting: list[Ranges]  # parts to post, the next one last
    moving: list[Part] = field(default_factory=list)
    why: str = ""  # it must end early
    stopped_at: Micros | None = None
    ended: bool = False  # UNKNOWN was said; Released is owed


class Progress:
    """The reads under way. `make_reader` makes an agent in which our pools are registered as targets."""

    def __init__(self, make_reader: Callable[[], Agent], desk: Desk, clock: Clock) -> None:
        self._make_reader, self._desk, self._clock = make_reader, desk, clock
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

    def begin(self, read: Read, link: Link) -> None:
        """Take in a read."""
        parts = cut(read.ranges, part_bytes=PART_BYTES, part_ranges=PART_RANGES)
        self._jobs.append(_Job(read, link, parts[::-1]))

    def tear_down(self, link: Link, why: str) -> None:
        """End all reads from a peer by ending the agent that reads from it; a later read makes a new one."""
        jobs = [job for job in self._jobs if job.link is link]
        for job in jobs:
            self._stop(job, why)
        if link.reader is None:
            return
        link.reader.remove(link.agent)
        for job in jobs:
            job.moving = [part for part in job.moving if not part.release()]
        link.dying = any(job.moving for job in jobs)
        if not link.dying:
            link.reader.close()
            link.reader = None

    def forget(self, link: Link) -> None:
        """The peer will not be read again."""
        self.tear_down(link, "disconnected")
        self._links.remove(link)

    def step(self) -> bool:
        """Post at most one part and look at every read. True if anything moved on."""
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
        """End every reading agent; all reads end."""
        for link in list(self._links):
            self.forget(link)
        for job in self._jobs:
            self._stop(job, "the fabric is closed")
        self.step()

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
        overdue = job.stopped_at is not None and now >= job.stopped_at + GRACE_US
        if job.moving and (overdue or job.link.dying):
            self.tear_down(job.link, f"a read did not end in time ({job.why})")
        if job.moving and overdue and not job.ended:
            job.ended = True
            self._desk.end(job.read, Outcome.UNKNOWN, job.why)

    def _look(self, job: _Job) -> bool:
        """Look at the parts under way; True if one has ended."""
        there = len(job.moving)
        job.moving = [part for part in job.moving if not (part.look() is PartState.DONE and part.release())]
        broken = next((part for part in job.moving if part.state is PartState.BROKEN), None)
        if broken is not None:
            self._stop(job, broken.why)
            self.tear_down(job.link, f"the endpoint broke: {broken.why}")
        return len(job.moving) != there

    def _finish(self, job: _Job) -> bool:
        """State the job's end if it has come; True when nothing more is owed."""
        if job.moving or job.waiting:
            return False
        if job.ended:
            self._desk.release(job.read.handle)
        else:
            self._desk.end(job.read, Outcome.FAILED if job.why else Outcome.OK, job.why)
        return True

    def _post_one(self) -> bool:
        if sum(len(job.moving) for job in self._jobs) >= WINDOW_PARTS:
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
        """Whether its peer can be read; after a tear-down a new agent is made once nothing of the old one moves."""
        if job.link.dying:
            return False
        try:
            if job.link.reader is None:
                self.load(job.link)
        except (FabricError, ConfigError) as error:
            self._stop(job, str(error))
            return False
        return True
