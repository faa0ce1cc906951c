"""What leaders of all roles share: settings, the states of a room and what moves it between
them."""

from enum import StrEnum

import msgspec

from baton.core.handoff.fetch_back import FetchBack
from baton.core.ids import Micros, TokenId
from baton.core.memory.prefix_cache import CachedPage, PageHash
from baton.core.messages import Drawn, FinishReason, Limits, Ticket


class LeaderSettings(msgspec.Struct, frozen=True):
    """What an operator sets for one worker."""

    name: str
    address: str | None
    step_tokens: int
    last_chunk_tokens: int
    max_rooms: int  # running at once (`--max-num-seqs`)
    max_queue: int
    stall_ms: int  # a handoff without any progress for so long fails
    fetch_ms: int  # deadline of one read
    pids: tuple[int, ...]  # of the ranks, in their order
    # of host memory on each rank, for the state of preempted requests; 0 = they are computed again
    host_bytes: int = 0
    # prefill: share of its pool for rooms that decode has not admitted; 1 = no limit
    ahead: float = 1.0
    # whether complete pages are kept for later rooms with the same beginning
    prefix_cache: bool = False
    # whether prefill fetches what decode has cached, and decode lends it
    fetch_back: FetchBack = FetchBack.NEVER
    answer_ms: int = 1000  # until decode must have said what it has
    # from the introduction of a prefill worker until decode gives it up if the two are not paired
    pair_ms: int = 10_000
    verify_ms: int = 0  # within which every cached page is hashed again, or is not used; 0 = never


class RoomState(StrEnum):
    """Where a room stands on this worker; each role uses a part of it (its table says which)."""

    QUEUED = "queued"
    COMPUTING = "computing"
    BORROWING = "borrowing"  # decode is asked for what it has of the prompt, and that is read
    OFFERED = "offered"
    FETCHING = "fetching"
    COMMITTING = "committing"
    RUNNING = "running"
    OFFLOADING = "offloading"  # its state is on its way to the host store
    OFFLOADED = "offloaded"  # there as a whole; it holds no pages
    RESTORING = "restoring"  # on its way back, into other pages
    ENDING = "ending"
    ENDED = "ended"


class Saw(StrEnum):
    """What happens to a room."""

    # pages for its whole prompt were taken; of an offloaded room, for its whole state
    HELD = "held"
    ASKED = "asked"  # decode, for what it has of the prompt
    BORROWED = "borrowed"  # that is here and verified, or will not be: the rest is computed
    LAST_CHUNK = "last_chunk"
    ADMITTED = "admitted"
    ARRIVED = "arrived"  # all blocks verified on all ranks, and the record is there
    COMMITTED = "committed"  # the commit plan is applied on all ranks
    RECEIVED = "received"
    PREEMPTED = "preempted"  # it gives its pages to others
    STORED = "stored"  # every rank has its part of the state in its host store
    RESTORED = "restored"  # every rank has it back, and verified
    END = "end"  # finished, failed, aborted, peer lost, deadline, withdrawn
    QUIET = "quiet"


Table = dict[tuple[RoomState, Saw], RoomState]


class OpenRoom:
    """One epoch of a room on this worker."""

    def __init__(self, ticket: Ticket, now: Micros) -> None:
        self.ticket = ticket
        self.key = ticket.key
        self.state = RoomState.QUEUED
        self.born = now
        self.number = 0  # in the order in which rooms come to this worker
        self.since = now  # in its state
        self.progress = now  # when the handoff last moved
        self.deadline = Micros(now + ticket.limits.deadline_ms * 1000)
        self.admit_by = Micros(now + ticket.admit_ms * 1000)
        self.context = (*ticket.prompt, *ticket.said)
        # L = prompt + said: positions whose state the handoff carries
        self.length = len(self.context)
        # of its sequence's complete pages, as far as somebody asked
        self.hashes: list[PageHash] = []
        self.hit = 0  # positions whose state was cached when it got its pages
        # whether its next complete page may enter the cache; nothing of it does before it has pages
        self.enters = False
        # whether more was cached of it, when it was last looked, and not verified in time
        self.overdue = False
        # cached pages that its state was copied from when it gave way
        self.copied: tuple[CachedPage, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether its next row has a step for itself."""
        return len(self.ticket.said) < self.ticket.alone_until

    def tokens(self, start: int, end: int) -> tuple[TokenId, ...]:
        """Tokens of its sequence at positions [start, end)."""
        return self.context[start:end]


def finish_of(drawn: Drawn, *, generated: int, limits: Limits) -> FinishReason | None:
    """Whether the `generated`-th token (from 1, `said` included) ends the request."""
    if drawn.token in limits.eos_token_ids or drawn.token in limits.stop_token_ids:
        return FinishReason.STOP
    return FinishReason.LENGTH if generated >= limits.max_tokens else None
