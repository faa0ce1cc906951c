"""What leaders of all roles share: settings, the states of a room, and the events that move it
between them."""

from enum import StrEnum

import msgspec

from baton.core.handoff.fetch_back import FetchBack
from baton.core.ids import Micros, TokenId
from baton.core.memory.checkpoints import PromptCheckpoint
from baton.core.memory.prefix_cache import CachedPage, PageHash
from baton.core.messages import Drawn, FinishReason, Limits, RoomPhase, Ticket
from baton.core.prompt_scores import PromptScores
from baton.core.scheduler.lookup_rule import LookupRule


class LeaderSettings(msgspec.Struct, frozen=True):
    """The settings of one worker, which an operator chooses."""

    name: str
    address: str | None
    step_tokens: int
    last_chunk_tokens: int
    max_rooms: int  # running at once (`--max-num-seqs`)
    max_queue: int
    stall_ms: int  # a handoff fails after this long without any progress
    fetch_ms: int  # deadline of one read
    pids: tuple[int, ...]  # of the ranks, in their order
    # host memory of each rank for the state of preempted requests, 0 = they are computed again; and
    # for checkpoints where prompts are computed, 0 = none are kept
    host_bytes: int = 0
    # the least number of tokens between two checkpoints within a prompt: one costs a step of its
    # own and a copy, a few milliseconds, which is little beside so many tokens
    keep_every: int = 512
    # prefill: the share of its pool for rooms that decode has not admitted; 1 = no limit
    ahead: float = 1.0
    # whether complete pages are kept for later rooms with the same beginning
    prefix_cache: bool = False
    # whether prefill fetches what decode has cached, and decode lends it
    fetch_back: FetchBack = FetchBack.NEVER
    # decode: whether its pools have room for the chunks of a prompt, whatever the model; where all
    # state lasts they do in any case
    local_prefill: bool = False
    answer_ms: int = 1000  # how long prefill waits until decode says what it lends
    # decode gives up a prefill worker that is not paired this long after its introduction
    pair_ms: int = 10_000
    url: str | None = None  # of the engine that this worker is a guest of
    verify_ms: int = 0  # a cached page is used only if it was hashed within this time; 0 = no limit
    publish_cache: bool = False  # whether the changes of the cache are published, with their tokens
    drafts: LookupRule | None = None  # how tokens are looked up in the text; None = not at all
    draft_layer: int = 0  # tokens that the draft layer drafts for a row at most; 0 = none


MOST_PHASES = 32  # that a worker remembers of a room


class RoomState(StrEnum):
    """Where a room stands on this worker. Each role uses some of the states, as its table says."""

    QUEUED = "queued"
    # what a checkpoint has of its prompt is copied into its pages
    RESUMING = "resuming"
    COMPUTING = "computing"
    BORROWING = "borrowing"  # what decode has cached of the prompt is asked for and read
    OFFERED = "offered"
    FETCHING = "fetching"
    COMMITTING = "committing"
    RUNNING = "running"
    OFFLOADING = "offloading"  # its state is on its way to the host store
    OFFLOADED = "offloaded"  # all its state is in the host store; it holds no pages
    RESTORING = "restoring"  # its state is on its way back, into other pages
    ENDING = "ending"
    ENDED = "ended"


# what COMPUTING is called while no step under way has a chunk of the prompt: it has its pages, and
# waits behind other prompts
AWAITS_TURN = "awaits_turn"

# where a room that has just got its pages may have to give them up again, so nobody is told of it
UNTOLD = (RoomState.RESUMING, RoomState.BORROWING)


