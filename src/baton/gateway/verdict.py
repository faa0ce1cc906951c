"""Why a request took so long, in a sentence: what took most of its time, and what can be done.

    path of a timeline ──cause_of──▶ causes ──the sum of each──▶ the largest ──▶ SlowVerdict

The live page and `baton trace` show the same sentence. It is meant for somebody who knows vLLM and
has never seen Baton.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

import msgspec

from baton.core.scheduler.room import AWAITS_TURN, RoomState
from baton.gateway.phases import RequestPhase

DOCUMENTED = "https://github.com/baton-llm/baton/blob/main/docs/slow-requests.md"
MENTIONED = 0.05  # the least share of the time that another cause must have had


class Cause(StrEnum):
    """What took time; the name of its section in docs/slow-requests.md."""

    NO_ROOM = "no-worker-had-room"
    QUEUE = "queued"
    DECODE_MEMORY = "waited-for-decode"
    CACHE = "cached-state"
    PROMPT = "computing-the-prompt"
    TRANSFER = "kv-transfer"
    GENERATION = "generating"
    PREEMPTION = "preempted"
    FAILURE = "begun-again"
    MESSAGES = "messages"


class SlowVerdict(msgspec.Struct, frozen=True):
    """What took the largest share of a request's time.

    Attributes:
        phase: a RequestPhase, in whose colour it is drawn
        title: one or two words
        us: microseconds of the whole time that are due to it
        says: one sentence, and one about the rest
        advice: what helps
        more: where that is explained
    """

    cause: Cause
    phase: RequestPhase
    title: str
    us: int
    says: str
    advice: str
    more: str


class PhaseSide(NamedTuple):
    """A phase of a path, as far as its cause depends on it."""

    name: str
    us: int
    gateway: bool  # whether it was spent there
    decode: bool  # whether it was spent on a decode worker, which computes no prompts
    again: "Cause | None"  # why the request had to begin again, if this is its new beginning


class RequestFacts(NamedTuple):
    """What sentences name: `prefill` and `decode` are the last workers, and may be the same."""

    prefill: str
    decode: str
    tight: str  # the worker on which it gave way to others, if it did
    behind: int  # prompts that the prefill worker had still to compute before this one
    prompt_tokens: int
    cached_tokens: int
    generated_tokens: int


class _Words(NamedTuple):
    phase: RequestPhase
    title: str
    what: str  # of RequestFacts' fields, and `worker`, `behind_them`, `computed`
    advice: str


_WORDS: Mapping[Cause, _Words] = {
    Cause.NO_ROOM: _Words(
        RequestPhase.WAITING,
        "Waiting",
        "waiting at the gateway, as no worker had room for it",
        "Add workers, give them more KV cache memory, or send fewer requests at once.",
    ),
    Cause.QUEUE: _Words(
        RequestPhase.QUEUED,
        "Queued",
        "waiting in the queue of {worker}{behind_them}",
        "Add prefill workers, or send fewer or shorter prompts at once.",
    ),
    Cause.DECODE_MEMORY: _Words(
        RequestPhase.OFFERED,
        "Waits for decode",
        "waiting until decode worker {decode} had memory for it",
        "Add decode workers, or give them more KV cache memory (--kv-memory).",
    ),
    Cause.CACHE: _Words(
        RequestPhase.BORROWING,
        "Cached state",
        "copying what was cached of its prompt",
        "Compare with --fetch-back never: computing it anew may be faster on this network.",
    ),
    Cause.PROMPT: _Words(
        RequestPhase.COMPUTING,
        "Prefill",
        "computing its prompt ({computed} tokens that were not cached) on {worker}",
        "This is the work of prefill itself: a shorter prompt, a cached beginning, or a faster"
        " prefill worker (more ranks) helps; more workers do not.",
    ),
    Cause.TRANSFER: _Words(
        RequestPhase.FETCHING,
        "KV transfer",
        "in KV transfer: moving the KV cache of its prompt from {prefill} to {decode}",
        "The network between the two is slow or busy: try it with baton doctor, and see which"
        " fabric the pair uses in the table of pairs.",
    ),
    Cause.GENERATION: _Words(
        RequestPhase.RUNNING,
        "Generating",
        "generating {generated_tokens} tokens on {decode}",
        "This is the work of decode itself: it depends on the number of tokens, and on how many"
        " requests the worker runs at once.",
    ),
    Cause.PREEMPTION: _Words(
        RequestPhase.PREEMPTED,
        "Preempted",
        "preempted: {tight} ran out of KV cache memory, and others needed this request's pages",
        "Give that worker more KV cache memory (--kv-memory), add workers of its role, or lower"
        " --max-num-seqs.",
    ),
    Cause.FAILURE: _Words(
        RequestPhase.HELD,
        "Begun again",
        "being done again, after a worker was lost or a transfer failed",
        "The log of the gateway names the worker and the failure.",
    ),
    Cause.MESSAGES: _Words(
        RequestPhase.WAITING,
        "Messages",
        "in messages between gateway and workers",
        "Processes had to wait for a processor or for the network: look at the load of the"
        " machines.",
    ),
}
# the phases that are due to each, at whichever worker; others are messages
_PHASES: Mapping[Cause, tuple[str, ...]] = {
    Cause.QUEUE: (RoomState.QUEUED, AWAITS_TURN),
    Cause.CACHE: (RoomState.RESUMING, RoomState.BORROWING),
    Cause.PROMPT: (RoomState.COMPUTING,),
    Cause.DECODE_MEMORY: (RoomState.OFFERED, "awaits_decode"),
    Cause.TRANSFER: (RoomState.FETCHING, RoomState.COMMITTING),
    Cause.GENERATION: (RoomState.RUNNING,),
    Cause.PREEMPTION: (RoomState.OFFLOADING, RoomState.OFFLOADED, RoomState.RESTORING),
    Cause.FAILURE: ("unknown",),
}
_CAUSES = {name: cause for cause, names in _PHASES.items() for name in names}


def cause_of(phase: PhaseSide) -> Cause:
    """Return to what a phase is due."""
    if phase.again is not None and phase.name != RoomState.RUNNING:
        return phase.again
    if phase.name == RoomState.QUEUED and phase.gateway:
        return Cause.NO_ROOM
    if phase.name == RoomState.QUEUED and phase.decode:
        return Cause.DECODE_MEMORY
    return _CAUSES.get(phase.name, Cause.MESSAGES)


def verdict_of(phases: Iterable[PhaseSide], facts: RequestFacts) -> SlowVerdict | None:
    """Return what took the largest share of a path; None if it took no time at all."""
    spent = Counter[Cause]()
    for phase in phases:
        spent[cause_of(phase)] += phase.us
    total = spent.total()
    if not total:
        return None
    (cause, us), *others = spent.most_common()
    words = _WORDS[cause]
    rest = [
        f"{duration(of)} {_what(other, facts)}" for other, of in others if of >= MENTIONED * total
    ]
    says = f"{duration(total)}: {duration(us)} ({us / total:.0%}) {_what(cause, facts)}."
    return SlowVerdict(
        cause=cause,
        phase=words.phase,
        title=words.title,
        us=us,
        says=f"{says} The rest: {listed(rest)}." if rest else says,
        advice=words.advice,
        more=f"{DOCUMENTED}#{cause}",
    )


def _what(cause: Cause, facts: RequestFacts) -> str:
    apart = facts.prefill != facts.decode
    others = "1 other prompt" if facts.behind == 1 else f"{facts.behind} other prompts"
    return _WORDS[cause].what.format(
        **facts._asdict(),
        worker=f"{'prefill ' if apart else ''}worker {facts.prefill}",
        behind_them=f", behind {others}" if facts.behind else "",
        computed=facts.prompt_tokens - facts.cached_tokens,
    )


def listed(parts: Sequence[str]) -> str:
    """Return parts as a list in a sentence."""
    return " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))


def duration(us: int) -> str:
    """Return a time with two or three digits that count."""
    if us < 1_000_000:
        return f"{us / 1_000:.{0 if us >= 10_000 else 1}f} ms"
    seconds = us / 1_000_000
    return (
        f"{seconds:.{2 if seconds < 10 else 1}f} s" if seconds < 120 else f"{seconds / 60:.1f} min"
    )
