"""What a leader and a gateway's request logic ask for. Each effect is data; the code that drives
the core carries it out."""

from enum import StrEnum

import msgspec

from baton.core.agreement import StepPlan
from baton.core.ids import Boot, GroupName, Key, Page
from baton.core.memory.prefix_cache import CacheChange
from baton.core.messages import AnyMessage


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Send a message to a process. Without a session with it the message is lost silently."""

    to: Boot
    message: AnyMessage


class AskDelivery(msgspec.Struct, frozen=True, tag="ask_delivery"):
    """Say when a process has received all that was sent to it so far (`Delivered`). If it is lost
    before, `PeerLost` says so."""

    to: Boot


class Issue(msgspec.Struct, frozen=True, tag="issue"):
    """Give a plan to every rank."""

    plan: StepPlan


class Dial(msgspec.Struct, frozen=True, tag="dial"):
    """Open a session to another leader."""

    address: str
    boot: Boot


class HangUp(msgspec.Struct, frozen=True, tag="hang_up"):
    """Give up the session (and link) to another leader."""

    boot: Boot


class GiveUp(msgspec.Struct, frozen=True, tag="give_up"):
    """End this worker and all its ranks without waiting for anything, because some work of it never
    ends. This is a leader's last effect."""

    why: str


class Leave(msgspec.Struct, frozen=True, tag="leave"):
    """End this worker and all its ranks, which hold nothing for anybody any more. This is a
    leader's last effect.

    role: begin again in this role; None = end
    """

    role: str | None


class Notice(StrEnum):
    """What the engine that a worker is a guest of is told about a request."""

    MAY_LOAD = "may_load"  # decode: prefill has pages for it, so pages may be given to it here
    LOADED = "loaded"  # decode: its state is in its pages, verified on every rank
    FAILED = "failed"  # decode: its state will not come, and nothing touches its pages any more
    RELEASED = "released"  # it has ended, and nothing needs its pages any more


class TellEngine(msgspec.Struct, frozen=True, tag="tell_engine"):
    """Tell the engine that this worker is a guest of."""

    key: Key
    notice: Notice


class Evict(msgspec.Struct, frozen=True, tag="evict"):
    """Tell the engine that this worker is a guest of: its prefix cache must not hand out these
    pages any more, because their state is damaged."""

    pages: dict[GroupName, tuple[Page, ...]]


class Publish(msgspec.Struct, frozen=True, tag="publish"):
    """Tell whoever subscribes what has changed in this worker's prefix cache, in order. Pages that
    have entered it can be found there, and come with their text."""

    changes: tuple[CacheChange, ...]
    afresh: bool  # the cache was empty before; this is a worker's first one


GuestNews = TellEngine | Evict
Effect = Send | AskDelivery | Issue | Dial | HangUp | GiveUp | Leave | TellEngine | Evict | Publish
