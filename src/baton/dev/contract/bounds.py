"""F6 to F9: limits, what is exposed, what is refused, deadlines."""

import msgspec
import numpy as np

from baton.core.errors import FabricError
from baton.dev.contract.rig import POOLS, SECONDS, CheckWorld, copies, refused
from baton.ports.fabric import ReadOutcome

MANY = 5000  # more than any engine takes at once
OUTSIDE = (
    (POOLS["slot"] - 3, 0, 4),
    (0, POOLS["slot"] - 3, 4),
    (POOLS["slot"], 0, 1),
    (-1, 0, 4),
    (0, -1, 4),
    (0, 0, -1),
    (0, 0, POOLS["slot"] + 1),
    (2**63 - 1, 0, 2),
    (0, 2**63 - 1, 2),
    (8, 8, 2**63 - 1),
    (-(2**63), 0, 2),
    (POOLS["slot"] + 1, 0, 0),
)


def f6_ranges_at_and_beyond_the_declared_limits(w: CheckWorld) -> None:
    """Ranges at and beyond the declared limits."""
    joined, peer = w.joined, w.peer
    limits = joined.fabric.capabilities
    for count in (limits.max_ranges_per_call, limits.max_ranges_per_call + 1):
        at = np.arange(count) * 2
        joined.read_ok(peer, copies("full", at + 1, at, np.ones(count)))
    longest = min(limits.max_range_bytes, POOLS["full"] - 4096)
    for nbytes in (longest, longest + 1):
        joined.read_ok(peer, copies("full", 3, 5, nbytes))


def f6_a_read_of_thousands_of_ranges_is_split_inside(w: CheckWorld) -> None:
    """A read of thousands of ranges is split inside."""
    joined, peer = w.joined, w.peer
    at = np.arange(MANY)
    # not adjacent: nothing merges
    joined.read_ok(peer, copies("slot", at * 48 + 1, at * 32, np.full(MANY, 16)))


def f8_ranges_outside_either_pool_are_refused(w: CheckWorld) -> None:
    """Ranges outside either pool are refused."""
    joined, peer = w.joined, w.peer
    for source, target, nbytes in OUTSIDE:
        with refused(FabricError, "outside the pool"):
            joined.submit(peer, copies("slot", [0, source], [0, target], [8, nbytes]))
        # the first range, which is good, was not submitted either
        joined.read_ok(peer, copies("slot", 16, 16, 4))


def f8_malformed_copies_are_refused(w: CheckWorld) -> None:
    """Malformed copies are refused."""
    joined, peer = w.joined, w.peer
    good = copies("slot", [0], [0], [4])
    for bad in (
        copies("draft", 0, 0, 4),
        copies("slot", [0, 1], [0], [4]),
        msgspec.structs.replace(good, source=good.source.astype(np.int32)),
        msgspec.structs.replace(good, nbytes=good.nbytes.reshape(1, 1)),
    ):
        with refused(FabricError):
            joined.submit(peer, bad)
    joined.check()


def f9_a_read_ends_failed_at_its_deadline(w: CheckWorld) -> None:
    """A read ends failed at its deadline."""
    joined, peer = w.joined, w.peer
    joined.hold()
    late = joined.submit(peer, copies("full", 0, 0, POOLS["full"]), deadline_us=5 * SECONDS)
    fine = joined.submit(peer, copies("slot", 0, 0, 4), deadline_us=50 * SECONDS)
    joined.clock.ahead = 6 * SECONDS
    joined.let_go()
    ends = joined.ends(late, fine)
    assert (ends[late].outcome, ends[fine].outcome) == (ReadOutcome.FAILED, ReadOutcome.OK)
    assert "deadline" in ends[late].detail
