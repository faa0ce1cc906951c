"""Rare branches of the core, by name. Each role counts those that it takes.

Nobody knows whether a branch works that no test and no simulated world takes. So the simulator
reports the marks that it has hit, and fails when one was never hit.
"""

from collections import Counter
from enum import Enum


class Mark(Enum):
    """One rare branch."""

    # every leader
    TICKET_HIGHER_EPOCH = "a ticket ends the room's lower epoch"
    TICKET_UNPAIRED = "a ticket for a pair that is none here"
    TICKET_TOO_LARGE = "a ticket for more pages than there are"
    GATEWAY_LOST = "rooms end with their gateway"
    DEADLINE = "a room's deadline passes"
    WAITED = "a room waits in vain for memory to generate in"
    STALL = "a handoff stands still"
    PIPELINED = "a batch is issued behind another"
    WRONG_PARTY = "a message is not its sender's to say"  # at a gateway too
    STALE_HEARD = "the other side does not know the epoch"
    REUSED = "a room begins with cached pages"
    OVERDUE = "cached pages are not used, as they were not verified in time"
    DAMAGED_AT_REST = "cached pages are found damaged that nobody has asked about"
    COMPUTED_TWICE = "a page is computed whose like is cached already"
    DAMAGED = "doubted blocks of ours differ from their sums at birth"
    DAMAGE_SHARED = "a room ends because a page that it shares was damaged"
    INTACT = "doubted blocks of ours are as they were at birth"
    GONE = "doubted blocks are not held any more"
    ROW_FAILED = "a request ends because its own row raises"
    GRAMMAR_AWAITED = "a token could be drawn, but its grammar is not built yet"
    ALONE = "a request that may have ended a worker has a step for itself"
    GIVEN_UP = "a worker ends because something of it does not"
    LEFT = "a worker has drained, and leaves"
    # prefill
    WITHDRAWN = "an unadmitted room gives way to an older one"
    TOO_FAR_AHEAD = "a prompt waits because decode has not admitted those before it"
    ADMITTED_TOO_LATE = "Admitted crosses the room's end"
    DECODE_LOST = "rooms end with their decode worker"
    FINISHED_AT_FIRST = "a request ends at its first token"
    BORROWED = "state of a prompt is fetched back from decode"
    NOT_WORTH_IT = "state of a prompt could be fetched back, and is computed as that is cheaper"
    NOTHING_LENT = "decode is asked for the state of a prompt, and has none of it"
    NOT_ANSWERED = "decode does not say in time what it has of a prompt"
    BORROWED_IN_VAIN = "what is fetched back does not arrive, or not whole, and is computed"
    LOAN_DAMAGED = "what decode lent was not what it had been, as decode finds"
    LOAN_TOO_LATE = "decode lends what nobody waits for any more"
    CHECKPOINT_KEPT = "what cached pages lack at the end of a sequence is kept in host memory"
    CHECKPOINT_NOT_KEPT = (
        "host memory has no space for what cached pages lack at the end of a sequence"
    )
    CHECKPOINT_EVICTED = "a checkpoint gives way to a later one"
    CHECKPOINT_USED = "a prompt goes on from where an earlier one, or its answer, ended"
    ANSWER_USED = "a prompt goes on from where the answer to an earlier one ended"
    PART_USED = "a prompt goes on from within an earlier one"
    CHECKPOINT_UNUSABLE = "a checkpoint does not come back, or not as it was computed"
    CHECKPOINT_BORROWED = "a prompt goes on from a checkpoint that is fetched back from decode"
    # decode
    LOCAL_USED = (
        "decode computes a prompt, and goes on from where an earlier one, or its answer, ended"
    )
    CHECKPOINT_LENT = "a checkpoint is brought back, and lent to prefill"
    CHECKPOINT_NOT_LENT = "no pages are free to lend a checkpoint from"
    EARLY_OFFER = "an offer comes before its ticket"
    EARLY_EXPIRED = "an offer waits in vain for its ticket"
    OFFER_TOO_LATE = "an offer of a room that has ended"
    WITHDRAWN_HEARD = "a room ends because prefill gave it up"
    WITHDRAWN_TOO_LATE = "Withdrawn finds the room committed"
    PREFILL_LOST = "rooms end with their prefill worker"
    DOUBT = "blocks keep differing from their sums"
    FETCH_FAILED = "an order fails on some rank"
    RECOMPUTE = "a running room gives way for want of pages, and is computed again"
    OFFLOADED = "a running room gives way for want of pages, and its state goes to the host store"
    PREEMPTED = "a running room gives way to a more urgent one that waits"
    RESUMED = "an offloaded room has its state back, in other pages"
    STORE_FULL = "the host store has no space for the state of a room that gives way"
    COPY_FAILED = "a state does not come into the host store, or not whole out of it"
    FOLLOWED = "a room lets another one fetch first what both begin with"
    FOLLOWED_IN_VAIN = "a room has followed for as long as it may, and goes alone"
    ALL_CACHED = "a room of which nothing has to be fetched"
    OVERTAKEN = "a later room is admitted while an earlier one is away"
    UNPAIRED = "a pair ends"
    NOT_THERE = (
        "a prefill worker that was introduced is not where it should be: another "
        "process is, or none can be dialled"
    )
    NOT_PAIRED = "a prefill worker that was introduced is not paired in time"
    EARLY_BORROW = "prefill asks for the state of a room before its ticket has come"
    # ranks
    READ_AGAIN = "a read failed, or what it brought differs"
    READ_UNKNOWN = "a read ended without a promise of quiet"
    DROPPED_AT_ONCE = "a room is dropped by the plan that gives to it"
    # gateway
    NEW_EPOCH = "another epoch after a failure"
    GAVE_WAY = "another epoch because the room gave way"
    FIRST_HELD = "the first token waits for Admitted"
    KNOWN_TOKENS = "tokens that the client has already"
    NO_PAIR = "a request waits for a pair"
    QUEUED = "a request waits at the edge for credits"
    TOO_LATE = "a request's turn comes too late for its answer"
    GRACE = "the gateway ends what nobody ended"
    PAIR_DOUBTED = "one side of a pair has lost the other"
    CACHE_NEWS_LOST = "news of a worker's prefix cache were lost, and it is asked for all"
    POISON = "a worker ends while it computes a request alone"
    INNOCENT = "a worker ends while it computes another request alone"
    HELD = "a request waits until it is known whether it has ended a worker"


Marks = Counter[Mark]
