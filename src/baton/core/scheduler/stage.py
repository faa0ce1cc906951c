"""A stage is one of the things that a worker does with rooms. The stages of a role together are
what that role does (roles.py).

    ticket   refuse ──▶ opened ──▶ admitted ──▶ forgotten
                                       └──▶ resumed, where it goes on from a checkpoint
    turn     schedule ──▶ the leader admits rooms ──▶ advance ──▶ add_rows ──▶ stepping
    report   report ──▶ stepped ──▶ rows_ended

The leader asks its stages in the order in which the role names them. A stage overrides the methods
that concern it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Generic, TypeVar

from baton.core.agreement import Report, RowOrder, RowResult
from baton.core.events import GuestEvent
from baton.core.ids import Boot, GroupName, Micros, TokenId
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import Drawn, Ticket
from baton.core.prefill_cost import Backlog
from baton.core.prompt_scores import PromptScores
from baton.core.scheduler.batches import Outcomes
from baton.core.scheduler.room import OpenRoom, RoomState
from baton.core.scheduler.worker import Worker

R = TypeVar("R", bound=OpenRoom)
IN_HANDOFF = (RoomState.OFFERED, RoomState.FETCHING)

# by type of message; a handler takes the sender and the message
Handlers = Mapping[type[Any], Callable[[Boot, Any], None]]


class Stage(Generic[R]):
    """The base class. Its methods do nothing."""

    def __init__(self, worker: Worker[R]) -> None:
        self.worker = worker

    def handlers(self) -> Handlers:
        """Return the handlers of the messages that this stage handles."""
        return {}

    # ---- a room ---------------------------------------------------------------------------------

    def refuse(self, ticket: Ticket) -> str:
        """Return why this worker cannot take its part of the ticket now; empty if it can."""
        return ""

    def opened(self, room: R) -> None:
        """A room is open and waits for memory."""

    def admitted(self, room: R, reuse: Sequence[CachedPage]) -> None:
        """A room has its pages. reuse: the cached pages that it begins with"""

    def resumed(self, room: R) -> None:
        """A room that was admitted in the state RESUMING goes on from a checkpoint. Until now it
        might have had to give up its pages again."""

    def forgotten(self, room: R) -> None:
        """A room holds nothing any more."""

    # ---- a turn ---------------------------------------------------------------------------------

    def schedule(self) -> None:
        """Decide what comes before the admission of waiting rooms."""

    def advance(self) -> None:
        """Decide what follows the admission."""

    def due(self) -> list[R]:
        """Return the rooms with a row of this stage in the next step, oldest request first."""
        return []

    def add_rows(self, rooms: Sequence[R], tokens: int) -> int:
        """Add rows of these rooms to the step, with at most `tokens` tokens of prompts. Returns the
        number of tokens of the rows that it adds."""
        return 0

    def stepping(self, tokens: int) -> None:
        """A step of this many tokens goes out with the plan of this turn."""

    def stepped(self) -> None:
        """The oldest step under way has ended on every rank."""

    def rows_ended(self, batch: Sequence[tuple[R, RowOrder]], ranks: Outcomes) -> None:
        """Rows have ended on every rank: take those that belong to this stage."""

    def guest(self, event: GuestEvent) -> None:
        """The engine that this worker is a guest of has done something."""

    # ---- what others say ------------------------------------------------------------------------

    def report(self, report: Report) -> None:
        """A rank has reported: take everything but batches, votes and endings."""

    def gateway_up(self, boot: Boot) -> None:
        """A session with a gateway has begun."""

    def peer_up(self, boot: Boot) -> None:
        """A session with another leader has begun."""

    def peer_lost(self, boot: Boot, why: str) -> None:
        """Another leader is gone."""

    # ---- time -----------------------------------------------------------------------------------

    def timer(self) -> Micros | None:
        """Return when `on_timer` has something to do next; None if it has nothing."""
        return None

    def on_timer(self) -> None:
        """A deadline may have passed."""

    def waits_for(self, room: R) -> Boot | None:
        """Return the worker, this one or another, whose work the handoff of a room in one of the
        states IN_HANDOFF waits for; None if it waits for none."""
        return None

    # ---- views ----------------------------------------------------------------------------------

    def backlog(self) -> Backlog:
        """Return what this stage still has to compute of the prompts of open rooms."""
        return Backlog()

    def ahead_pages(self) -> Mapping[GroupName, int]:
        """Return the pages of each group that rooms may hold before their decode worker admits
        them."""
        return {}

    def kept(self) -> Mapping[str, Collection[Any]]:
        """Return, by name, the tables that hold something only while rooms are open: they are empty
        at rest."""
        return {}


def drawn_of(ranks: Sequence[tuple[RowResult, ...]], row: int) -> Drawn | None:
    """Return the token of a row, from the one rank that samples; None if it draws none."""
    return next(iter(all_drawn_of(ranks, row)), None)


def all_drawn_of(ranks: Sequence[tuple[RowResult, ...]], row: int) -> tuple[Drawn, ...]:
    """Return all tokens of a row that may have had drafts; empty if it draws none."""
    found = next((rows[row] for rows in ranks if rows[row].drawn is not None), None)
    return () if found is None or found.drawn is None else (found.drawn, *found.more)


def drafts_of(ranks: Sequence[tuple[RowResult, ...]], row: int) -> tuple[TokenId, ...]:
    """Return what the draft layer has drafted after a row, from the one rank that samples."""
    return next((rows[row].drafts for rows in ranks if rows[row].drawn is not None), ())


def scores_of(ranks: Sequence[tuple[RowResult, ...]], row: int) -> PromptScores | None:
    """Return the scores of a row, from the one rank that samples; None if it has none."""
    return next((scores for rows in ranks if (scores := rows[row].scores) is not None), None)
