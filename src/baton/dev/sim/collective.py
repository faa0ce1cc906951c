"""The ranks of one incarnation of a simulated worker compute together: when their steps run, and
what every position holds afterwards.

prefill   position ◀─ computed here for a room (author) | fetched back, or from a checkpoint (brought: as it was there)
decode    position ◀─ cached here (inherited) | handed over by prefill, or computed here for a room (stamps) | generated here
unified   position ◀─ computed here for a room (author)
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from baton.core.agreement import Resume
from baton.core.ids import Boot, GroupName, Key, Rank, Seq, TokenId
from baton.core.memory.state import Full, Placement, Unit
from baton.core.messages import BlockRun, Ticket
from baton.core.work import Batch, Row
from baton.dev.sim import content
from baton.dev.sim.costs import Costs
from baton.dev.sim.heap import Heap
from baton.dev.sim.loans import Lent, Loans
from baton.dev.sim.resumes import Resumes
from baton.dev.sim.tape import Tape
from baton.dev.sim.work import Work

if TYPE_CHECKING:
    from baton.dev.sim.engine import SimEngine

Place = tuple[GroupName, int]  # a block of a pool


class CollectiveWorld(Protocol):
    """What the ranks of a worker need to know of their world."""

    heap: Heap
    tape: Tape
    attempts_differ: bool
    tickets: Mapping[Key, Ticket]
    # stamps of the positions of a room that a prefill worker has
    stamps: dict[tuple[Boot, Key], list[int]]
    # the same in groups that do not last, where these are others
    beside: dict[tuple[Boot, Key], list[int]]
    tainted: set[Key]  # rooms computed from damaged memory, and sealed as they are
    loans: Loans
    costs: Costs
    work: Work

    @property
    def hostile(self) -> bool:
        """Whether faults happen now."""
        ...

    def violate(self, invariant: str, detail: str) -> None:
        """Stop the run."""
        ...


class Collective:
    """The ranks of one incarnation of a worker. They compute together or not at all."""

    def __init__(self, world: CollectiveWorld, boot: Boot, role: str, ranks: int) -> None:
        self.world, self.boot, self.role, self.ranks = world, boot, role, ranks
        self.engines: dict[Rank, SimEngine] = {}
        self.said: dict[Key, list[TokenId]] = {}  # tokens computed beyond the ticket's context
        self._waiting: dict[Seq, dict[Rank, Batch]] = {}
        self._runs_at = 0  # when the youngest batch runs; the next one needs a free stage
        self._ends_at: dict[Rank, int] = {}
        self.stamps: dict[Key, list[int]] = {}  # stamps of the positions known so far
        self.histories: dict[Key, list[int]] = {}
        self.settled: dict[Key, int] = {}  # positions up to the last one that is no wrong draft
        # of rooms that go on from a checkpoint: its stamps in groups that do not last
        self._beside: dict[Key, tuple[int, ...]] = {}
        # blocks of the pools, and for whom they were computed or fetched back
        self.authors: dict[Place, Key] = {}
        self.brought: dict[Place, tuple[int, ...]] = {}  # stamps of blocks that were fetched back
        # on decode: stamps of what was cached when a room came
        self.inherited: dict[Key, list[int]] = {}
        self.resumes = Resumes(world.tickets, world.tainted, world.violate)
        self.raises: Callable[[Row], str] = lambda row: ""  # why drawing a row's token raises
        # whether one of these rows kills the worker that computes it
        self.strikes: Callable[[Sequence[Row]], bool] = lambda rows: False

    def submit(self, rank: Rank, batch: Batch) -> None:
        """A rank has begun a batch. It runs when all ranks have begun it."""
        waiting = self._waiting.setdefault(batch.seq, {})
        waiting[rank] = batch
        if len(waiting) < self.ranks:
            return
        del self._waiting[batch.seq]
        first, *others = (
            [(r.key, r.start, r.tokens, r.valid, r.draws) for r in b.rows] for b in waiting.values()
        )
        if any(rows != first for rows in others):
            self.world.violate(
                "equal_plans", f"ranks of {self.boot:x} compute different rows in step {batch.seq}"
            )
        cost = self.world.costs.step(
            rows=len(batch.rows), tokens=sum(len(r.tokens) for r in batch.rows)
        )
        cost *= max(engine.process.slowness for engine in self.engines.values())
        if self.world.hostile:
            cost += self.world.tape.below(20, "slow step") * 300
        stages = self.placement.pp
        self._runs_at = max(self.world.heap.now + cost, self._runs_at + cost // stages)
        self.world.heap.at(self._runs_at, self._run, waiting)

    def _run(self, batches: Mapping[Rank, Batch]) -> None:
        if not all(e.process.alive for e in self.engines.values()):
            return  # a collective without one of its ranks hangs until the worker is ended
        if self.strikes(next(iter(batches.values())).rows):
            self.engines[Rank(0)].process.die("killed by a request")
            return
        for row in next(iter(batches.values())).rows:
            self._extend(row)
        for rank, batch in batches.items():
            lag = self.world.tape.below(8, "rank lag") * 100 if self.world.hostile else 0
            at = self._ends_at[rank] = max(
                self.world.heap.now + lag, self._ends_at.get(rank, 0) + 1
            )
            self.world.heap.at(at, self.engines[rank].finish, batch, rank == self._sampler())

    def _sampler(self) -> Rank:
        """Return the rank that draws: the first one of the last pipeline stage."""
        placement = self.placement
        return Rank((placement.pp - 1) * placement.tp)

    def _extend(self, row: Row) -> None:
        """Add the stamps of all positions up to the row's end. Its context is that of the ticket,
        followed by the tokens that this worker was given."""
        ticket = self.world.tickets[row.key]
        known = (*ticket.prompt, *ticket.said)
        self.world.work.computed(ticket, row.start, len(row.tokens))
        tokens = self.said.setdefault(row.key, list(known))
        histories, stamps = (
            self.histories.setdefault(row.key, []),
            self.stamps.setdefault(row.key, []),
        )
        del tokens[row.start :], histories[row.start :], stamps[row.start :]
        tokens += row.tokens
        content.add_histories(histories, tokens[len(histories) :])
        if not stamps:
            stamps += self._computed_before(row, histories, len(known))
        ours = self._attempt(row.key)
        stamps += [content.scramble(h ^ ours) | 1 for h in histories[len(stamps) :]]
        if self.role != "decode" or self._is_local(row.key):
            self.world.stamps[self.boot, row.key] = stamps
            if row.key in self._beside:
                self.world.beside[self.boot, row.key] = self.beside(row.key)
        if self.role != "decode":
            for group in self._whole:
                for block in range(row.start // self._b, (len(stamps) - 1) // self._b + 1):
                    place = self._place(row, block, group)
                    self.authors[place] = row.key
                    self.brought.pop(place, None)
                    if block * self._b < self._resumed_to(row.key):  # only its end is new
                        at = slice(block * self._b, (block + 1) * self._b)
                        self.brought[place] = tuple(stamps[at])

    def _computed_before(self, row: Row, histories: list[int], known: int) -> list[int]:
        """Return the stamps of the positions at the front that this room does not compute here: on
        decode those that prefill had; of a checkpoint; on decode what was cached; on other workers
        those of pages that were computed for other rooms."""
        if self.role == "decode" and not self._is_local(row.key):
            return self.begun(row.key)[:known]
        if (kept := self.resumes.of(row.key)) is not None:
            if row.start != len(kept.stamps):
                self.world.violate(
                    "nothing_skipped",
                    f"{_short(row.key)} begins at position {row.start}; "
                    f"{len(kept.stamps)} come from a checkpoint",
                )
            self._beside[row.key] = kept.beside
            return list(kept.stamps)
        if self.role == "decode":
            cached = self.inherited.get(row.key, [])
            if len(cached) < row.start:
                self.world.violate(
                    "nothing_skipped",
                    f"{_short(row.key)} begins at position {row.start}; {len(cached)} are cached",
                )
            return cached[: row.start]
        lent = self.world.loans.lent.get(row.key)
        if lent is not None and row.start and lent.length == row.start:
            return self._computed_there(row, lent, histories)
        places = [
            self._place(row, block, self._whole[0]) for block in range(-(-row.start // self._b))
        ]
        if any(place not in self.authors for place in places):
            self.world.violate(
                "nothing_skipped",
                f"{_short(row.key)} begins at position {row.start}, and "
                "not all before it was computed",
            )
        return [
            self.stamp_at(places[p // self._b], p % self._b, h)
            for p, h in enumerate(histories[: row.start])
        ]

    def _computed_there(self, row: Row, lent: Lent, histories: list[int]) -> list[int]:
        """A room goes on from a checkpoint of decode's: return the stamps of what it had cached
        here, and then of what was lent."""
        if lent.tainted:
            self.world.tainted.add(row.key)
        self._beside[row.key] = lent.beside
        found = []
        for position in range(row.start):
            block, offset = divmod(position, self._b)
            place = self._place(row, block, self._whole[0])
            if place in self.authors:
                found.append(self.stamp_at(place, offset, histories[position]))
            else:
                found.append(lent.blocks[block][offset])
        return found

    def given(self, group: GroupName, blocks: range) -> None:
        """A page begins a new life: forget what its blocks held."""
        for block in blocks:
            self.authors.pop((group, block), None)
            self.brought.pop((group, block), None)

    def resumed(self, order: Resume, places: Mapping[GroupName, Sequence[int]]) -> None:
        """A room is to go on from a checkpoint.

        places: where its blocks from the first one lie, of each group of whole sequences
        """
        kept, b = self.resumes.begins(order), self._b
        if self.role == "decode":
            return  # what is cached there is kept in its own book
        for group in self._whole:
            for block in range(order.length // b):
                place = group, places[group][block]
                if place not in self.authors:
                    self.authors[place] = kept.author
                    self.brought[place] = kept.stamps[block * b : (block + 1) * b]

    def _is_local(self, key: Key) -> bool:
        """Whether one worker computes a room's prompt and generates its answer."""
        ticket = self.world.tickets[key]
        return ticket.prefill == ticket.decode

    def _resumed_to(self, key: Key) -> int:
        return len(self._beside.get(key, ()))

    def offered(self, key: Key, runs: Mapping[GroupName, BlockRun]) -> None:
        """A prefill leader offers blocks of a room. Blocks that were not computed here must have
        been fetched back."""
        lent = self.world.loans.lent.get(key)
        checkpoint = lent is not None and lent.length > 0
        if checkpoint or all(g.name in runs for g in self.placement.table.groups if not g.optional):
            for group in [group for group in self._whole if group in runs]:
                self._computed(key, group, runs[group])

    def _computed(self, key: Key, group: GroupName, run: BlockRun) -> None:
        k, lent = self.placement.blocks_per_page(group), self.world.loans.lent.get(key)
        for block in range(run.start, run.end):
            place = group, int(run.pages[block // k - run.start // k]) * k + block % k
            if place in self.authors:
                continue
            if lent is None or block not in lent.blocks:
                self.world.violate(
                    "nothing_skipped",
                    f"block {block} of {_short(key)} is offered, and nobody has computed it",
                )
                continue
            self.authors[place], self.brought[place] = key, lent.blocks[block]
            if lent.tainted:
                self.world.tainted.add(key)

    def begun(self, key: Key) -> list[int]:
        """Return the stamps of a ticket's context on decode: first what was cached here when the
        room came, then what prefill had."""
        cached, theirs = (
            self.inherited.get(key, []),
            self.world.stamps.get((self.world.tickets[key].prefill, key), []),
        )
        return cached + theirs[len(cached) :]

    def of_group(self, key: Key, group: GroupName, stamps: list[int]) -> list[int]:
        """Return the stamps of a room in a group, given those in groups that last. State that does
        not last was handed over though what lasts was cached; or it came with a checkpoint, beside
        what was cached."""
        if group in self._whole:
            return stamps
        if self.role != "decode" or self._is_local(key):
            begun = self._beside.get(key, ())
            return [*begun, *stamps[len(begun) :]]
        at = self.world.tickets[key].prefill, key
        theirs = self.world.beside.get(at) or self.world.stamps.get(at, [])
        cached = len(theirs) if at in self.world.beside else len(self.inherited.get(key, ()))
        return theirs[:cached] + stamps[cached:]

    def beside(self, key: Key) -> list[int]:
        """Return the stamps of what is computed of a room in groups that do not last."""
        stamps = self.stamps.get(key, [])
        groups = [g.name for g in self.placement.table.groups if g.name not in self._whole]
        return self.of_group(key, groups[0], stamps) if groups else stamps

    def known(self, key: Key) -> list[int]:
        """Return the stamps of all positions that decode has of a room."""
        return self.stamps.get(key) or self.begun(key)

    def differs(self, group: GroupName, page: int, stamps: Sequence[int]) -> list[str]:
        """Return the ranks on which a page of complete blocks does not hold what these stamps
        say."""
        return [
            e.process.name for e in self.engines.values() if e.page_differs(group, page, stamps)
        ]

    def flipped(self, pages: Mapping[GroupName, int]) -> int | None:
        """Return since when one of these pages is not what it was, on any rank; None if all are."""
        found = [
            since
            for e in self.engines.values()
            for g, p in pages.items()
            if (since := e.flipped(g, p)) is not None
        ]
        return min(found, default=None)

    def stamp_at(self, place: Place, offset: int, history: int) -> int:
        """Return the stamp of a position in a block that this worker computed or fetched back."""
        return (
            self.brought[place][offset]
            if place in self.brought
            else self.stamp(history, self.authors[place])
        )

    def stamp(self, history: int, author: Key) -> int:
        """Return the stamp of a position that was computed here for `author`."""
        return content.scramble(history ^ self._attempt(author)) | 1

    def _attempt(self, author: Key) -> int:
        return content.attempt(self.boot, author.epoch) if self.world.attempts_differ else 0

    @cached_property
    def placement(self) -> Placement:
        """The placement of one of the ranks."""
        return next(iter(self.engines.values())).placement

    @cached_property
    def _b(self) -> int:
        return self.placement.table.block_tokens

    @cached_property
    def _whole(self) -> tuple[GroupName, ...]:
        """The groups of pages of the whole sequence. There is at least one."""
        return tuple(
            g.name
            for g in self.placement.table.groups
            if g.unit is Unit.PAGE and isinstance(g.extent, Full)
        )

    def _place(self, row: Row, block: int, group: GroupName) -> Place:
        """Return where a block of the row lies in the pool of a group of `_whole`."""
        k = self.placement.blocks_per_page(group)
        return group, int(row.pages[group][block // k]) * k + block % k


def _short(key: Key) -> str:
    return f"{key.room[-4:]}.{key.epoch}"
