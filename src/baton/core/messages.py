"""Everything that one Baton process says to another: typed, frozen, told apart by tag.

    gateway ──Ticket, Abort, Close──▶ prefill leader, decode leader
    prefill leader ──Offer, Withdrawn, Verdict──▶ decode leader ──Admitted, Received, Doubt──▶ prefill leader
    prefill leader ──Borrow, Doubt, Returned──▶ decode leader ──Loan, Verdict──▶ prefill leader
    prefill leader ◀──Progress──▶ decode leader
    prefill leader ──FirstToken, Failed, Withdrawn, Ended──▶ gateway ◀──Admitted, Tokens, Failed, Ended── decode leader
    either leader ──PromptLogprobs, Trial, Credits, CacheChanged──▶ gateway ──AskCache──▶ either leader

Within a session messages arrive once and in order; between sessions there is no order (DESIGN
section 9).
"""

from enum import Enum
from typing import Annotated

import msgspec

from baton.core.ids import (
    BlockIndex,
    Boot,
    Epoch,
    GroupName,
    Key,
    Page,
    Room,
    Seal,
    Stamp,
    TokenId,
    TokenIndex,
)
from baton.core.manifest import Manifest
from baton.core.prefill_cost import Backlog, PrefillCost
from baton.core.prompt_scores import PromptScores
from baton.core.statistics import Counters, Speculation

