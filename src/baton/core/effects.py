"""What a leader and a gateway's request logic ask for. Each effect is data; the code that drives
the core carries it out."""

import msgspec

from baton.core.agreement import StepPlan
from baton.core.ids import Boot
from baton.core.messages import AnyMessage


class Send(msgspec.Struct, frozen=True, tag="send"):
    """Send a message to a process. Without a session with it the message is lost silently."""

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
    """End this worker and all its ranks without waiting for anything, because some work of it never
    ends. This is a leader's last effect."""

    why: str


Effect = Send | Issue | Dial | HangUp | GiveUp
