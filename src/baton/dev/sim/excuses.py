"""No spurious failure: a request may fail only where a fault of its own explains it."""

import msgspec

from baton.core.messages import FailCode

ENDED = frozenset(
    {"crash", "pause", "partition", "loss burst", "late frame", "mismatch", "connect", "hang"}
)
DISTURBED = ENDED | {"poison"}
TRANSFER = frozenset(
    {"failed read", "hanging endpoint", "corrupt read", "straggling read", "damage"}
)
EXCUSES: dict[FailCode, frozenset[str]] = {
    FailCode.WORKER_LOST: DISTURBED,
    # A side that has refused the request, or failed it by itself, knows it no more: the other one
    # says so first.
    FailCode.HANDOFF_FAILED: DISTURBED | TRANSFER | {"big", "tight", "row"},
    FailCode.DEADLINE_EXCEEDED: DISTURBED | TRANSFER | {"tight"},
    FailCode.OVERLOADED: frozenset({"big"}),
    FailCode.QUEUE_TIMEOUT: DISTURBED | TRANSFER | {"tight", "crowd"},
    FailCode.COMPUTE_FAILED: frozenset({"row"}),
    # of innocent requests only one that was a suspect, and had bad luck again
    FailCode.POISON: ENDED | {"is poison"},
}
# an attempt may fail of it: the request is served all the same
MISTAKEN = frozenset({"mistaken pair"})
EVERYBODY = "*"


class InjectedFault(msgspec.Struct, frozen=True):
    """Something that went wrong, and whom it hit (workers or gateways by name)."""

    at: int
    kind: str
    whom: frozenset[str]


def worker_of(process: str) -> str:
    """The worker or gateway that a process belongs to."""
    return process.split("/")[0]


def excuse(
    code: FailCode,
    faults: list[InjectedFault],
    concerned: frozenset[str],
    *,
    also: frozenset[str] = frozenset(),
) -> InjectedFault | None:
    """A fault that explains this failure of a request which concerned these workers and gateways;
    also: further kinds that do."""
    kinds = EXCUSES[code] | also
    return next(
        (f for f in faults if f.kind in kinds and (f.whom & concerned or EVERYBODY in f.whom)), None
    )
