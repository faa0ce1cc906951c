"""What a journal holds: how the core objects of a process were made, then one step for each thing that entered them.

    Header │ LeaderParts, RankParts (a worker) or FrontParts (a gateway) │ Step │ Step │ ...

A step is complete: the entry, its time, what the core asked of the outside meanwhile, and what it put out. No key/value
state is ever in it; prompts and tokens are, as ids.
"""

from enum import Enum

import msgspec

from baton.core.agreement import Report, StepPlan, Wedged
from baton.core.cores import FrontParts, LeaderParts, RankParts
from baton.core.door import Cancel, Submit
from baton.core.frames import Said
from baton.core.ids import Boot, Micros, RankId
from baton.core.rank_effects import CancelRead, ClearPools, Compute, Connect, Digest, Discard, Disconnect, Load, Read, Save
from baton.core.request import Say
from baton.core.room import Dial, GiveUp, HangUp, Issue, Send
from baton.core.work import BatchDone, Copied, DigestDone, Ended, Handle, Released

FORMAT = 1


class Header(msgspec.Struct, frozen=True, tag="baton_log"):
    """First in a file. Its layout stays in every version of the format: two versions must be able to say so."""

    format: int
    protocol: int
    version: str  # of Baton, for people


class Kind(Enum):
    """The core object of a process that a step is about."""

    LEADER = "leader"
    RANK = "rank"
    FRONT = "front"


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of all entries: one call of a core object's method, as a value."""


# ---- into a leader, and into a gateway's front --------------------------------------------------


class GatewayUp(Entry, frozen=True, tag="gateway_up"):
    """A session with a gateway has begun."""

    boot: Boot


class PeerUp(Entry, frozen=True, tag="peer_up"):
    """A session with another leader has begun."""

    boot: Boot


class PeerLost(Entry, frozen=True, tag="peer_lost"):
    """A session has ended."""

    boot: Boot
    why: str


class Heard(Entry, frozen=True, tag="heard"):
    """A message came in."""

    sender: Boot
    message: Said


class Reported(Entry, frozen=True, tag="reported"):
    """A rank has reported."""

    report: Report


class Timer(Entry, frozen=True, tag="timer"):
    """A timer was due."""


class Submitted(Entry, frozen=True, tag="submitted"):
    """A client asks."""

    submit: Submit


class Cancelled(Entry, frozen=True, tag="cancelled"):
    """A client is gone, or has enough."""

    cancel: Cancel


class LedgerAsked(Entry, frozen=True, tag="ledger_asked"):
    """Somebody wants the books of all workers."""

    audit: bool = True


class ClearAsked(Entry, frozen=True, tag="clear_asked"):
    """Somebody wants the pools of all workers zeroed."""


class ResetCacheAsked(Entry, frozen=True, tag="reset_cache_asked"):
    """Somebody wants the prefix caches of all workers emptied, or of those of this name."""

    worker: str | None = None


class LedgerForgotten(Entry, frozen=True, tag="ledger_forgotten"):
    """That question has ended."""

    question: int


# ---- into a rank --------------------------------------------------------------------------------


class Applied(Entry, frozen=True, tag="applied"):
    """The leader's next plan."""

    plan: StepPlan


class Connected(Entry, frozen=True, tag="connected"):
    """A Connect was answered."""

    peer: RankId
    why: str


class ReadRefused(Entry, frozen=True, tag="read_refused"):
    """A Read was refused before anything was submitted."""

    handle: Handle
    why: str


class ReadEnded(Entry, frozen=True, tag="read_ended"):
    """A read has ended."""

    end: Ended


class ReadReleased(Entry, frozen=True, tag="read_released"):
    """A read that had ended unknown can land nothing more."""

    end: Released


class Computed(Entry, frozen=True, tag="computed"):
    """A batch has ended."""

    done: BatchDone


class Hashed(Entry, frozen=True, tag="hashed"):
    """Blocks have been hashed."""

    done: DigestDone


class HostCopied(Entry, frozen=True, tag="host_copied"):
    """A copy to or from the host store has ended."""

    done: Copied


class FoundWedged(Entry, frozen=True, tag="found_wedged"):
    """Something that was handed to a port does not end."""

    found: Wedged


class ReportTaken(Entry, frozen=True, tag="report_taken"):
    """There was a report to take; calls that found none change nothing and are not written down."""


AnyEntry = (
    GatewayUp
    | PeerUp
    | PeerLost
    | Heard
    | Reported
    | Timer
    | Submitted
    | Cancelled
    | LedgerAsked
    | ClearAsked
    | ResetCacheAsked
    | LedgerForgotten
    | Applied
    | Connected
    | ReadRefused
    | ReadEnded
    | ReadReleased
    | Computed
    | Hashed
    | HostCopied
    | FoundWedged
    | ReportTaken
)


# ---- what the core asked meanwhile --------------------------------------------------------------


class DrewBits(msgspec.Struct, frozen=True, tag="drew_bits", forbid_unknown_fields=True):
    """Random bits; `value` in hex, for they are more than msgpack's integers hold."""

    count: int
    value: str


Answer = DrewBits


# ---- what came out ------------------------------------------------------------------------------


class Asked(msgspec.Struct, frozen=True, tag="asked", forbid_unknown_fields=True):
    """The number of the question about all books."""

    question: int


class Unanswered(msgspec.Struct, frozen=True, tag="unanswered", forbid_unknown_fields=True):
    """The names of workers that have not answered it."""

    names: tuple[str, ...]


class Raised(msgspec.Struct, frozen=True, tag="raised", forbid_unknown_fields=True):
    """The call ended in an exception."""

    kind: str
    text: str


Out = (
    Send
    | Issue
    | Dial
    | HangUp
    | GiveUp
    | Say
    | Connect
    | Disconnect
    | Read
    | CancelRead
    | ClearPools
    | Compute
    | Digest
    | Save
    | Load
    | Discard
    | Report
    | Asked
    | Unanswered
    | Raised
)


class Step(msgspec.Struct, frozen=True, tag="step", forbid_unknown_fields=True):
    """One entry and all that came of it."""

    at: Micros
    core: Kind
    entry: AnyEntry
    answers: tuple[Answer, ...]
    outs: tuple[Out, ...]


Parts = LeaderParts | RankParts | FrontParts
Record = Header | Parts | Step
