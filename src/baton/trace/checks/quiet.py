"""A rank says `quiet` of a dropped room only when none of its
reads, hashes, copies or batches touches the room's pages."""

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from baton.core.agreement import Hold, Report, StepPlan
from baton.core.events import ReadRefused
from baton.core.ids import GroupName, Key, Seq
from baton.core.memory.state import Placement
from baton.core.parts import RankParts
from baton.core.rank.rank_effects import Compute, Digest, Load, Read, Save
from baton.core.work import (
    BatchDone,
    Copied,
    DigestDone,
    DigestOrder,
    Handle,
    HostCopy,
    Job,
    ReadEnded,
    ReadOutcome,
    Released,
)
from baton.trace.checks.check import Check, brief, raised
from baton.trace.log import CoreKind, Parts, Step

Places = frozenset[tuple[GroupName, int]]


class QuietIsTrue(Check):
    """Tracks the work of a rank under way, by page,
    from its orders to fabric, engine and host store."""

    name = "quiet_is_true"
    cores = (CoreKind.RANK,)
    invariant = "quiet is said only when nothing under way touches the room's pages"

    def __init__(self) -> None:
        self._placement: Placement | None = None
        self._held: dict[Key, set[tuple[GroupName, int]]] = {}
        # pages of each room and group, in order
        self._lists: dict[tuple[Key, GroupName], list[int]] = {}
        self._dropped: set[Key] = set()
        self._reads: dict[Handle, Places] = {}
        self._hashes: dict[Job, Places] = {}
        self._copies: dict[Job, Places] = {}
        self._batches: dict[Seq, frozenset[Key]] = {}

    @override
    def made(self, parts: Parts) -> None:
        if isinstance(parts, RankParts):
            self._placement = parts.placements[parts.rank]

    @override
    def see(self, step: Step) -> Iterator[str]:
        if self._placement is None or raised(step):
            return
        match step.event:
            case StepPlan() as plan:
                yield from self._apply(plan)
            case ReadEnded() as end if end.outcome is not ReadOutcome.UNKNOWN:
                self._reads.pop(end.handle, None)
            case ReadRefused(handle=handle):
                self._reads.pop(handle, None)
            case Released() as released:
                self._reads.pop(released.handle, None)
            case DigestDone() as hashed:
                self._hashes.pop(hashed.job, None)
            case Copied() as copied:
                self._copies.pop(copied.job, None)
            case BatchDone() as computed:
                self._batches.pop(computed.seq, None)
            case _:
                pass
        for out in step.effects:
            match out:
                case Read():
                    yield from self._read(out, self._placement)
                case Digest(order=order, passing=False):
                    self._hashes[order.job] = _slots(order, self._placement)
                case Save(copy=copy) | Load(copy=copy):
                    self._copies[copy.job] = _copied(copy, self._placement)
                case Compute(batch=batch):
                    self._batches[batch.seq] = frozenset(row.key for row in batch.rows)
                case Report():
                    yield from self._report(out)
                case _:
                    pass

    def _apply(self, plan: StepPlan) -> Iterator[str]:
        self._dropped |= set(plan.drop)
        for key in plan.vacate:
            yield from self._vacate(key)
        for hold in plan.hold:
            self._pass(hold)
            added = {(g, int(p)) for g, pages in hold.pages.items() for p in pages}
            fresh = {
                (g, int(p))
                for g, pages in hold.pages.items()
                for p in pages[hold.shared.get(g, 0) :]
            }
            for key, places in self._held.items():
                if places & fresh:
                    yield (
                        f"plan {plan.seq} gives {brief(hold.key)} pages of {brief(key)}, of "
                        "which this rank has not said quiet"
                    )
            if hold.key not in self._dropped:
                for group, pages in hold.pages.items():
                    self._lists.setdefault((hold.key, group), []).extend(int(p) for p in pages)
                self._held.setdefault(hold.key, set()).update(added)

    def _vacate(self, key: Key) -> Iterator[str]:
        """A room's state is in the host store, so it gives up its pages."""
        places = self._alone(key)
        self._lists = {at: pages for at, pages in self._lists.items() if at[0] != key}
        touched = [f"hash {j}" for j, p in self._hashes.items() if p & places]
        touched += [f"copy {j}" for j, p in self._copies.items() if p & places]
        touched += [f"batch {s}" for s, keys in self._batches.items() if key in keys]
        if touched:
            yield (
                f"the pages of {brief(key)} were taken while they were touched by "
                f"{', '.join(touched)}"
            )

    def _alone(self, key: Key) -> set[tuple[GroupName, int]]:
        """Take a room's pages from it; returns those that
        no other room shares, which may be reused now."""
        return self._held.pop(key, set()).difference(*self._held.values())

    def _pass(self, hold: Hold) -> None:
        """Take from a room the pages at the front of its lists that its window has passed."""
        for group, n in hold.passed.items():
            lists = self._lists.setdefault((hold.key, group), [])
            self._held.setdefault(hold.key, set()).difference_update(
                (group, page) for page in lists[:n]
            )
            del lists[:n]

    def _read(self, read: Read, placement: Placement) -> Iterator[str]:
        places: set[tuple[GroupName, int]] = set()
        for copies in read.copies:
            size = placement.page_bytes(copies.group)
            first, last = copies.target // size, (copies.target + copies.nbytes - 1) // size
            places |= {
                (copies.group, int(p))
                for a, b in zip(first, last, strict=True)
                for p in range(a, b + 1)
            }
        self._reads[read.handle] = frozenset(places)
        owners = {key for key, held in self._held.items() if held & places}
        if len(owners) != 1 or not places <= self._held[min(owners)]:
            yield (
                f"read {read.handle} goes into pages of "
                f"{sorted(map(brief, owners)) or 'nobody'}; it must be one room's"
            )
        for key in owners & self._dropped:
            yield f"read {read.handle} begins into pages of {brief(key)}, which was dropped"

    def _report(self, report: Report) -> Iterator[str]:
        for key in report.quiet:
            places = self._alone(key)
            self._lists = {at: pages for at, pages in self._lists.items() if at[0] != key}
            if key not in self._dropped:
                yield f"quiet was said of {brief(key)}, which was not dropped"
            self._dropped.discard(key)
            under_way = [f"read {h}" for h, p in self._reads.items() if p & places]
            under_way += [f"hash {j}" for j, p in self._hashes.items() if p & places]
            under_way += [f"copy {j}" for j, p in self._copies.items() if p & places]
            under_way += [f"batch {s}" for s, keys in self._batches.items() if key in keys]
            if under_way:
                yield (
                    f"quiet was said of {brief(key)} while its pages were touched by "
                    f"{', '.join(under_way)}"
                )


def _slots(order: DigestOrder, placement: Placement) -> Places:
    return frozenset(
        (order.group, int(p))
        for p in np.unique(order.slots // placement.blocks_per_page(order.group))
    )


def _copied(copy: HostCopy, placement: Placement) -> Places:
    return frozenset(
        (g, int(p))
        for g, slots in copy.slots.items()
        for p in np.unique(slots // placement.blocks_per_page(g))
    )
