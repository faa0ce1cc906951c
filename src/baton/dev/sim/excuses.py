"""No spurious failure: a request may fail only if a fault that concerns it explains the failure."""

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
    # A side that has refused the request, or failed it by itself, no longer knows it, and the other
    # side may report that first.
    FailCode.HANDOFF_FAILED: DISTURBED | TRANSFER | {"big", "tight", "row", "slow checkpoint"},
    FailCode.DEADLINE_EXCEEDED: DISTURBED | TRANSFER | {"tight"},
    FailCode.OVERLOADED: frozenset({"big"}),
    FailCode.QUEUE_TIMEOUT: DISTURBED | TRANSFER | {"tight", "crowd"},
    FailCode.COMPUTE_FAILED: frozenset({"row"}),
    FailCode.UNSATISFIABLE: frozenset(),
    # an innocent request fails so only if it was a suspect and a fault hit it again
    FailCode.POISON: ENDED | {"is poison"},
}
# of requests to engines that have workers of ours as guests: connections break and are refused
OF_GUESTS: dict[FailCode, frozenset[str]] = {
    FailCode.COMPUTE_FAILED: DISTURBED | TRANSFER | {"late request"},
    FailCode.HANDOFF_FAILED: frozenset({"late request"}),
}
# an attempt may fail because of it, but the request is served all the same
MISTAKEN = frozenset({"mistaken pair"})
EVERYBODY = "*"


class InjectedFault(msgspec.Struct, frozen=True):
    """A fault that has occurred, and the workers or gateways that it hit, by name."""

    at: int
    kind: str
    whom: frozenset[str]


def worker_of(process: str) -> str:
    """Return the worker or gateway that a process belongs to."""
    return process.split("/")[0]


def excuse(
    code: FailCode,
    faults: list[InjectedFault],
    concerned: frozenset[str],
    *,
    also: frozenset[str] = frozenset(),
) -> InjectedFault | None:
    """Return a fault that explains this failure of a request, which concerned these workers and
    gateways; None if there is none.

    also: further kinds of fault that explain it
    """
    kinds = EXCUSES[code] | also
    return next(
        (f for f in faults if f.kind in kinds and (f.whom & concerned or EVERYBODY in f.whom)), None
    )
