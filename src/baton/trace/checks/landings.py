"""No byte of a pool is the target of two reads at once: one could overwrite what the other read."""

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from baton.core.events import ReadRefused
from baton.core.ids import GroupName
from baton.core.rank.rank_effects import Read
from baton.core.work import Handle, ReadEnded, ReadOutcome, Released
from baton.trace.checks.check import Check, raised
from baton.trace.log import CoreKind, Step

# first bytes, and bytes past the last; ascending
Ranges = tuple[NDArray[np.int64], NDArray[np.int64]]


class OneReadAByte(Check):
    """Tracks the byte ranges that a rank reads into. A
    read that ended UNKNOWN counts until it is released."""

    name = "one_read_a_byte"
    cores = (CoreKind.RANK,)
    invariant = "no byte is the target of two reads at once"

    def __init__(self) -> None:
        self._open: dict[Handle, Mapping[GroupName, Ranges]] = {}

    @override
    def see(self, step: Step) -> Iterator[str]:
        if raised(step):
            return
        match step.event:
            case ReadEnded() as end if end.outcome is not ReadOutcome.UNKNOWN:
                self._open.pop(end.handle, None)
            case ReadRefused(handle=handle):
                self._open.pop(handle, None)
            case Released() as released:
                self._open.pop(released.handle, None)
            case _:
                pass
        for out in step.effects:
            if isinstance(out, Read):
                yield from self._begin(out)

    def _begin(self, read: Read) -> Iterator[str]:
        ranges = _ranges(read)
        for handle, others in self._open.items():
            for group in ranges.keys() & others.keys():
                if _overlap(ranges[group], others[group]):
                    yield (
                        f"read {read.handle} begins into bytes of group {group} into which "
                        f"read {handle} may still land"
                    )
        self._open[read.handle] = ranges


def _ranges(read: Read) -> Mapping[GroupName, Ranges]:
    found = {}
    for group in {c.group for c in read.copies}:
        start = np.concatenate([c.target for c in read.copies if c.group == group])
        size = np.concatenate([c.nbytes for c in read.copies if c.group == group])
        order = np.argsort(start, kind="stable")
        found[group] = start[order], (start + size)[order]
    return found


def _overlap(a: Ranges, b: Ranges) -> bool:
    """Whether a range of `a` overlaps one of `b`. The
    ranges within `a`, and within `b`, are disjoint."""
    # For each range of a: the number of b's ranges that begin before its end, less the number of
    # b's ranges that end at or before its begin.
    return bool((np.searchsorted(b[0], a[1], "left") > np.searchsorted(b[1], a[0], "right")).any())
