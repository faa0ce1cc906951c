"""What a leader and a gateway's request logic ask for: each effect is data, and whoever holds the
core carries it out."""

import msgspec

from baton.core.agreement import StepPlan
from baton.core.ids import Boot
from baton.core.messages import AnyMessage


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Say something to a process we have a session with; lost without a trace if there is none."""

    to: Boot
    message: AnyMessage


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
    """End this worker, all its ranks, without waiting for anything: something of it never ends. The
    last effect of a leader."""

    why: str


Effect = Send | Issue | Dial | HangUp | GiveUp
