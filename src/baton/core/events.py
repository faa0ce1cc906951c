"""What enters the core: the closed sets of events of a leader, a rank and a gateway's front.

    sessions ──MessageReceived, PeerLost──▶ Leader, Front ──effects──▶ the shell performs them
    ports ──BatchDone, Ended, DigestDone──▶ Rank

Each of the three takes events only by `step`, so a run is the sequence of its events and effects.
"""

from typing import Protocol, TypeVar

import msgspec

from baton.core.agreement import Report, StepPlan, Wedged
from baton.core.door import Cancel, Submit
from baton.core.frames import Said
from baton.core.ids import Boot, GroupName, Key, Micros, Page, Room
from baton.core.messages import AskLedger, Clear, Drain, Drawn, ResetCache
from baton.core.work import (
    BatchDone,
    Connected,
    Copied,
    DigestDone,
    GrammarReady,
    Handle,
    ReadEnded,
    Released,
)


class GatewayConnected(msgspec.Struct, frozen=True, tag="gateway_connected"):
    """A session with a gateway has begun."""

    boot: Boot


class PeerConnected(msgspec.Struct, frozen=True, tag="peer_connected"):
    """A session with the leader of another worker has begun."""

    boot: Boot


class PeerLost(msgspec.Struct, frozen=True, tag="peer_lost"):
    """A session has ended, whoever was at its other end."""

    boot: Boot
    why: str


class MessageReceived(msgspec.Struct, frozen=True, tag="message_received", gc=False):
    """A message came in, once and in order."""

    sender: Boot
    message: Said


class Delivered(msgspec.Struct, frozen=True, tag="delivered"):
    """A process has received all that was sent to it before `AskDelivery`."""

    boot: Boot


class RankReported(msgspec.Struct, frozen=True, tag="rank_reported"):
    """A rank of this worker has reported."""

    report: Report


class TimerDue(msgspec.Struct, frozen=True, tag="timer_due"):
    """The time that `next_wake` named has come."""


class DrainAsked(msgspec.Struct, frozen=True, tag="drain_asked"):
    """Whoever runs this process wants the worker to end when its requests have ended."""


class GuestAllocated(msgspec.Struct, frozen=True, tag="guest_allocated"):
    """The engine that this worker is a guest of has given pages to a request, after those that it
    has already.

    hit: positions whose state the engine had cached, in whole blocks
    first: these are the first pages of the request
    """

    key: Key
    pages: dict[GroupName, tuple[Page, ...]]
    hit: int
    first: bool


class GuestScheduled(msgspec.Struct, frozen=True, tag="guest_scheduled"):
    """The engine's next step computes prompts: by request, positions [start, end).

    written: the pages that this step is the first to compute into since they were given out,
        also for requests that this worker knows nothing of
    """

    rows: dict[Key, tuple[int, int]]
    written: dict[GroupName, tuple[Page, ...]]


class GuestComputes(msgspec.Struct, frozen=True, tag="guest_computes"):
    """The engine does not wait for the state of a prompt any more: it computes the prompt itself,
    and goes on."""

    key: Key


class GuestFinished(msgspec.Struct, frozen=True, tag="guest_finished"):
    """The engine has ended a request. drawn: the token after the prompt; None if there is none.
    preempted: it has only taken its pages back, as they ran short"""

    key: Key
    drawn: Drawn | None
    preempted: bool = False


class Submitted(msgspec.Struct, frozen=True, tag="submitted"):
    """A client has sent a request. room: a new one, never used before"""

    submit: Submit
    room: Room


class AskWorkers(msgspec.Struct, frozen=True, tag="ask_workers"):
    """Somebody asks all workers, or those with this name. The number of the question is new."""

    message: AskLedger | Clear | ResetCache | Drain
    worker: str | None = None


class ForgetQuestion(msgspec.Struct, frozen=True, tag="forget_question"):
    """Nobody waits for answers to this question any more."""

    question: int


class ReadRefused(msgspec.Struct, frozen=True, tag="read_refused"):
    """The fabric refused a read before anything was submitted."""

    handle: Handle
    why: str


class ReportDue(msgspec.Struct, frozen=True, tag="report_due"):
    """The leader can be told what has changed on this rank."""


GuestEvent = GuestAllocated | GuestScheduled | GuestComputes | GuestFinished
LeaderEvent = (
    GatewayConnected
    | PeerConnected
    | PeerLost
    | MessageReceived
    | Delivered
    | RankReported
    | TimerDue
    | DrainAsked
    | GuestAllocated
    | GuestScheduled
    | GuestComputes
    | GuestFinished
)
FrontEvent = (
    Submitted | Cancel | PeerLost | MessageReceived | TimerDue | AskWorkers | ForgetQuestion
)
RankEvent = (
    StepPlan
    | Connected
    | ReadRefused
    | ReadEnded
    | Released
    | BatchDone
    | DigestDone
    | GrammarReady
    | Copied
    | Wedged
    | ReportDue
)

E = TypeVar("E", contravariant=True)
F = TypeVar("F")


class Core(Protocol[E, F]):
    """A leader, a rank or a front, as a pump drives it and a recording sees it."""

    def step(self, event: E, now: Micros, /) -> list[F]:
        """Take one event, and return what is to be done, in order."""
        ...

    def next_wake(self) -> Micros | None:
        """Return when a `TimerDue` is wanted next; None if not at all. Only `step` changes it."""
        ...
