"""Everything that one Baton process says to another: typed, frozen, told apart by tag.

    gateway ──Ticket, Abort, Close──▶ prefill leader, decode leader
    prefill leader ──Offer, Withdrawn, Verdict──▶ decode leader ──Admitted, Received, Doubt──▶ prefill leader
    prefill leader ──Borrow, Doubt, Returned──▶ decode leader ──Loan, Verdict──▶ prefill leader
    prefill leader ◀──Progress──▶ decode leader
    prefill leader ──FirstToken, Failed, Withdrawn, Ended──▶ gateway ◀──Admitted, Tokens, Failed, Ended── decode leader
    either leader ──Trial──▶ gateway

Inside a session messages arrive once and in order; between sessions in any order (DESIGN section
9).
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
from baton.core.statistics import Counters

PROTOCOL = 1
# it is added to and sent on: far from what msgpack can carry
Seen = Annotated[Stamp, msgspec.Meta(ge=0, le=2**53)]


class Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of all messages. They are trees, in which the collector of cycles has nothing to
    find."""


class Shaping(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is done to the logits before a token is drawn from them; the formulas are in
    engine/sampler.py."""

    repetition_penalty: float  # of tokens in prompt or answer; 1 = off
    presence_penalty: float  # of tokens in the answer, `said` included; 0 = off
    frequency_penalty: float  # of the same, per occurrence; 0 = off
    logit_bias: tuple[tuple[TokenId, float], ...]


class Sampling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How tokens are drawn. Nobody downstream fills in a default: those here are the values that do
    nothing."""

    temperature: float  # 0 = greedy
    top_p: float  # (0, 1]
    top_k: int  # 0 = off
    seed: int  # 64 bits; the random number of token i depends on (seed, i) alone
    logprobs: int | None  # None = none; n = of the drawn token and the n most likely
    min_p: float = 0.0  # [0, 1]; 0 = off
    shaping: Shaping | None = None  # None = the logits as they are, which nearly all requests want


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """When generation ends."""

    max_tokens: int  # generated tokens, those of `said` included
    stop_token_ids: tuple[TokenId, ...]
    eos_token_ids: tuple[TokenId, ...]  # empty with ignore_eos
    deadline_ms: int  # from the ticket's arrival, for the epoch
    # generated before one of the ids above may be drawn, those of `said` included
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
    """Why an epoch ended badly; becomes the error's `code` at the client."""

    HANDOFF_FAILED = "handoff_failed"
    WORKER_LOST = "worker_lost"
    DEADLINE_EXCEEDED = "deadline_exceeded"
    OVERLOADED = "overloaded"
    QUEUE_TIMEOUT = "queue_timeout"
    # what this request asks for cannot be computed; others are not concerned
    COMPUTE_FAILED = "compute_failed"
    # a worker ended while it computed it, and another one while it computed nothing else
    POISON = "poison_request"


# ---- gateway -> leaders -------------------------------------------------------------------------


class Ticket(Message, frozen=True, tag="ticket"):
    """The complete description of a request; the same one goes to both leaders."""

    key: Key
    stamp: Seen
    gateway: Boot
    prefill: Boot  # equal to `decode` for a unified worker
    decode: Boot
    prompt: tuple[TokenId, ...]
    said: tuple[TokenId, ...]  # generated in earlier epochs and already streamed
    sampling: Sampling
    limits: Limits
    # the smaller the more urgent: who waits longer at the gateway, who gives way when decode's
    # pages run short
    priority: int = 0
    # from its arrival until a worker must hold memory to generate in; then the epoch fails
    admit_ms: int = 30_000
    cache_salt: str = ""  # only requests with the same one share cached state
    # generated tokens, `said` included, up to which its rows have steps for themselves; 0 = none
    # has
    alone_until: int = 0

    @property
    def came(self) -> tuple[Stamp, Boot]:
        """The smaller came first; two gateways may have given the same stamp."""
        return self.stamp, self.gateway


class Abort(Message, frozen=True, tag="abort"):
    """Gateway -> leader: this epoch ends now."""

    key: Key
    reason: str


class Close(Message, frozen=True, tag="close"):
    """Gateway -> leader: the room has ended on all sides; its record may be forgotten."""

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


class Tokens(Message, frozen=True, tag="tokens"):
    """Decode leader -> gateway: generated tokens from `start`; the first lot begins with the one
    handed over."""

    key: Key
    start: TokenIndex
    drawn: tuple[Drawn, ...]
    finish: FinishReason | None
    cached: int = 0  # with the first lot: as in FirstToken, which may come later


class Failed(Message, frozen=True, tag="failed"):
    """Leader -> gateway: this epoch ended badly on my side; abort the other."""

    key: Key
    code: FailCode
    detail: str
    retry: bool  # whether another epoch may succeed


class Trial(Message, frozen=True, tag="trial"):
    """Leader -> gateway, of a request that may have ended a worker: a step with nothing else in it
    begins, or is over."""

    key: Key
    over: bool


class Recompute(Message, frozen=True, tag="recompute"):
    """Decode leader -> gateway: the room's state was given up for others; open the next epoch after
    the tokens said."""

    key: Key


class Ended(Message, frozen=True, tag="ended"):
    """Leader -> gateway: I hold nothing of this epoch any more (every end, good or bad)."""

    key: Key


class Credits(Message, frozen=True, tag="credits"):
    """Leader -> gateway: an absolute statement of capacity; a hint, never a permission."""

    number: int  # the higher is the newer
    worker: Boot  # whose capacity it is: the sender's
    free_pages: dict[GroupName, int]
    total_pages: dict[GroupName, int]
    waiting: int  # rooms that hold no memory yet
    running: int
    # that may still run at once; a prefill worker is limited by its pages alone
    free_rooms: int = 0
    free_queue: int = 4096  # rooms that may still wait here; more are refused
    # of the gateway that this is said to, since it connected, which the numbers above know of
    tickets: int = 0
    # prefill: that rooms for one decode worker may hold before it admits them
    ahead_pages: dict[GroupName, int] = {}
    stamp: Seen = Stamp(0)  # the highest of all tickets that it has seen, whose ever


class Register(Message, frozen=True, tag="register"):
    """Worker leader -> gateway, first message of a session."""

    name: str
    address: str | None  # where decode leaders dial a prefill leader; None for the other roles
    manifest: Manifest
    stamp: Seen = Stamp(0)  # as in Credits


class Introduce(Message, frozen=True, tag="introduce"):
    """Gateway -> decode leader: a prefill worker it should pair with."""

    prefill: Boot
    address: str
    manifest: Manifest


class Paired(Message, frozen=True, tag="paired"):
    """Decode leader -> gateway and prefill leader: plan proved, digests equal, session up."""

    prefill: Boot
    fabric: str


class Unpaired(Message, frozen=True, tag="unpaired"):
    """Decode leader -> gateway: these two cannot (or can no longer) hand over. `why` names field
    and values."""

    prefill: Boot
    why: str


class Lends(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How prefill may read what a decode worker's prefix cache has: over this fabric, by the plan
    of this digest."""

    fabric: str
    plan: str


class Hello(Message, frozen=True, tag="hello"):
    """Decode leader -> prefill leader: my manifest; answered by `HelloBack` or `Refused`."""

    manifest: Manifest
    plan: str  # hex digest of the PairPlan
    # None: nothing, as its prefix cache is off, or nothing is to be fetched back
    lends: Lends | None = None


class HelloBack(Message, frozen=True, tag="hello_back"):
    """Prefill leader -> decode leader: same plan here; rooms may be handed over."""

    plan: str


class Refused(Message, frozen=True, tag="refused"):
    """Prefill leader -> decode leader: these two do not fit; `why` names field and both values."""

    why: str


# ---- between leaders ----------------------------------------------------------------------------


class BlockRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blocks [start, end) of a sequence in a group, and the source pages `start // k .. (end - 1)
    // k` that hold them."""

    start: BlockIndex
    end: BlockIndex
    pages: tuple[Page, ...]


class LegSums(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the blocks of the same group's run sum to on one leg, in ascending block order.

    `blocks` names the blocks (a leg owns a subset where the source is replicated).
    """

    leg: int
    group: GroupName
    blocks: tuple[BlockIndex, ...]
    seals: tuple[Seal, ...]


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What decode needs besides the state; complete or absent."""

    length: int  # L = prompt + said: positions whose state was computed
    first: Drawn
    finish: FinishReason | None
    # positions that prefill did not compute: it had their state, or fetched it back from decode
    cached: int = 0


class Offer(Message, frozen=True, tag="offer"):
    """Prefill leader -> decode leader: these blocks of the room exist, lie here and sum to this.

    Number 0 has no blocks: prefill holds pages for the whole prompt. The last one carries the
    record.
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
    """Prefill leader -> decode leader and gateway: an unadmitted room was given up under
    pressure."""

    key: Key


class Received(Message, frozen=True, tag="received"):
    """Decode leader -> prefill leader: committed on all ranks; the pages may be unpinned."""

    key: Key


class Doubt(Message, frozen=True, tag="doubt"):
    """Whoever reads -> whoever is read: these blocks arrived differing from their sums.

    Decode leader -> prefill leader of blocks that were offered, which were read again and again;
    prefill leader -> decode leader of a loan, before it is returned. Legs are those of the plan by
    which is read.
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


class Borrow(Message, frozen=True, tag="borrow"):
    """Prefill leader -> decode leader: what does your prefix cache have of this room's prompt, from
    this block on?"""

    key: Key
    start: BlockIndex


class Loan(Message, frozen=True, tag="loan"):
    """Decode leader -> prefill leader, the answer: these blocks lie here and sum to this; nothing,
    if there are no runs.

    The pages are pinned until `Returned`, and no longer than the room is open on decode.
    """

    key: Key
    runs: dict[GroupName, BlockRun]
    sums: tuple[LegSums, ...]


class Returned(Message, frozen=True, tag="returned"):
    """Prefill leader -> decode leader: nothing of the loan is read, or not any more; its pages may
    be unpinned."""

    key: Key


class Progress(Message, frozen=True, tag="progress"):
    """Leader -> leader, while the two share rooms: what I have done since I started that rooms may
    wait for, mine or yours.

    As long as the number grows, whoever waits for me waits for others of my rooms, and not in vain.
    """

    worker: Boot
    done: int


class Stale(Message, frozen=True, tag="stale"):
    """Leader -> leader: I know nothing of that epoch, or it has ended here."""

    key: Key


# ---- ledger view --------------------------------------------------------------------------------


class AskLedger(Message, frozen=True, tag="ask_ledger"):
    """Gateway -> leader: state your books; with `audit`, after having checked every page of
    them."""

    question: int
    audit: bool = True


class Clear(Message, frozen=True, tag="clear"):
    """Gateway -> leader: empty the prefix cache and zero the pools of every group if no room is
    open; then state your books."""

    question: int


class ResetCache(Message, frozen=True, tag="reset_cache"):
    """Gateway -> leader: state that is cached now is reused by no room that begins later; then
    state your books."""

    question: int


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


class LedgerView(Message, frozen=True, tag="ledger_view"):
    """Leader -> gateway: the books of one worker."""

    question: int
    name: str
    role: str
    ranks: tuple[RankView, ...]
    pages: dict[GroupName, dict[str, int]]  # state name -> pages
    pins: int  # of rooms on cached pages
    reads: int  # under way
    rooms: tuple[RoomView, ...]
    clean: bool  # nothing but cache is held
    counters: Counters = Counters()
    # host memory for preempted rooms: `total` and `used` bytes of the fullest rank; empty if none
    host: dict[str, int] = {}
    # states, or parts of some, in the host memory of its ranks or on their way there or back
    copies: int = 0
    cleared: tuple[GroupName, ...] = ()  # groups that every rank has zeroed, in the answer to Clear


AnyMessage = (
    Ticket
    | Abort
    | Close
    | FirstToken
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
    | LedgerView
)
