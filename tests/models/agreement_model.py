"""The agreement inside a worker: the real `Leader` and two real `RankCore`s, with plans and reports
under way.

    leader ──plans, in order──▶ rank 0, rank 1      each queue has its own lag
    leader ◀──report── rank 0, rank 1               at any time, of all that has changed by then

Prefill's part is a script: the offers of each room come once, at any time. Each rank reads its half
of a room's only block. Faults come out of one budget: a read fails or ends unknown, the gateway
aborts a room, a rank does nothing where it was given a plan, a rank crashes. The end is a worker
that holds nothing, or one that has died as it must.

A report arrives when it is made. Nothing is lost by that: what a rank does while its report is
under way it does by older plans, whatever the leader hears, so it may as well do it later; and a
rank that works on a page is seen with the leader as it is then in both orders.

One worker is enough. Nothing that the leader or a rank of a worker decides by agreement looks at
another worker's ranks, so the states of two workers are the pairs of states of one, and an
invariant of each holds in all pairs. What workers do to each other through memory is the
hold-and-wait model's.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from tests.core.build import KV, drawn, key, manifest, settings, ticket
from tests.core.driven import T0, report_of

from baton.core.agreement import Agreement, Report, StepPlan
from baton.core.effects import Effect, Issue
from baton.core.errors import Bug
from baton.core.events import GatewayConnected, MessageReceived, PeerConnected, RankReported
from baton.core.ids import BlockIndex, Boot, Key, Micros, Page, Rank
from baton.core.manifest import Manifest, RankManifest
from baton.core.messages import Abort, BlockRun, HelloBack, Introduce, Offer, Record
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import CancelRead, Compute, Connect, RankEffect, Read
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.pairs import Pairing
from baton.core.scheduler.worker import Worker
from baton.core.statistics import RankTally
from baton.core.work import (
    Batch,
    BatchDone,
    Connected,
    Handle,
    ReadEnded,
    ReadOutcome,
    Released,
    RowDone,
)

from .explore import Step, System
from .objects import COUNTED, Digest, Objects

GATEWAY, PREFILL, DECODE = Boot(1), Boot(2), Boot(3)
NOW = Micros(0)
RANKS = (0, 1)
CRASHED = -1


class State(NamedTuple):
    """Numbers of the leader, the ranks and what is under way; which rooms' offers are still to
    come."""

    leader: int
    ranks: tuple[int, int]
    plans: tuple[tuple[int, ...], tuple[int, ...]]
    offers: tuple[int, ...]
    faults: int
    astray: tuple[int, int] = (0, 0)  # the first plan that a rank did not apply as it was given
    broken: str = ""


DEAD = State(CRASHED, (CRASHED, CRASHED), ((), ()), (), 0)


class RankNode:
    """A rank and what its host has under way for it."""

    def __init__(self, core: RankCore) -> None:
        self.core = core
        self.reads: dict[Handle, tuple[Key, tuple[Page, ...]]] = {}
        self.batch: Batch | None = None
        self.unknown: dict[Handle, tuple[Key, tuple[Page, ...]]] = {}  # ended so: may still land
        self.landed: set[Key] = set()  # what is really there, whatever was said of it

    def perform(self, effects: list[RankEffect]) -> None:
        """Start what the core asks for. A cancelled read still has to end."""
        for effect in effects:
            match effect:
                case Read():
                    of = self.core.fetches._reads[effect.handle].key
                    self.reads[effect.handle] = (
                        of,
                        tuple(Page(int(p)) for p in self.core.pages[of][KV]),
                    )
                case Compute():
                    self.batch = effect.batch
                case Connect():
                    self.core.step(Connected(effect.peer, ""), T0)
                case CancelRead():
                    pass

    def apply(self, plan: StepPlan) -> None:
        """The next plan."""
        self.perform(self.core.step(plan, T0))

    def diverge(self, plan: StepPlan) -> None:
        """Do nothing where a plan says something."""
        self.core.step(StepPlan(plan.seq), T0)

    def ends(self, handle: Handle, outcome: ReadOutcome) -> None:
        """A read ends."""
        of, pages = self.reads.pop(handle)
        if outcome is ReadOutcome.OK:
            self.landed.add(of)
        elif outcome is ReadOutcome.UNKNOWN:
            self.unknown[handle] = of, pages
        self.perform(self.core.step(ReadEnded(handle, outcome, ""), T0))

    def releases(self, handle: Handle) -> None:
        """A read that ended unknown can land nothing more."""
        del self.unknown[handle]
        self.perform(self.core.step(Released(handle), T0))

    def computes(self) -> None:
        """The batch ends; rank 0 samples."""
        assert self.batch is not None
        rows = tuple(
            RowDone(row.key, drawn(7) if self.core.rank == 0 else None, {})
            for row in self.batch.rows
        )
        done, self.batch = BatchDone(self.batch.seq, rows), None
        self.perform(self.core.step(done, T0))

    def touched(self) -> Iterator[tuple[Key, Page]]:
        """Pages that something of this rank is reading into or computing on."""
        for of, pages in (*self.reads.values(), *self.unknown.values()):
            yield from ((of, page) for page in pages)
        for row in self.batch.rows if self.batch is not None else ():
            yield from ((row.key, Page(int(page))) for page in row.pages[KV])


class AgreementModel(System[State]):
    """See the head of this module. `pages` is the pool of the worker; each room needs one."""

    def __init__(
        self,
        *,
        rooms: int,
        pages: int,
        faults: int,
        agreement: type[Agreement] = Agreement,
        worker: type[Worker] = Worker,
        rank: type[RankCore] = RankCore,
    ) -> None:
        self.keys = [key(n) for n in range(1, rooms + 1)]
        self.pages, self.faults = pages, faults
        self.kinds = agreement, worker, rank
        self.leaders: Objects[Leader] = Objects(Digest((*COUNTED, "reads")))
        self.ranks: Objects[RankNode] = Objects(Digest(COUNTED))
        self.plans: Objects[StepPlan] = Objects(Digest())
        self.reports: Objects[Report] = Objects(Digest())

    def start(self) -> State:
        leader, nodes = self._paired()
        for n in range(1, len(self.keys) + 1):
            leader.step(
                MessageReceived(
                    GATEWAY, ticket(n, prefill=PREFILL, decode=DECODE, length=1, max_tokens=2)
                ),
                NOW,
            )
        ranks = self.ranks.number(nodes[0]), self.ranks.number(nodes[1])
        offers = tuple(range(len(self.keys)))
        return State(self.leaders.number(leader), ranks, ((), ()), offers, self.faults)

    def _paired(self) -> tuple[Leader, list[RankNode]]:
        agreement, worker, make_rank = self.kinds
        ours, theirs = (
            _worker("decode", DECODE, tp=2, pages=self.pages),
            _worker("prefill", PREFILL, tp=1, pages=8),
        )
        leader = Leader(ours, settings(), {KV: self.pages})
        leader.worker.__class__ = worker
        leader.worker.agreement = agreement(len(RANKS))
        placements = [ours.placement(r) for r in RANKS]
        cores = [
            make_rank(rank=Rank(r), boot=ours.ranks[r].boot, placements=placements, seal=False)
            for r in RANKS
        ]
        nodes = [RankNode(core) for core in cores]
        leader.step(GatewayConnected(GATEWAY), NOW)
        effects = leader.step(MessageReceived(GATEWAY, Introduce(PREFILL, "", theirs)), NOW)
        (plan,) = [e.plan for e in effects if isinstance(e, Issue)]
        for node in nodes:
            node.apply(plan)
            report = report_of(node.core)
            assert report is not None
            leader.step(RankReported(report), NOW)
        leader.step(PeerConnected(PREFILL), NOW)
        partner = leader.stage(Pairing).partners.find(PREFILL)
        assert partner is not None
        leader.step(MessageReceived(PREFILL, HelloBack(partner.plan.digest)), NOW)
        return leader, nodes

    # ---- what can happen ------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step[State]]:
        if state.leader == CRASHED:
            return
        if CRASHED in state.ranks:
            yield Step(("the worker ends with its rank",), DEAD)
        for room in state.offers:
            rest = state._replace(offers=tuple(r for r in state.offers if r != room))
            yield Step(
                ("the offers of room", room + 1, "come"),
                self._leader(rest, ("offers", room), self._offers(room)),
            )
        for rank in RANKS:
            yield from self._rank_steps(state, rank)
        if state.faults:
            spent = state._replace(faults=state.faults - 1)
            yield from (Step(says, after, True) for says, after, _ in self._all_faults(spent))

    def _rank_steps(self, state: State, rank: int) -> Iterator[Step[State]]:
        if state.ranks[rank] == CRASHED:
            return
        node = self.ranks[state.ranks[rank]]
        if node.core.draft.changed:
            yield self._reports(state, rank)
        if state.plans[rank]:
            yield self._applies(state, rank)
        for handle in node.reads:
            yield self._ends(state, rank, handle, ReadOutcome.OK)
        for handle in node.unknown:
            yield self._releases(state, rank, handle)
        if node.batch is not None:
            after = self._rank(state, rank, ("computes",), RankNode.computes)
            yield Step(("rank", rank, "has computed batch", node.batch.seq), after)

    def _applies(self, state: State, rank: int) -> Step[State]:
        number, *rest = state.plans[rank]
        plan = self.plans[number]
        applied = state._replace(plans=_swap(state.plans, rank, tuple(rest)))
        after = self._rank(applied, rank, ("apply", number), lambda node: node.apply(plan))
        return Step(("rank", rank, "applies", _Short(plan)), after)

    def _ends(self, state: State, rank: int, handle: Handle, outcome: ReadOutcome) -> Step[State]:
        after = self._rank(
            state, rank, ("ends", handle, outcome), lambda n: n.ends(handle, outcome)
        )
        of, _ = self.ranks[state.ranks[rank]].reads[handle]
        return Step(
            ("rank", rank, "ends its read for room", int(of.room, 16), outcome.value), after
        )

    def _releases(self, state: State, rank: int, handle: Handle) -> Step[State]:
        after = self._rank(state, rank, ("releases", handle), lambda node: node.releases(handle))
        return Step(("rank", rank, "knows that nothing more lands of read", handle), after)

    def _reports(self, state: State, rank: int) -> Step[State]:
        def take(node: RankNode) -> int:
            report = report_of(node.core)
            assert report is not None
            return self.reports.number(
                msgspec.structs.replace(report, reads=0, counted=RankTally())
            )

        number, said = self.ranks.act(state.ranks[rank], ("report",), take)
        told, report = state._replace(ranks=_swap(state.ranks, rank, number)), self.reports[said]
        after = self._leader(
            told, ("hears", said), lambda leader: leader.step(RankReported(report), NOW)
        )
        if after.leader != CRASHED and 0 < state.astray[rank] <= report.applied:
            after = after._replace(broken=f"rank {rank} has diverged, and its report was believed")
        return Step(("rank", rank, "reports", _Short(report)), after)

    def _all_faults(self, state: State) -> Iterator[Step[State]]:
        yield from (self._aborts(state, of) for of in self.leaders[state.leader].worker.rooms)
        for rank in RANKS:
            if state.ranks[rank] == CRASHED:
                continue
            yield Step(
                ("rank", rank, "crashes"), state._replace(ranks=_swap(state.ranks, rank, CRASHED))
            )
            for handle in self.ranks[state.ranks[rank]].reads:
                yield self._ends(state, rank, handle, ReadOutcome.FAILED)
                yield self._ends(state, rank, handle, ReadOutcome.UNKNOWN)
            if state.plans[rank]:
                yield self._diverges(state, rank)

    def _aborts(self, state: State, of: Key) -> Step[State]:
        after = self._leader(
            state,
            ("abort", of),
            lambda leader: leader.step(MessageReceived(GATEWAY, Abort(of, "")), NOW),
        )
        return Step(("room", int(of.room, 16), "is aborted"), after)

    def _diverges(self, state: State, rank: int) -> Step[State]:
        number, *rest = state.plans[rank]
        plan = self.plans[number]
        seq = state.astray[rank] or plan.seq
        skipped = state._replace(
            plans=_swap(state.plans, rank, tuple(rest)), astray=_swap(state.astray, rank, seq)
        )
        after = self._rank(skipped, rank, ("diverge", number), lambda node: node.diverge(plan))
        return Step(("rank", rank, "does nothing for", _Short(plan)), after)

    # ---- what it leads to -----------------------------------------------------------------------

    def _offers(self, room: int) -> Callable[[Leader], Sequence[Effect]]:
        runs = {KV: BlockRun(BlockIndex(0), BlockIndex(1), (Page(room),))}
        first, last = (
            Offer(self.keys[room], 0, {}, (), None),
            Offer(self.keys[room], 1, runs, (), Record(1, drawn(5), None)),
        )

        def come(leader: Leader) -> Sequence[Effect]:
            said = (MessageReceived(PREFILL, first), MessageReceived(PREFILL, last))
            return [effect for event in said for effect in leader.step(event, NOW)]

        return come

    def _rank(
        self, state: State, rank: int, what: tuple[object, ...], do: Callable[[RankNode], None]
    ) -> State:
        def run(node: RankNode) -> str:
            try:
                do(node)
            except (Bug, KeyError) as error:
                return repr(error)
            return ""

        number, error = self.ranks.act(state.ranks[rank], what, run)
        if error and not state.astray[rank]:
            return state._replace(broken=f"rank {rank}: {error}")
        # it left the others earlier, and ends at a plan that it cannot follow
        number = CRASHED if error else number
        return state._replace(ranks=_swap(state.ranks, rank, number))

    def _leader(
        self, state: State, what: tuple[object, ...], do: Callable[[Leader], Sequence[Effect]]
    ) -> State:
        def run(leader: Leader) -> tuple[tuple[int, ...], str]:
            try:
                effects = do(leader)
                leader.worker.ledger.audit()
            except Bug as bug:
                return (), str(bug)
            return tuple(self.plans.number(e.plan) for e in effects if isinstance(e, Issue)), ""

        number, (plans, bug) = self.leaders.act(state.leader, what, run)
        if "diverged" in bug and any(state.astray):
            return DEAD
        queues = tuple((*queue, *plans) for queue in state.plans)
        broken = bug or next(
            (why for p in plans if (why := self._early_commit(self.plans[p], state))), ""
        )
        return state._replace(leader=number, plans=(queues[0], queues[1]), broken=broken)

    def _early_commit(self, plan: StepPlan, state: State) -> str:
        for of in plan.commit:
            for rank, number in enumerate(state.ranks):
                if number != CRASHED and of not in self.ranks[number].landed:
                    return (
                        f"room {int(of.room, 16)} is committed, and nothing of it has "
                        f"arrived on rank {rank}"
                    )
        return ""

    # ---- what is asked of it --------------------------------------------------------------------

    def wrong(self, state: State) -> str:
        """A page on which a rank works belongs to the room for which it does."""
        if state.broken or state.leader == CRASHED:
            return state.broken
        pool = self.leaders[state.leader].worker.ledger.pools[KV]
        for rank, number in enumerate(state.ranks):
            for of, page in self.ranks[number].touched() if number != CRASHED else ():
                if pool.owner(page) != of:
                    return (
                        f"rank {rank} works for room {int(of.room, 16)} on page {page}, "
                        f"whose owner is {pool.owner(page)}"
                    )
        return ""

    def done(self, state: State) -> bool:
        if state.leader == CRASHED:
            return True
        leader = self.leaders[state.leader]
        under_way = state.offers or any(state.plans) or CRASHED in state.ranks
        return (
            not under_way
            and not leader.worker.rooms
            and leader.worker.ledger.clean
            and not any(any(self.ranks[r].touched()) for r in state.ranks)
        )


class _Short:
    """A plan or a report in few words, spelled out only when a story is told."""

    def __init__(self, value: StepPlan | Report) -> None:
        self.value = value

    def __str__(self) -> str:
        fields = {
            f: v
            for f in self.value.__struct_fields__
            if (v := getattr(self.value, f)) not in ((), None, 0)
        }
        names = {f: [_name(i) for i in v] for f, v in fields.items() if isinstance(v, tuple)}
        number = getattr(self.value, "seq", None)
        head = (
            f"plan {number}" if number is not None else f"plan {fields.get('applied', 0)} applied"
        )
        return " ".join([head, *(f"{f}={', '.join(n)}" for f, n in names.items())])


def _name(item: Any) -> str:
    vote = getattr(item, "vote", None)
    of = item if isinstance(item, Key) else getattr(item, "key", None)
    return (
        f"{item.order}:{vote.name}"
        if vote is not None
        else f"room {int(of.room, 16)}"
        if of is not None
        else str(item)
    )


def _worker(role: str, boot: Boot, *, tp: int, pages: int) -> Manifest:
    one = manifest(role, boot, pages=pages)
    ranks = tuple(
        RankManifest(Boot(boot + 10 * r), r, r, 0, one.ranks[0].pools, {"shm": b""})
        for r in range(tp)
    )
    return msgspec.structs.replace(one, tp=tp, ranks=ranks, seal=False)


def _swap(pair: tuple[Any, Any], side: int, value: object) -> tuple[Any, Any]:
    return (value, pair[1]) if side == 0 else (pair[0], value)
