"""A stage: one of the things that a worker does with rooms. The stages of a role together are what
that role does (roles.py).

    ticket   refuse ──▶ opened ──▶ admitted ──▶ forgotten
    turn     schedule ──▶ the leader admits rooms ──▶ advance ──▶ add_rows ──▶ stepping
    report   report ──▶ stepped ──▶ rows_ended

The leader asks its stages in the order in which the role names them. A stage overrides what
concerns it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from baton.core.agreement import Report, RowOrder, RowResult
from baton.core.ids import Boot, GroupName, Micros
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import Drawn, Ticket
from baton.core.scheduler.batches import Outcomes
from baton.core.scheduler.room import OpenRoom
from baton.core.scheduler.worker import Worker

R = TypeVar("R", bound=OpenRoom)

# by kind of message: takes the sender and the message
Handlers = Mapping[type[Any], Callable[[Boot, Any], None]]


class Stage(Generic[R]):
    """Does nothing: what a stage does not override does not concern it."""

    def __init__(self, worker: Worker[R]) -> None:
        self.worker = worker

    def handlers(self) -> Handlers:
        """Messages that are this stage's to handle."""
        return {}

    # ---- a room ---------------------------------------------------------------------------------

    def refuse(self, ticket: Ticket) -> str:
        """Why this worker cannot take its part of the ticket now; empty if it can."""
        return ""

    def opened(self, room: R) -> None:
        """A room is open, and waits for memory."""

    def admitted(self, room: R, reuse: Sequence[CachedPage]) -> None:
        """A room has its pages, the first of them cached already. reuse: those"""

    def forgotten(self, room: R) -> None:
        """A room holds nothing any more."""

    # ---- a turn ---------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Decide what comes before the admission of rooms that wait."""

    def advance(self) -> None:
        """Decide what follows the admission."""

    def due(self) -> list[R]:
        """Rooms that this stage has a row for in the next step, oldest request first."""
        return []

    def add_rows(self, rooms: Sequence[R], tokens: int) -> int:
        """Add rows of these rooms to the step, with at most so many prompt tokens. Returns the
        tokens of the rows it adds."""
        return 0

    def stepping(self, tokens: int) -> None:
        """A step of so many tokens goes out with the plan of this turn."""

    def stepped(self) -> None:
        """The oldest step under way has ended on every rank."""

    def rows_ended(self, batch: Sequence[tuple[R, RowOrder]], ranks: Outcomes) -> None:
        """Rows have ended on every rank: take those that are this stage's."""

    # ---- what others say ------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        """A rank has reported: take whatever is not a batch, a vote or an ending."""

    def gateway_up(self, boot: Boot) -> None:
        """A session with a gateway has begun."""

    def peer_up(self, boot: Boot) -> None:
        """A session with another leader has begun."""

    def peer_lost(self, boot: Boot, why: str) -> None:
        """Another leader is gone."""

    # ---- time -----------------------------------------------------------------------------------

    def timer(self) -> Micros | None:
        """When `on_timer` has something to do next."""
        return None

    def on_timer(self) -> None:
        """A deadline may have passed."""

    def waits_for(self, room: R) -> Boot | None:
        """The worker, this one or another, whose work the room's handoff waits for; None if it
        waits for nobody's."""
        return None

    def unadmitted(self, room: R) -> bool:
        """Whether a room that has its pages here still waits for memory elsewhere."""
        return False

    # ---- views ----------------------------------------------------------------------------------

    def ahead_pages(self) -> Mapping[GroupName, int]:
        """Pages that rooms for one decode worker may hold before it admits them."""
        return {}

    def host_view(self) -> Mapping[str, int]:
        """Host memory for the state of preempted rooms (LedgerView.host)."""
        return {}

    def kept(self) -> Mapping[str, Collection[Any]]:
        """Tables that hold something of rooms that have ended, or should have: empty at rest."""
        return {}


def drawn_of(ranks: Sequence[tuple[RowResult, ...]], row: int) -> Drawn | None:
    """The token of a row, from the one rank that samples; None where the row draws none."""
    return next((drawn for rows in ranks if (drawn := rows[row].drawn) is not None), None)