# We add to stamps and send them on, so they must stay far below what msgpack can carry.
Seen = Annotated[Stamp, msgspec.Meta(ge=0, le=2**53)]
# of a page's hash gateways are told the beginning: two pages with the same one cost time, no token
HASH_BYTES, MOST_HASHES = 8, 4096
Hashes = Annotated[bytes, msgspec.Meta(max_length=HASH_BYTES * MOST_HASHES)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of all messages. A message is a tree, so the garbage collector need not track it."""


class Shaping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the logits are changed before a token is drawn from them. See engine/sampler.py."""

    repetition_penalty: float  # for tokens in prompt or answer; 1 = off
    presence_penalty: float  # for tokens in the answer, `said` included; 0 = off
    frequency_penalty: float  # for the same tokens, per occurrence; 0 = off
    logit_bias: tuple[tuple[TokenId, float], ...]
    allowed_token_ids: tuple[TokenId, ...] = ()  # only these are drawn; empty = all
    # sequences of tokens that the answer must not contain; none of them is empty
    bad_words: tuple[tuple[TokenId, ...], ...] = ()


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are drawn. No process fills in defaults of its own: the default values here have
    no effect on the draw."""

    temperature: float  # 0 = greedy
    top_p: float  # (0, 1]
    top_k: int  # 0 = off
    seed: int  # 64 bits; the random number of token i depends on (seed, i) alone
    logprobs: int | None  # None = none; n = for the drawn token and the n most likely
    min_p: float = 0.0  # [0, 1]; 0 = off
    shaping: Shaping | None = None  # None = the logits are not changed, as in nearly all requests
    # of the prompt's tokens: None = none; n = theirs and those of the n most likely in their places
    prompt_logprobs: int | None = None


class Grammar(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an answer must be. Which tokens may come next depends on this and on the tokens
    generated so far, and on nothing else, so there is no state to hand over."""

    text: str  # of llguidance: a Lark grammar, or JSON with a list of grammars
    # the grammar begins behind the first place where the answer has these tokens, which end the
    # model's reasoning; empty = with the first token
    after: tuple[TokenId, ...]
    ends: tuple[TokenId, ...]  # may come when the answer is complete, and end it


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When generation ends."""

    max_tokens: int  # generated tokens, those of `said` included
    stop_token_ids: tuple[TokenId, ...]
    eos_token_ids: tuple[TokenId, ...]  # empty with ignore_eos
    deadline_ms: int  # from the ticket's arrival, for the epoch
    # tokens generated before one of the ids above may be drawn, those of `said` included
    min_tokens: int = 0


class Drawn(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One generated token. `top` holds (token, logprob), most likely first."""

    token: TokenId
    logprob: float | None
    top: tuple[tuple[TokenId, float], ...]


class FinishReason(Enum):
    """Why a request ended well."""

    STOP = "stop"  # eos or a stop token id
    LENGTH = "length"


class FailCode(Enum):
    """Why an epoch failed. The client gets it as the `code` of the error."""

    HANDOFF_FAILED = "handoff_failed"
    WORKER_LOST = "worker_lost"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    OVERLOADED = "overloaded"
    QUEUE_TIMEOUT = "queue_timeout"
    # this request cannot be computed; others are not affected
    COMPUTE_FAILED = "compute_failed"
    # what the request demands of its answer leaves no next token, or takes too much work to follow
    UNSATISFIABLE = "unsatisfiable"
    # one worker died while it computed the request, and another while it computed nothing else
    POISON = "poison_request"


def logged_why(code: FailCode, detail: str) -> dict[str, str]:
    """Return the field of a log line that says why. What a request demands in vain is its own
    text, which no log may have."""
    return {} if code is FailCode.UNSATISFIABLE else {"why": detail}


class RowFailure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Why a request has no next token although it should. Others in its step are not affected."""

    code: FailCode
    why: str


# ---- gateway -> leaders -------------------------------------------------------------------------


class Ticket(Message, frozen=True, tag="ticket"):
    """The complete description of a request. Both leaders get the same one."""

    key: Key
    stamp: Seen
    gateway: Boot
    prefill: Boot  # equal to `decode` for a unified worker
    decode: Boot
    prompt: tuple[TokenId, ...]
    said: tuple[TokenId, ...]  # generated in earlier epochs and already streamed
    sampling: Sampling
    limits: Limits
    # smaller is more urgent: in the queue at the gateway, and when pages run short on decode
    priority: int = 0
    # from its arrival until a worker must hold memory to generate in; otherwise the epoch fails
    admit_ms: int = 30_000
    cache_salt: str = ""  # only requests with the same salt share cached state
    # until it has as many generated tokens, `said` included, its rows have steps to themselves
    alone_until: int = 0
    grammar: Grammar | None = None  # None = any answer

    @property
    def came(self) -> tuple[Stamp, Boot]:
        """The order in which requests came, the smallest first. Two gateways may use one stamp."""
        return self.stamp, self.gateway

    @property
    def scores_prompt(self) -> bool:
        """Whether this epoch computes the logprobs of the prompt's tokens. An epoch that goes on
        after some tokens does not, because the client was told them with the first one."""
        return self.sampling.prompt_logprobs is not None and not self.said


class Abort(Message, frozen=True, tag="abort"):
    """Gateway -> leader: end this epoch now."""

    key: Key
    reason: str


class Close(Message, frozen=True, tag="close"):
    """Gateway -> leader: the room has ended on all sides; forget what you know of it."""

    room: Room


# ---- leaders -> gateway -------------------------------------------------------------------------


class FirstToken(Message, frozen=True, tag="first_token"):
    """Prefill leader -> gateway: the token after the prompt (index = len(said))."""

    key: Key
    index: TokenIndex
    drawn: Drawn
    finish: FinishReason | None
    # positions that prefill did not compute: it had their state, or fetched it back from decode
    cached: int = 0


class PromptLogprobs(Message, frozen=True, tag="prompt_logprobs"):
    """Leader -> gateway: the logprobs of a prompt's tokens, if the request wants them. Whoever
    sends the first token, prefill or decode, sends this before it. It has a message of its own
    because it may be as large as a prompt."""

    key: Key
    scores: PromptScores


class Tokens(Message, frozen=True, tag="tokens"):
    """Decode leader -> gateway: generated tokens from `start` on. The first of these messages
    begins with the token that prefill handed over."""

    key: Key
    start: TokenIndex
    drawn: tuple[Drawn, ...]
    finish: FinishReason | None
    cached: int = 0  # in the first of them: as in FirstToken, which may come later


class Failed(Message, frozen=True, tag="failed"):
    """Leader -> gateway: this epoch failed on my side; abort the other side."""

    key: Key
    code: FailCode
    detail: str
    retry: bool  # whether another epoch may succeed


class Trial(Message, frozen=True, omit_defaults=True, tag="trial"):
    """Leader -> gateway, about a request that may have killed a worker: a step with nothing else in
    it begins, or is over."""

    key: Key
    over: bool
    step: int = 0  # counts such steps of this worker: what is said again of an earlier one is old


class Recompute(Message, frozen=True, tag="recompute"):
    """Decode leader -> gateway: the room's state was given up for others; open the next epoch,
    after the tokens generated so far."""

    key: Key


class RoomPhase(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """How long a room was in a state on a worker."""

    state: str
    us: int


class Ended(Message, frozen=True, omit_defaults=True, tag="ended"):
    """Leader -> gateway: I hold nothing of this epoch any more. Sent at every end, good or bad."""

    key: Key
    phases: tuple[RoomPhase, ...] = ()  # from the ticket's arrival on, one after the other


class Credits(Message, frozen=True, omit_defaults=True, tag="credits"):
    """Leader -> gateway: my capacity in absolute figures. It is a hint, never a permission."""

    number: int  # higher is newer
    worker: Boot  # whose capacity it is: the sender's
    free_pages: dict[GroupName, int]
    total_pages: dict[GroupName, int]
    waiting: int  # rooms that hold no memory yet
    running: int
    # rooms that may begin to run; on a prefill worker only pages limit them
    free_rooms: int = 0
    free_queue: int = 4096  # rooms that may still wait here; more are refused
    # how many tickets of the receiving gateway, since it connected, the figures above include
    tickets: int = 0
    # prefill: pages that rooms for one decode worker may hold before it admits them
    ahead_pages: dict[GroupName, int] = {}
    draining: bool = False  # it is to get no more tickets, and leaves when its rooms have ended
    stamp: Seen = Stamp(0)  # the highest stamp of all tickets that it has seen, of any gateway
    backlog: Backlog = Backlog()  # what it still has to compute of prompts,
    prefill_cost: PrefillCost | None = None  # and how long that takes it; None = not seen yet
    # how many CacheChanged the receiving gateway was sent
    cache_changes: int = 0


class CacheChanged(Message, frozen=True, tag="cache_changed"):
    """Leader -> gateway: pages that have entered my prefix cache, and pages that have left it. A
    hint for routing: what is cached is decided when a room gets its pages."""

    worker: Boot  # whose cache it is: the sender's
    number: int  # counts the changes that the receiving gateway was sent, from 1
    # the first HASH_BYTES bytes of each page's hash (memory/prefix_cache.py), one after the other
    entered: Hashes
    left: Hashes
    # nothing that was said before counts: so far, the pages that have entered now are all
    afresh: bool = False


class AskCache(Message, frozen=True, tag="ask_cache"):
    """Gateway -> leader: I have missed changes of your prefix cache; say afresh what is in it."""


class Register(Message, frozen=True, omit_defaults=True, tag="register"):
    """Worker leader -> gateway: the first message of a session."""

    name: str
    address: str | None  # where decode leaders dial a prefill leader; None for the other roles
    manifest: Manifest
    stamp: Seen = Stamp(0)  # as in Credits
    # of a guest: where the gateway sends the requests themselves, to the HTTP server of the engine
    url: str | None = None
    caches: bool = True  # whether it keeps complete pages of prompts for later ones
    # of a decode worker: whether its pools have room for the chunks of a prompt, so that it may be
    # asked to compute one
    local_prefill: bool = False


class Introduce(Message, frozen=True, tag="introduce"):
    """Gateway -> decode leader: pair with this prefill worker."""

    prefill: Boot
    address: str
    manifest: Manifest


class Paired(Message, frozen=True, tag="paired"):
    """Decode leader -> gateway: plan proved, digests equal, and session up."""

    prefill: Boot
    fabric: str


class Unpaired(Message, frozen=True, tag="unpaired"):
    """Decode leader -> gateway: these two workers cannot hand over, or no longer can. `why` names
    field and values."""

    prefill: Boot
    why: str


class Lends(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How prefill may read what a decode worker has cached: over this fabric, by this plan."""

    fabric: str
    plan: str


class Hello(Message, frozen=True, tag="hello"):
    """Decode leader -> prefill leader: my manifest; answered by `HelloBack` or `Refused`."""

    manifest: Manifest
    plan: str  # hex digest of the PairPlan
    # None: it lends nothing, as its prefix cache or fetching back is off
    lends: Lends | None = None


class HelloBack(Message, frozen=True, tag="hello_back"):
    """Prefill leader -> decode leader: my plan is the same; rooms may be handed over."""

    plan: str


class Refused(Message, frozen=True, tag="refused"):
    """Prefill leader -> decode leader: we do not fit together; `why` names field and values."""

    why: str


# ---- between leaders ----------------------------------------------------------------------------


class BlockRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blocks [start, end) of a sequence in a group, and the source pages `start // k .. (end - 1)
    // k` that hold them."""

    start: BlockIndex
    end: BlockIndex
    pages: tuple[Page, ...]


class LegSums(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The seals on one leg of blocks of the same group's run, in ascending block order.

    `blocks` names the blocks: where the source is replicated, a leg has only some of them.
    """

    leg: int
    group: GroupName
    blocks: tuple[BlockIndex, ...]
    seals: tuple[Seal, ...]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decode needs besides the state. It is complete or absent."""

    length: int  # L = prompt + said: positions whose state was computed
    first: Drawn
    finish: FinishReason | None
    # positions that prefill did not compute: it had their state, or fetched it back from decode
    cached: int = 0
    scores: PromptScores | None = None  # of the prompt's tokens, if the request wants them


class Offer(Message, frozen=True, tag="offer"):
    """Prefill leader -> decode leader: these blocks of the room exist, lie here and have these
    sums.

    Number 0 has no blocks: it says that prefill holds pages for the whole prompt. The last offer
    carries the record.
    """

    key: Key
    number: int
    runs: dict[GroupName, BlockRun]
    sums: tuple[LegSums, ...]
    record: Record | None


class Admitted(Message, frozen=True, tag="admitted"):
    """Decode leader -> prefill leader and gateway: decode holds memory for the whole prompt."""

    key: Key


class Withdrawn(Message, frozen=True, tag="withdrawn"):
    """Prefill leader -> decode leader and gateway: a room that decode has not admitted was given
    up, as pages ran short."""

    key: Key


class Received(Message, frozen=True, tag="received"):
    """Decode leader -> prefill leader: the room is committed on all ranks; free its pages."""

    key: Key


class Doubt(Message, frozen=True, tag="doubt"):
    """Reader -> source: these blocks arrived and differed from their sums.

    A decode leader sends it about offered blocks that were read repeatedly; a prefill leader about
    blocks of a loan, before it returns the loan. Legs are those of the plan by which the sender
    reads.
    """

    key: Key
    leg: int
    group: GroupName
    blocks: tuple[BlockIndex, ...]


class Intactness(Enum):
    """What a worker found when it hashed its own blocks again."""

    INTACT = "intact"
    DAMAGED = "damaged"
    GONE = "gone"


class Verdict(Message, frozen=True, tag="verdict"):
    """The answer to a Doubt, about the same leg, group and blocks."""

    key: Key
    leg: int
    group: GroupName
    blocks: tuple[BlockIndex, ...]
    found: Intactness


class Borrow(Message, frozen=True, omit_defaults=True, tag="borrow"):
    """Prefill leader -> decode leader: what do you have cached of this room's prompt, from this
    block on?

    known: positions of which prefill has all state, where cached pages alone are not all
    """

    key: Key
    start: BlockIndex
    known: int = 0


class Loan(Message, frozen=True, omit_defaults=True, tag="loan"):
    """Decode leader -> prefill leader, the answer: these blocks lie here and have these sums.
    Without runs there is nothing.

    The pages are pinned until `Returned`, but no longer than the room is open on decode.

    length: positions of which this is all state that `start` lacks, where cached pages alone are
        not all
    """

    key: Key
    runs: dict[GroupName, BlockRun]
    sums: tuple[LegSums, ...]
    length: int = 0


class Returned(Message, frozen=True, tag="returned"):
    """Prefill leader -> decode leader: nothing of the loan is being read, or will be; its pages may
    be unpinned."""

    key: Key


class Progress(Message, frozen=True, tag="progress"):
    """Leader -> leader, while the two share rooms: how much I have done since I started that rooms
    of either side may wait for.

    As long as the number grows, a room that waits for me waits behind other rooms, and not in vain.
    """

    worker: Boot
    done: int


class Stale(Message, frozen=True, tag="stale"):
    """Leader -> leader: I do not know that epoch, or it has ended here."""

    key: Key


# ---- ledger view --------------------------------------------------------------------------------


class AskLedger(Message, frozen=True, tag="ask_ledger"):
    """Gateway -> leader: send me your ledger; with `audit`, check every page of it first."""

    question: int
    audit: bool = True


class Clear(Message, frozen=True, tag="clear"):
    """Gateway -> leader: if no room is open, empty the prefix cache and zero the pools of every
    group; then send me your ledger."""

    question: int


class ResetCache(Message, frozen=True, tag="reset_cache"):
    """Gateway -> leader: let no later room reuse what is cached now; then send me your ledger."""

    question: int


class Drain(Message, frozen=True, tag="drain"):
    """Gateway -> leader: an operator wants your worker to take no more requests, and to leave when
    those that it has have ended; send me your ledger.

    role: "prefill", "decode" or "unified": begin again in this role afterwards; None = end
    """

    question: int
    role: str | None = None


class RoomView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One room as a leader sees it."""

    room: Room
    epoch: Epoch
    state: str
    age_ms: int
    pages: dict[GroupName, int]


class RankView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rank process."""

    rank: int
    pid: int
    boot: Boot


class LedgerView(Message, frozen=True, omit_defaults=True, tag="ledger_view"):
    """Leader -> gateway: the ledger of one worker."""

    question: int
    name: str
    role: str
    ranks: tuple[RankView, ...]
    pages: dict[GroupName, dict[str, int]]  # state name -> pages
    pins: int  # pins of rooms on cached pages
    reads: int  # reads under way
    rooms: tuple[RoomView, ...]
    clean: bool  # nothing but cache is held
    counters: Counters = Counters()
    # host memory for preempted rooms and for checkpoints: bytes `total` and `used` on the fullest
    # rank; empty if none
    host: dict[str, int] = {}
    # states of rooms in the host memory of its ranks, or on their way there or back
    copies: int = 0
    cleared: tuple[GroupName, ...] = ()  # groups that every rank has zeroed, in the answer to Clear
    speculation: Speculation = Speculation()


AnyMessage = (
    Ticket
    | Abort
    | Close
    | FirstToken
    | PromptLogprobs
    | Tokens
    | Failed
    | Trial
    | Recompute
    | Ended
    | Credits
    | Register
    | Introduce
    | Paired
    | Unpaired
    | Hello
    | HelloBack
    | Refused
    | Offer
    | Admitted
    | Withdrawn
    | Received
    | Doubt
    | Verdict
    | Borrow
    | Loan
    | Returned
    | Progress
    | Stale
    | AskLedger
    | Clear
    | ResetCache
    | CacheChanged
    | AskCache
    | Drain
    | LedgerView
)
