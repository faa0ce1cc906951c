"""What clients have seen while a service was hurt, and what of it may not be.

    whole      the answer is the reference, token for token
    failed     it ends with an error that has a code; what came before is as the reference begins
    left       the client has left, before the end; what came before is as the reference begins
    all else   is a complaint: other tokens, an end without a word, no end

A client of a gateway that is killed loses its connection; nobody can tell it anything. One that is
restarted in order ends its streams first.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import pairwise

import msgspec

STATED = re.compile(r"HTTP \d{3}: \w+|error in the stream: \w+")
UNSAID = ("connection lost", "no connection", "the stream ended early")
LEFT = "left by its client"
GATEWAY, RESTART, CORRUPT = "gateway", "restart", "corrupt"


class ProcessFault(msgspec.Struct, frozen=True):
    """Something that was done to a process, or to the cable.

    Attributes:
        at: when; seconds of this machine's monotonic clock, like all times here
        whole: when all processes were there again and the service was ready
        evidence: how many pages, packets or processes show that it was done
    """

    kind: str
    victim: str
    at: float
    whole: float
    evidence: int = 0


class Seen(msgspec.Struct, frozen=True):
    """What a client has seen of one request.

    Attributes:
        case: which request it was
        times: when parts of its answer came
        tokens: of its answer
        failure: how it ended; empty if it was whole
        asleep: how long its client read nothing
    """

    case: int
    sent: float
    ended: float
    times: tuple[float, ...]
    tokens: tuple[int, ...]
    failure: str
    asleep: float = 0.0


def complaints(
    history: Sequence[Seen],
    reference: Sequence[tuple[int, ...]],
    faults: Sequence[ProcessFault],
    *,
    limit_s: float,
) -> Iterator[str]:
    """Yield what may not be.

    Args:
        reference: of each case, the answer of a service that nobody hurts
        limit_s: time within which every request must have ended
    """
    for seen in history:
        right = reference[seen.case]
        who = f"case {seen.case}, sent at {seen.sent:.1f} s"
        if seen.tokens != right[: len(seen.tokens)] or not (seen.failure or seen.tokens == right):
            at = next(
                (i for i, (a, b) in enumerate(zip(seen.tokens, right, strict=False)) if a != b),
                len(seen.tokens),
            )
            count = f"{len(seen.tokens)} of {len(right)} tokens"
            yield f"wrong: {who}: {count}, as it should be up to {at}"
        if not _stated(seen.failure) and not _excused(seen, faults):
            yield f"unstated: {who}: {seen.failure}"
        if seen.ended - seen.sent > limit_s:
            yield f"hung: {who}: for {seen.ended - seen.sent:.1f} s"


def role_of(victim: str) -> str:
    """Return a process's name without its number."""
    return victim.rsplit("-", 1)[0]


def _stated(failure: str) -> bool:
    return failure in ("", LEFT) or STATED.fullmatch(failure) is not None


def _excused(seen: Seen, faults: Sequence[ProcessFault]) -> bool:
    return seen.failure in UNSAID and any(
        role_of(fault.victim) == GATEWAY
        and fault.kind != RESTART
        and fault.at <= seen.ended
        and seen.sent <= fault.whole
        for fault in faults
    )


class FaultFigures(msgspec.Struct, frozen=True):
    """What faults of one kind have cost.

    Attributes:
        answered_s: from each until a request that was sent after it had its first token
        whole_s: from each until the service was whole
        gap_s: of each, the longest gap in a stream that was open at it
        evidence: of all of them together
    """

    count: int
    answered_s: tuple[float, ...]
    whole_s: tuple[float, ...]
    gap_s: tuple[float, ...]
    evidence: int


class ChaosFigures(msgspec.Struct, frozen=True):
    """The figures of a run.

    Attributes:
        left: requests whose clients left before the end
        slow: answered whole to clients that read nothing for a while
    """

    requests: int
    whole: int
    left: int
    slow: int
    failures: dict[str, int]
    faults: dict[str, FaultFigures]


def figures(history: Sequence[Seen], faults: Sequence[ProcessFault]) -> ChaosFigures:
    """Sum a run up."""
    of_kind: dict[str, list[ProcessFault]] = {}
    for fault in faults:
        of_kind.setdefault(f"{fault.kind} {role_of(fault.victim)}", []).append(fault)
    return ChaosFigures(
        requests=len(history),
        whole=sum(not seen.failure for seen in history),
        left=sum(seen.failure == LEFT for seen in history),
        slow=sum(not seen.failure and seen.asleep > 0 for seen in history),
        failures=dict(Counter(seen.failure for seen in history if seen.failure not in ("", LEFT))),
        faults={
            kind: FaultFigures(
                len(lot),
                tuple(_answered(history, fault) for fault in lot),
                tuple(round(fault.whole - fault.at, 3) for fault in lot),
                tuple(_gap(history, fault) for fault in lot),
                sum(fault.evidence for fault in lot),
            )
            for kind, lot in sorted(of_kind.items())
        },
    )


def _answered(history: Sequence[Seen], fault: ProcessFault) -> float:
    firsts = [seen.times[0] for seen in history if seen.sent >= fault.at and seen.times]
    return round(min(firsts) - fault.at, 3) if firsts else float("inf")


def _gap(history: Sequence[Seen], fault: ProcessFault) -> float:
    """Return the longest gap that begins before the end of the fault, and ends after it began."""
    gaps = [
        b - a
        for seen in history
        if not seen.asleep
        for a, b in pairwise(seen.times)
        if a <= fault.whole and b >= fault.at and seen.times[0] <= fault.at
    ]
    return round(max(gaps, default=0.0), 3)