class Saw(StrEnum):
    """What happens to a room."""

    # pages were taken for the whole state of its prompt, which is fetched, or, if it was offloaded,
    # for its whole state
    HELD = "held"
    HELD_TO_COMPUTE = "held_to_compute"  # pages were taken for its prompt, which is computed here
    # pages were taken for its prompt, which goes on from a checkpoint
    HELD_TO_RESUME = "held_to_resume"
    # every rank has its part of the checkpoint, also of one fetched back; the rest is computed
    RESUMED = "resumed"
    NOT_RESUMED = "not_resumed"  # one has not: the room gives up its pages and waits anew
    ASKED = "asked"  # decode was asked for what it has cached of the prompt
    BORROWED = "borrowed"  # that has arrived, or will not come; the rest is computed
    LAST_CHUNK = "last_chunk"
    ADMITTED = "admitted"
    ARRIVED = "arrived"  # all blocks verified on all ranks, and the record is there
    COMMITTED = "committed"  # the commit plan is applied on all ranks
    RECEIVED = "received"
    # the engine that this worker is a guest of computes the prompt itself
    COMPUTED_THERE = "computed_there"
    PREEMPTED = "preempted"  # it gives its pages to others
    STORED = "stored"  # every rank has its part of the state in its host store
    RESTORED = "restored"  # every rank has its part back and has verified it
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
        self.number = 0  # counts rooms in the order in which they come to this worker
        self.age = (ticket.came, self.number)  # by which rooms are sorted, oldest first
        self.since = now  # when it entered what it is told to be in
        self._phases: list[RoomPhase] = []  # the states that it has left
        self.progress = now  # when the handoff last moved
        self.deadline = Micros(now + ticket.limits.deadline_ms * 1000)
        self.admit_by = Micros(now + ticket.admit_ms * 1000)
        self.context = (*ticket.prompt, *ticket.said)
        # L = prompt + said: positions whose state the handoff carries
        self.length = len(self.context)
        # of the complete pages of its sequence, as far as they were needed
        self.hashes: list[PageHash] = []
        self.hit = 0  # positions whose state was cached when it got its pages
        # from which it can go on, as the last search found; where it holds pages, it does so
        self.checkpoint: PromptCheckpoint | None = None
        # whether its next complete page may enter the cache; False until it has pages
        self.enters = False
        # whether the last search found more in the cache that was not verified in time
        self.overdue = False
        # cached pages that its state was copied from when it was preempted
        self.copied: tuple[CachedPage, ...] = ()
        # whether its prompt is computed here in steps, which it waits for; another engine's are not
        # known
        self.takes_turns = False
        # in COMPUTING: since when no step has had a chunk of it; None = one has
        self.waits_since: Micros | None = None
        self.computes = True  # its prompt; otherwise the state of that is fetched
        # whether this worker computes all positions of its prompt, whatever is cached of them
        self.computes_all = False
        # whether its next token must wait until its grammar is built on every rank
        self.awaits_grammar = False
        # of the prompt's tokens, as far as known; None once the gateway was told, or if not wanted
        self.scores: PromptScores | None = None

    @property
    def stands(self) -> str:
        """What others are told of its state."""
        waits = self.waits_since is not None and self.state is RoomState.COMPUTING
        return AWAITS_TURN if waits else self.state.value

    def leaves(self, state: str, now: Micros) -> Micros:
        """Note that the room leaves what it is told to be in. Returns how long it was in it."""
        spent = Micros(now - self.since)
        self.since = now
        if len(self._phases) < MOST_PHASES:
            self._phases.append(RoomPhase(state, spent))
            return spent
        # it was preempted again and again: the time counts as more of the last one of its kind
        last = max((i for i, p in enumerate(self._phases) if p.state == state), default=-1)
        longer = self._phases[last].us + spent
        self._phases[last] = RoomPhase(self._phases[last].state, longer)
        return spent

    @property
    def phases(self) -> tuple[RoomPhase, ...]:
        """The states that the room has left, in order, and how long it was in each."""
        return tuple(self._phases)

    @property
    def alone(self) -> bool:
        """Whether its next row must have a step to itself."""
        return len(self.ticket.said) < self.ticket.alone_until

    @property
    def begins_at(self) -> int:
        """The position at which its prompt is computed first, if a checkpoint has what is before
        it; else 0."""
        return self.checkpoint.length if self.checkpoint is not None else 0

    def tokens(self, start: int, end: int) -> tuple[TokenId, ...]:
        """Return the tokens of its sequence at positions [start, end)."""
        return self.context[start:end]


def no_scores(ticket: Ticket) -> PromptScores | None:
    """Return the scores of a prompt of which nothing is computed; None if none are wanted."""
    top = ticket.sampling.prompt_logprobs
    return PromptScores(top) if top is not None and ticket.scores_prompt else None


def ends_answer(token: TokenId, limits: Limits) -> bool:
    """Whether a token is the last one of any answer that has it."""
    return token in limits.eos_token_ids or token in limits.stop_token_ids


def finish_of(drawn: Drawn, *, generated: int, limits: Limits) -> FinishReason | None:
    """Return how the `generated`-th token (from 1, `said` included) ends the request; None if it
    does not."""
    if ends_answer(drawn.token, limits):
        return FinishReason.STOP
    return FinishReason.LENGTH if generated >= limits.max_tokens else None
