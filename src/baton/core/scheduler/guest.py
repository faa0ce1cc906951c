"""What the guest roles share: rooms whose pages another engine gives out, and which it computes.

    vLLM's scheduler ──GuestAllocated, -Scheduled, -Computes, -Finished──▶ leader
                     ◀──TellEngine: MAY_LOAD, LOADED, FAILED, RELEASED; Evict──┘

The engine owns pages and admission. What is ours is the handoff: pairing, offers, fetches, seals,
epochs, and the end of every room. The engine keeps the pages of a request that has ended until it
is told RELEASED, or, if they were never loaded, FAILED.
"""

from typing import Generic, TypeVar

from baton.core.agreement import Hold
from baton.core.effects import Notice, TellEngine
from baton.core.events import GuestAllocated
from baton.core.ids import Key
from baton.core.memory.foreign_pages import ForeignLedger
from baton.core.memory.pages import PageState
from baton.core.scheduler.admission import Judgement, Reuse, Want
from baton.core.scheduler.room import OpenRoom
from baton.core.scheduler.worker import Worker

R = TypeVar("R", bound=OpenRoom)


class AdmittedElsewhere(Generic[R]):
    """The admission policy of a guest: no room is admitted by the leader's own loop."""

    def waiting(self) -> list[R]:
        return []

    def judge(self, room: R, want: Want, reuse: Reuse) -> Judgement:
        return Judgement.STOP

    def make_way(self, room: R, want: Want, reuse: Reuse) -> None:
        """Do nothing."""

    def entered(self, room: R) -> None:
        """Do nothing."""

    def unadmitted(self, room: R) -> bool:
        """Return False: the engine's own limits say how long a request may wait."""
        return False


def adopt(worker: Worker[R], room: R, event: GuestAllocated, state: PageState) -> None:
    """Note the pages that the engine has given to a room. The ranks learn of them with the plan of
    this turn."""
    ledger_of(worker).adopt(room.key, event.pages, state)
    shared = event.hit // worker.state_table.block_tokens if event.first else 0
    hold = Hold(room.key, dict(event.pages), {}, dict.fromkeys(event.pages, shared))
    worker.draft.hold.append(hold)


def ledger_of(worker: Worker[R]) -> ForeignLedger:
    """Return the ledger of a guest."""
    assert isinstance(worker.ledger, ForeignLedger), "its role says that it is a guest"
    return worker.ledger


def tell(worker: Worker[R], key: Key, notice: Notice) -> None:
    """Tell the engine something about a request."""
    worker.effects.append(TellEngine(key, notice))
