"""Invariants of one rank's memory, kept from its plans and its ports, without the code under test.

    holders of a page:  Hold (plan) gives it to a key; it may be given to another key only when
                        nothing of ours touches it, or as one that both share: then it holds what
                        the tokens of both imply, and nobody writes it.

Checked: a read lands only in pages that are being fetched into for its own room; no page is given
away while a read, a digest, a copy to the host store or a computation of ours still uses it; a page
has one owner; no read begins where another may still land, and no block is read too often; at
commit every block of the room is there and right; a room that comes back from the host store has
the same bytes as before.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from baton.core.agreement import Hold, RowOrder, StepPlan
from baton.core.ids import CheckpointName, GroupName, Key, Page, Rank, RankId, is_loan
from baton.core.memory.state import Full, Placement, Unit, Window
from baton.core.work import Handle, Job, Row
from baton.dev.sim.engine import SimEngine
from baton.dev.sim.host_store import SimHostStore
from baton.dev.sim.replicas import Replicas

Where = tuple[GroupName, int]
State = dict[GroupName, NDArray[np.uint8]]
Range = tuple[GroupName, int, int, int]
READS = 6  # of a block on a leg: three tries, and three more if prefill found it intact


class PlanBook:
    """Checks that all ranks of a worker apply the same plans in the same order."""

    def __init__(self, name: str, violate: Callable[[str, str], None]) -> None:
        self._name, self._violate = name, violate
        self._plans: list[StepPlan] = []
        self._applied: Counter[Rank] = Counter()

    def applied(self, rank: Rank, plan: StepPlan) -> None:
        """A rank is about to apply a plan. The others must do what the first rank does."""
        at = self._applied[rank]
        self._applied[rank] += 1
        if at == len(self._plans):
            self._plans.append(plan)
        elif plan is not self._plans[at] and plan != self._plans[at]:
            self._violate(
                "equal_plans",
                f"{self._name}/{rank} applies plan {plan.seq} where others "
                f"applied {self._plans[at].seq}",
            )


class ShadowBooks:
    """The shadow books of one rank."""

    def __init__(
        self, name: str, placement: Placement, violate: Callable[[str, str], None]
    ) -> None:
        self._name, self._placement, self._violate = name, placement, violate
        self._holders: dict[Where, set[Key]] = {}
        self._pages: dict[Key, dict[GroupName, list[int]]] = {}
        self._passed: dict[Key, Counter[GroupName]] = {}  # pages before the first of a list
        self._committed: set[Key] = set()
        self.dropped: set[Key] = set()
        self._reads: dict[Handle, tuple[Key | None, set[Where]]] = {}
        self._into: dict[Handle, list[tuple[GroupName, int, int]]] = {}
        self._times: dict[Key, Counter[tuple[RankId, GroupName, int]]] = {}  # reads of each block
        self._page_bytes = {g.name: placement.page_bytes(g.name) for g in placement.table.groups}
        self.engine: SimEngine | None = None
        self.replicas: Replicas | None = None
        self.store: SimHostStore | None = None
        # positions and bytes when the state was ordered into the host store
        self._before: dict[Key, tuple[int, State]] = {}
        self._restored: set[Key] = set()
        self._resuming: set[Key] = set()  # rooms that have gone on from checkpoints
        self._authors: dict[CheckpointName, Key] = {}  # of what the store was ordered to keep
        # hashes of cached pages, which may be given to a room meanwhile
        self.passing: set[Job] = set()

    def applied(self, plan: StepPlan) -> None:
        """This rank is about to apply a plan."""
        for keep in plan.keep:
            self._authors[keep.name] = keep.key
            if self.engine is not None:
                collective, groups = self.engine.collective, self._placement.table.groups
                collective.resumes.kept(
                    keep,
                    collective.said.get(keep.key, ()),
                    collective.stamps.get(keep.key, ())[: collective.settled.get(keep.key)],
                    collective.beside(keep.key),
                    one_length=any(group.unit is Unit.SLOT for group in groups),
                )
        for key in plan.drop:
            self.dropped.add(key)
            self._before.pop(key, None)
            self._times.pop(key, None)
        for key in plan.vacate:
            self._vacate(key)
        for hold in plan.hold:
            self._pass(hold)
            self._hold(hold.key, hold.pages, hold.shared)
        for order in plan.offload:
            if order.key not in self.dropped:
                self._before[order.key] = (order.length, self._state(order.key, order.length))
        for back in plan.restore:
            self._restored.add(back.key)
        for resume in plan.resume:
            if self.engine is None or resume.key in self.dropped:
                continue
            if is_loan(resume.key):
                self.engine.collective.resumes.begins(resume)
                continue
            self._resuming.add(resume.key)
            self.engine.collective.resumed(resume, self._whole(resume.key))
        for key in plan.commit:
            self._commit(key)
        for name in plan.forget:
            self._authors.pop(name, None)
        still = {keep.key for keep in plan.keep} | self._being_kept()
        for row in plan.batch:
            self._resumed(row)
            self._alone(row)
            if row.key in still:
                self._violate(
                    "right_resume",
                    f"{self._name}: {_short(row.key)} computes while its state is copied",
                )

    def _being_kept(self) -> set[Key]:
        """Return the rooms of which a part is being copied, for prompts that will go on from it."""
        if self.store is None:
            return set()
        saving = self.store.saving
        return {self._authors[name] for name in saving if not isinstance(name, Key)}

    def _alone(self, row: RowOrder) -> None:
        """A room computes: check that nothing is read into its pages any more."""
        reads = [handle for handle, (owner, _) in self._reads.items() if owner == row.key]
        if reads:
            self._violate(
                "computes_alone",
                f"{self._name}: {_short(row.key)} computes while "
                f"reads {reads} of it may still land",
            )

    def _resumed(self, row: RowOrder) -> None:
        """A room computes: if it was away, check that its state is what it was, byte for byte."""
        before = self._before.pop(row.key, None)
        if before is None:
            return
        length, state = before
        if row.key not in self._restored:
            self._violate(
                "same_after_resume",
                f"{self._name}: {_short(row.key)} computes while its state is in the host store",
            )
        self._restored.discard(row.key)
        if row.start != length:
            self._violate(
                "same_after_resume",
                f"{self._name}: {_short(row.key)} was away with {length} "
                f"tokens, goes on at {row.start}",
            )
        now = self._state(row.key, length)
        wrong = [g for g in state if not np.array_equal(state[g], now[g])]
        assert self.engine is not None
        if wrong and row.key not in self.engine.world.tainted:
            self._violate(
                "same_after_resume",
                f"{self._name}: {_short(row.key)} has come back with "
                f"another state in group {wrong}",
            )

    def _state(self, key: Key, length: int) -> State:
        """Return the state of the room's first `length` positions in our pools. Its places are
        computed here, and not by the code under test."""
        assert self.engine is not None
        found: State = {}
        table, b = self._placement.table, self._placement.table.block_tokens
        for group in table.groups:
            if not self._placement.block_bytes(group.name):
                continue
            first, past, k = 0, 1, 1
            if group.unit is Unit.PAGE:
                first = (
                    max(0, length - group.extent.tokens + 1) // b
                    if isinstance(group.extent, Window)
                    else 0
                )
                past, k = -(-length // b), self._placement.page_blocks
            passed = self._passed.get(key, Counter())[group.name]
            pages = self._pages[key][group.name]
            places = [pages[n // k - passed] * k + n % k for n in range(first, past)]
            found[group.name] = self.engine.sim_pools[group.name].data.reshape(
                -1, self._placement.block_bytes(group.name)
            )[places]
        return found

    def _whole(self, key: Key) -> dict[GroupName, list[int]]:
        """Return where the blocks of a room lie, of each group of pages of whole sequences."""
        k = self._placement.page_blocks
        return {
            group.name: [page * k + j for page in self._pages[key][group.name] for j in range(k)]
            for group in self._placement.table.groups
            if isinstance(group.extent, Full)
        }

    def _commit(self, key: Key) -> None:
        self._committed.add(key)
        if self.engine is not None:
            wrong = self.engine.differs(
                key, self._pages.get(key, {}), self._passed.get(key, Counter())
            )
            if wrong:
                self._violate(
                    "right_commit",
                    f"{self._name}: {_short(key)} is committed, and not what was computed: {wrong}",
                )

    def _pass(self, hold: Hold) -> None:
        """Pages at the front of a list leave the room. Nothing may be under way there when they are
        given to another."""
        passed = self._passed.setdefault(hold.key, Counter())
        for group, n in hold.passed.items():
            pages = self._pages.setdefault(hold.key, {}).setdefault(group, [])
            for page in pages[:n]:
                self._holders.get((group, page), set()).discard(hold.key)
            del pages[:n]
            passed[group] += n

    def _vacate(self, key: Key) -> None:
        """All pages of a list leave the room, though the room goes on."""
        if key in self._resuming and self.engine is not None:
            self._resuming.discard(key)
            self.engine.collective.resumes.vacated(key)
        for group, pages in self._pages.pop(key, {}).items():
            for page in pages:
                self._holders.get((group, page), set()).discard(key)
        self._passed.pop(key, None)

    def _hold(
        self,
        key: Key,
        pages: Mapping[GroupName, Sequence[Page]],
        shared: Mapping[GroupName, int],
    ) -> None:
        computed = self._in_steps() if pages else ()
        for group, numbers in pages.items():
            for n, page in enumerate(numbers):
                where = (group, int(page))
                if n < shared.get(group, 0):
                    self._holders.setdefault(where, set()).add(key)
                    if self.engine is not None and key not in self.dropped:
                        self.engine.reuses(key, group, n, int(page))
                else:
                    self._own(where, key, computed)
                self._pages.setdefault(key, {}).setdefault(group, []).append(int(page))

    def _own(self, where: Where, key: Key, computed: Collection[Where]) -> None:
        """A page begins a new life."""
        before = [
            other for other in sorted(self._holders.get(where, ())) if other not in self.dropped
        ]
        if before:
            self._violate(
                "one_owner",
                f"{self._name}: page {where} of {_short(before[0])} was given to {_short(key)}",
            )
        self._check_unused(where, key, computed)
        self._holders[where] = {key}
        if self.engine is not None:
            self.engine.given(*where)

    def _check_unused(self, where: Where, key: Key, computed: Collection[Where]) -> None:
        for handle, (owner, pages) in self._reads.items():
            if where in pages:
                owned = _short(owner) if owner is not None else "nobody"
                self._violate(
                    "own_reads_ended",
                    f"{self._name}: page {where} given to {_short(key)}, "
                    f"read {handle} of {owned} may land",
                )
        if where in computed:
            self._violate(
                "own_compute_ended",
                f"{self._name}: page {where} given to {_short(key)} while a step uses it",
            )
        if self.engine is not None:
            k = self._placement.blocks_per_page(where[0])
            for order in self.engine.digesting.values():
                if (
                    order.job not in self.passing
                    and order.group == where[0]
                    and where[1] in (order.slots // k)
                ):
                    self._violate(
                        "own_digest_ended",
                        f"{self._name}: page {where} given to {_short(key)} while it is hashed",
                    )
        if self.store is not None:
            k = self._placement.blocks_per_page(where[0])
            for copy in self.store.under_way.values():
                if where[0] in copy.slots and where[1] in (copy.slots[where[0]] // k):
                    self._violate(
                        "own_copy_ended",
                        f"{self._name}: page {where} given to {_short(key)} while it is copied",
                    )

    def _in_steps(self) -> set[Where]:
        """Return the pages that a computation under way uses."""
        return {
            (g, page)
            for batch in (self.engine.computing.values() if self.engine is not None else ())
            for row in batch.rows
            for g, numbers in row.pages.items()
            for page in numbers[self._unread(row, g) :].tolist()
        }

    def _unread(self, row: Row, group: GroupName) -> int:
        """Return how many pages at the front of a row's list lie before everything that it looks
        back on."""
        extent = self._placement.table.group(group).extent
        if not isinstance(extent, Window):
            return 0
        k = self._placement.page_blocks
        first = max(0, row.start - extent.tokens + 1) // (k * self._placement.table.block_tokens)
        return first - row.begins.get(group, 0) // k

    # ---- reads ----------------------------------------------------------------------------------

    def read_began(self, handle: Handle, peer: RankId, ranges: Sequence[Range]) -> None:
        """A read of ours into these ranges is under way."""
        pages = {
            (group, page)
            for group, _, target, nbytes in ranges
            for page in range(
                target // self._page_bytes[group],
                (target + nbytes - 1) // self._page_bytes[group] + 1,
            )
        }
        owners = {frozenset(self._holders.get(where, ())) for where in pages}
        if len(owners) > 1 or any(len(holders) != 1 for holders in owners):
            self._violate(
                "own_pages",
                f"{self._name}: read {handle} goes into pages of {[sorted(h) for h in owners]}",
            )
        owner = next(iter(owners.pop()), None) if owners else None
        self._into[handle] = [
            (group, target, target + nbytes) for group, _, target, nbytes in ranges
        ]
        self._check_alone(handle)
        self._reads[handle] = (owner, pages)
        if owner is not None:
            self._bound(owner, peer, ranges)
            if self.replicas is not None:
                self.replicas.asked(self._placement, owner, peer, ranges)

    def _check_alone(self, handle: Handle) -> None:
        into = self._into[handle]
        for other in self._reads:
            for group, start, end in self._into[other]:
                for g, a, b in into:
                    if g == group and a < end and start < b:
                        self._violate(
                            "one_read",
                            f"{self._name}: read {handle} begins where read {other} may still land",
                        )

    def _bound(self, key: Key, peer: RankId, ranges: Sequence[Range]) -> None:
        size = {group: self._placement.block_bytes(group) for group in {r[0] for r in ranges}}
        blocks = {
            (g, slot)
            for g, _, to, n in ranges
            for slot in range(to // size[g], (to + n - 1) // size[g] + 1)
        }
        times = self._times.setdefault(key, Counter())
        times.update((peer, group, slot) for group, slot in blocks)
        for group in size:
            # a block is read over as many legs
            legs = sum(place.spec.group == group for place in self._placement.places.values())
            if max(times[peer, g, slot] for g, slot in blocks if g == group) > READS * legs:
                self._violate(
                    "bounded_reads",
                    f"{self._name}: a block of {_short(key)} is "
                    f"read more than {READS * legs} times",
                )

    def landing(self, handle: Handle, group: GroupName, start: int, nbytes: int) -> None:
        """Bytes are about to be written."""
        key = self._reads[handle][0] if handle in self._reads else None
        size = self._page_bytes[group]
        for page in range(start // size, (start + nbytes - 1) // size + 1):
            if key is None or self._holders.get((group, page)) != {key}:
                self._violate(
                    "landing",
                    f"{self._name}: read {handle} lands in page {page} of {group}, "
                    "which is not its own any more",
                )
            if key in self._committed:
                self._violate(
                    "landing",
                    f"{self._name}: read {handle} lands in {_short(key)}, which was committed",
                )

    def read_quiet(self, handle: Handle) -> None:
        """The code has been told that nothing more lands."""
        self._reads.pop(handle, None)
        self._into.pop(handle, None)

    def whose(self, handle: Handle) -> str:
        """Return the room that a read under way is for."""
        key = self._reads[handle][0] if handle in self._reads else None
        return _short(key) if key is not None else "nobody"

    @property
    def reads(self) -> int:
        """The number of reads that may still land."""
        return len(self._reads)

    def owned(self) -> list[Where]:
        """Return the pages of rooms that were not dropped."""
        return [where for where, holders in self._holders.items() if holders - self.dropped]

    def used(self) -> list[Where]:
        """Return the pages that were ever given to a room. The state in them may be cached."""
        return list(self._holders)


def _short(key: Key) -> str:
    return f"{key.room[-4:]}.{key.epoch}"
