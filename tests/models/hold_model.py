"""Who may wait for whom: real prefill and decode leaders with tiny pools, message by message.

    gateway ──Ticket, Abort──▶ prefill 0, prefill 1 ◀──Offer, Admitted, ...──▶ decode 0, decode 1     one queue per direction

Every request is bound to one prefill and one decode worker; its tickets are under way from the
start, behind those of earlier requests of its gateway. A worker is its real leader and a stand-in
for its rank, which applies plans at once, ends reads, batches and drops at any later time, and
never fails. The gateways are one stand-in: it hears at once, says with delay, opens the next epoch
where `Front` would, on any worker that lives, and gives a request up when its epochs are spent.
Time stands still: no deadline helps anybody.

Faults are aborts by clients and crashes of workers; a crash takes what the worker has said or
leaves it. A page holds one token, so a room grows with every token that it generates.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.core.build import GREEDY, KV, drawn, manifest, settings

from baton.core.agreement import Ballot, ConnectResult, Report, RowResult, StepResult, Vote
from baton.core.effects import Effect, Issue, Send
from baton.core.errors import Bug
from baton.core.events import LeaderEvent, MessageReceived, PeerConnected, PeerLost, RankReported
from baton.core.ids import Boot, Epoch, Key, Micros, Rank, Room, Stamp, TokenId
from baton.core.manifest import Manifest
from baton.core.messages import (
    Abort,
    Admitted,
    AnyMessage,
    Failed,
    FirstToken,
    Hello,
    Introduce,
    Limits,
    Recompute,
    Ticket,
    Tokens,
    Withdrawn,
)
from baton.core.messages import Ended as MessageEnded
from baton.core.scheduler import roles
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import RoomState
from baton.core.scheduler.stage import Stage

from .explore import Step, System
from .objects import COUNTED, Digest, Objects

GATEWAY = Boot(1)
PREFILL, DECODE = (Boot(10), Boot(11)), (Boot(20), Boot(21))
NOW = Micros(0)
ONE_TOKEN = msgspec.structs.replace(manifest("prefill", 0).table, block_tokens=1)
DEAD = -1
TOKEN = 7


class Lost(msgspec.Struct, frozen=True):
    """What a session says last when its peer is gone."""

    boot: Boot


class Ask(NamedTuple):
    """One request: its workers, the tokens of its prompt, how many it generates, its age and its
    gateway."""

    prefill: int
    decode: int
    prompt: int = 2
    tokens: int = 2
    stamp: int = 1
    gateway: int = 0


class Standing(NamedTuple):
    """A request as the gateway sees it. All but `said`, `over` and `spent` is of its current
    epoch."""

    prefill: Boot
    decode: Boot
    epoch: int = 1
    said: int = 0
    admitted: bool = False
    first: bool = False
    streaming: bool = False
    ended: tuple[Boot, ...] = ()
    over: bool = False
    spent: bool = False  # given up for want of epochs


class State(NamedTuple):
    """Numbers of the workers, what is under way from whom to whom, requests, and the faults
    left."""

    workers: tuple[int, ...]
    queues: tuple[tuple[int, ...], ...]
    requests: tuple[Standing, ...]
    aborts: int
    crashes: int
    broken: str = ""


class Worker:
    """A leader, and what its rank has still to say."""

    def __init__(self, leader: Leader) -> None:
        self.leader = leader
        self.fetching: dict[int, Key] = {}
        # of the batch under way: rooms, and how many blocks it seals
        self.rows: tuple[tuple[Key, int], ...] = ()
        self.dropped: list[Key] = []
        self.effects: list[Effect] = []

    def step(self, event: LeaderEvent) -> None:
        """The leader takes an event; what comes of it is done by `settle`."""
        self.effects += self.leader.step(event, NOW)

    @property
    def commits(self) -> bool:
        """Whether it matters that the rank has applied all plans."""
        rooms = self.leader.worker.rooms.in_state(RoomState.COMMITTING)
        return any(not self.leader.worker.agreement.all_applied(r.committed_at) for r in rooms)

    def report(
        self,
        *,
        ballots: tuple[Ballot, ...] = (),
        quiet: tuple[Key, ...] = (),
        rows: tuple[RowResult, ...] = (),
    ) -> None:
        """The rank says something, and that it has applied everything."""
        chain, boot = self.leader.worker.agreement.chain, self.leader.worker.manifest.boot
        steps = (
            tuple(StepResult(seq, rows) for seq in self.leader.worker.batches._flight)
            if rows
            else ()
        )
        self.step(
            RankReported(
                Report(Rank(0), boot, chain.seq, chain.value, ballots, quiet, steps, (), (), 0)
            )
        )

    def computes(self) -> None:
        """The batch has ended."""
        rows, self.rows = self.rows, ()
        units = len(self.leader.worker.manifest.placement(0).units(KV))
        self.report(
            rows=tuple(
                RowResult(of, drawn(TOKEN), {KV: bytes(8 * units * sealed)}) for of, sealed in rows
            )
        )

    def arrives(self, order: int) -> None:
        """A fetch order is read and verified."""
        del self.fetching[order]
        self.report(ballots=(Ballot(order, Vote.ARRIVED, "", ()),))

    def quiets(self, of: Key) -> None:
        """Nothing touches the room's pages."""
        self.dropped.remove(of)
        self.report(quiet=(of,))

    def settle(self, *, swift: bool) -> list[Send]:
        """Apply the plans of the turn; what is to be said to others. A swift rank ends at once what
        holds nobody up."""
        sends = self._drain()
        while swift and self._hurries():
            sends += self._drain()
        return sends

    def _hurries(self) -> bool:
        if self.rows and self.leader.worker.manifest.role == "prefill":
            self.computes()
        elif self.fetching:
            self.arrives(next(iter(self.fetching)))
        elif self.commits:
            self.report()
        else:
            return False
        return True

    def _drain(self) -> list[Send]:
        self.leader.worker.ledger.audit()
        effects, self.effects = self.effects, []
        for plan in [e.plan for e in effects if isinstance(e, Issue)]:
            self.dropped += plan.drop
            self.fetching = {n: k for n, k in self.fetching.items() if k not in plan.drop}
            self.fetching |= {f.order: f.key for f in plan.fetch if f.key not in plan.drop}
            sealed = [
                past - first for first, past in (row.final.get(KV, (0, 0)) for row in plan.batch)
            ]
            self.rows = (
                tuple(zip((row.key for row in plan.batch), sealed, strict=True)) or self.rows
            )
        return [e for e in effects if isinstance(e, Send)]


# Numbers of plans and of orders grow for ever; what they tell apart is told apart without them.
NUMBERED = (
    "chain",
    "_chains",
    "_applied",
    "_dropped_at",
    "committed_at",
    "_flight",
    "_results",
    "_next_order",
)
FORGET = (*NUMBERED, *COUNTED, "reads", "_handlers", "manifest")


class WorkerDigest(Digest):
    """Plans are numbered and chained; what matters of that here is only which batches are under
    way, in which order, and whether the rank has applied a commit."""

    def __init__(self) -> None:
        super().__init__(FORGET)

    def __call__(self, value: Any) -> Hashable:
        found = super().__call__(value)
        if not isinstance(value, Worker):
            return found
        return found, value.commits, self(list(value.leader.worker.batches._flight.values()))


class HoldModel(System[State]):
    """See the head of this module."""

    def __init__(
        self,
        asks: Sequence[Ask],
        *,
        pages: tuple[int, int],
        aborts: int = 0,
        crashes: int = 0,
        epochs: int = 2,
        swift: bool = False,
        # stages of the roles, by the name of the one that it replaces
        planted: Mapping[str, type[Stage[Any]]] | None = None,
    ) -> None:
        self.asks, self.pages, self.aborts, self.crashes, self.epochs = (
            tuple(asks),
            pages,
            aborts,
            crashes,
            epochs,
        )
        # prompts, reads and commits end at once; the batches of decode and drops take their time
        self.swift = swift
        self.planted = planted or {}
        self.workers: Objects[Worker] = Objects(WorkerDigest())
        self.messages: Objects[Any] = Objects(Digest())
        self.boots = (*PREFILL, *DECODE)
        pairs = [(p, d) for p in PREFILL for d in DECODE]
        gateways = [(g, boot) for g in sorted({_gateway(a) for a in asks}) for boot in self.boots]
        self.ways = [*gateways, *pairs, *((d, p) for p, d in pairs)]
        self.way = {way: at for at, way in enumerate(self.ways)}
        self._waits: dict[int, tuple[frozenset[Key], frozenset[Key]]] = {}

    def start(self) -> State:
        workers = tuple(self.workers.number(worker) for worker in self._paired())
        requests = tuple(Standing(PREFILL[a.prefill], DECODE[a.decode]) for a in self.asks)
        state = State(workers, ((),) * len(self.ways), requests, self.aborts, self.crashes)
        for n in range(len(requests)):
            state = self._tickets(state, n)
        return state

    def _paired(self) -> list[Worker]:
        with pytest.MonkeyPatch.context() as patch:
            for name, stage in self.planted.items():
                patch.setattr(roles, name, stage)
            return self._paired_now()

    def _paired_now(self) -> list[Worker]:
        sources = {b: _manifest("prefill", b, self.pages[0]) for b in PREFILL}
        prefills = {b: Leader(m, settings(), {KV: self.pages[0]}) for b, m in sources.items()}
        decodes = {}
        for boot in DECODE:
            ours = _manifest("decode", boot, self.pages[1])
            leader = decodes[boot] = Leader(ours, settings(), {KV: self.pages[1]})
            for source, theirs in sources.items():
                # who orders must be one; what it would be told is not modelled
                leader.worker.gateways.add(GATEWAY)
                leader.step(MessageReceived(GATEWAY, Introduce(source, "", theirs)), NOW)
                leader.worker.gateways.clear()
                chain = leader.worker.agreement.chain
                met = (ConnectResult(source, ""),)
                leader.step(
                    RankReported(
                        Report(Rank(0), boot, chain.seq, chain.value, (), (), (), met, (), 0)
                    ),
                    NOW,
                )
                asks = leader.step(PeerConnected(source), NOW)
                (hello,) = [
                    e.message for e in asks if isinstance(e, Send) and isinstance(e.message, Hello)
                ]
                answers = prefills[source].step(MessageReceived(boot, hello), NOW)
                (back,) = [e.message for e in answers if isinstance(e, Send)]
                leader.step(MessageReceived(source, back), NOW)
        leaders: list[Leader] = [*prefills.values(), *decodes.values()]
        return [Worker(leader) for leader in leaders]

    # ---- what can happen ------------------------------------------------------------------------

    def steps(self, state: State) -> Iterator[Step[State]]:
        for way, queue in enumerate(state.queues):
            if queue:
                yield self._hears(state, way)
        for at, number in enumerate(state.workers):
            if number != DEAD:
                yield from self._reports(state, at, self.workers[number])
                if state.crashes:
                    yield from self._crashes(state._replace(crashes=state.crashes - 1), at)
        if state.aborts:
            for n, request in enumerate(state.requests):
                if not request.over:
                    after = self._stop(
                        state._replace(aborts=state.aborts - 1), n, request._replace(over=True)
                    )
                    yield Step(("the client of request", n + 1, "is gone"), after, True)

    def _hears(self, state: State, way: int) -> Step[State]:
        source, target = self.ways[way]
        number, *rest = state.queues[way]
        message = self.messages[number]
        queues = (*state.queues[:way], tuple(rest), *state.queues[way + 1 :])

        def hear(worker: Worker) -> None:
            if isinstance(message, Lost):
                worker.step(PeerLost(message.boot, "dead"))
            else:
                worker.step(MessageReceived(source, message))

        at = self.boots.index(target)
        return self._act(
            state._replace(queues=queues),
            at,
            ("hears", source, number),
            hear,
            ("hears", _Short(message)),
        )

    def _reports(self, state: State, at: int, worker: Worker) -> Iterator[Step[State]]:
        if worker.rows:
            rooms = " ".join(_room(of) for of, _ in worker.rows)
            yield self._act(state, at, ("computes",), Worker.computes, ("has computed for", rooms))
        for order, of in worker.fetching.items():
            yield self._arrives(state, at, order, of)
        for of in worker.dropped:
            yield self._quiets(state, at, of)
        if worker.commits:
            yield self._act(state, at, ("applied",), Worker.report, ("has applied its plans",))

    def _arrives(self, state: State, at: int, order: int, of: Key) -> Step[State]:
        return self._act(
            state,
            at,
            ("arrives", order),
            lambda w: w.arrives(order),
            ("has all blocks of", _room(of)),
        )

    def _quiets(self, state: State, at: int, of: Key) -> Step[State]:
        return self._act(
            state, at, ("quiet", of), lambda w: w.quiets(of), ("is quiet on", _room(of))
        )

    def _crashes(self, state: State, at: int) -> Iterator[Step[State]]:
        boot, lost = self.boots[at], self.messages.number(Lost(self.boots[at]))
        dead = state._replace(workers=(*state.workers[:at], DEAD, *state.workers[at + 1 :]))
        for keeps in (True, False):
            queues = []
            for (source, target), queue in zip(self.ways, state.queues, strict=True):
                alive = dead.workers[self.boots.index(target)] != DEAD
                said = (*(queue if keeps else ()), lost) if source == boot else queue
                queues.append(said if alive else ())
            after = dead._replace(queues=tuple(queues))
            for n, request in enumerate(state.requests):
                if not request.over and boot in (request.prefill, request.decode):
                    after = self._lost(after, n, boot)
            yield Step(
                (
                    f"worker {boot} crashes;",
                    "what it said arrives" if keeps else "what it said is lost",
                ),
                after,
                True,
            )

    def _act(
        self,
        state: State,
        at: int,
        what: tuple[object, ...],
        do: Callable[[Worker], None],
        says: tuple[object, ...],
    ) -> Step[State]:
        def run(worker: Worker) -> tuple[tuple[tuple[Boot, int], ...], str]:
            try:
                do(worker)
                return tuple(
                    (s.to, self.messages.number(s.message)) for s in worker.settle(swift=self.swift)
                ), ""
            except Bug as bug:
                return (), str(bug)

        number, (sends, broken) = self.workers.act(state.workers[at], what, run)
        state = state._replace(
            workers=(*state.workers[:at], number, *state.workers[at + 1 :]), broken=broken
        )
        spent = sum(r.spent for r in state.requests)
        for to, message in sends:
            if to not in self.boots:
                state = self._gateway(state, self.boots[at], self.messages[message])
            else:
                state = self._say(state, self.boots[at], to, message)
        gave_up = sum(r.spent for r in state.requests) > spent
        return Step((f"worker {self.boots[at]}", *says), state, gave_up)

    def _say(self, state: State, source: Boot, target: Boot, message: int) -> State:
        if state.workers[self.boots.index(target)] == DEAD:
            return state
        way = self.way[source, target]
        return state._replace(
            queues=(*state.queues[:way], (*state.queues[way], message), *state.queues[way + 1 :])
        )

    # ---- the gateway ----------------------------------------------------------------------------

    def _gateway(self, state: State, sender: Boot, message: AnyMessage) -> State:
        """As `Front` does, in short."""
        of = getattr(message, "key", None)
        n = int(of.room, 16) - 1 if of is not None else 0
        request = state.requests[n]
        if of is None or of.epoch != request.epoch:
            return state
        if isinstance(message, MessageEnded):
            return self._put(
                state, n, request._replace(ended=tuple(sorted({*request.ended, sender})))
            )
        if request.over:
            return state
        match message:
            case Admitted():
                return self._first(state, n, request._replace(admitted=True), finished=False)
            case FirstToken():
                return self._first(
                    state, n, request._replace(first=True), finished=message.finish is not None
                )
            case Tokens():
                said = max(request.said, message.start + len(message.drawn))
                request = request._replace(said=said, streaming=True, first=False)
                if message.finish is None:
                    return self._put(state, n, request)
                return self._stop(state, n, request._replace(over=True))
            case Failed(retry=False):
                return self._stop(state, n, request._replace(over=True))
            case Failed() | Recompute() | Withdrawn():
                return self._again(state, n, request)
        return state

    def _first(self, state: State, n: int, request: Standing, *, finished: bool) -> State:
        if finished:
            return self._stop(state, n, request._replace(over=True))
        if request.first and request.admitted:
            request = request._replace(first=False, said=request.said + (not request.streaming))
        return self._put(state, n, request)

    def _lost(self, state: State, n: int, boot: Boot) -> State:
        request = state.requests[n]
        if boot == request.prefill and request.streaming:
            return self._put(state, n, request)  # its prefill is behind it
        return self._again(state, n, request)

    def _again(self, state: State, n: int, request: Standing) -> State:
        """The next epoch, where workers live; if there is no other to be had, the end."""
        if request.epoch == self.epochs:
            return self._stop(state, n, request._replace(over=True, spent=True))
        state = self._stop(state, n, request)
        prefill, decode = (
            self._living(state, PREFILL, request.prefill),
            self._living(state, DECODE, request.decode),
        )
        if prefill is None or decode is None:
            return self._put(state, n, request._replace(over=True))
        state = self._put(
            state, n, Standing(prefill, decode, epoch=request.epoch + 1, said=request.said)
        )
        return self._tickets(state, n)

    def _living(self, state: State, boots: tuple[Boot, ...], best: Boot) -> Boot | None:
        living = [b for b in boots if state.workers[self.boots.index(b)] != DEAD]
        return best if best in living else next(iter(living), None)

    def _stop(self, state: State, n: int, request: Standing) -> State:
        """Both sides end the epoch."""
        abort = self.messages.number(Abort(_key(n, request.epoch), "over"))
        for boot in sorted({request.prefill, request.decode} - set(request.ended)):
            state = self._say(state, _gateway(self.asks[n]), boot, abort)
        return self._put(state, n, request)

    def _tickets(self, state: State, n: int) -> State:
        ask, request = self.asks[n], state.requests[n]
        ticket = Ticket(
            key=_key(n, request.epoch),
            stamp=Stamp(ask.stamp),
            gateway=_gateway(ask),
            prefill=request.prefill,
            decode=request.decode,
            prompt=tuple(TokenId(t) for t in range(ask.prompt)),
            said=(TokenId(TOKEN),) * request.said,
            sampling=GREEDY,
            limits=Limits(ask.tokens, (), (), 60_000),
        )
        number = self.messages.number(ticket)
        us = _gateway(ask)
        return self._say(self._say(state, us, request.prefill, number), us, request.decode, number)

    def _put(self, state: State, n: int, request: Standing) -> State:
        return state._replace(requests=(*state.requests[:n], request, *state.requests[n + 1 :]))

    # ---- what is asked of it --------------------------------------------------------------------

    def wrong(self, state: State) -> str:
        """Who holds decode pages never waits for prefill pages."""
        if state.broken:
            return state.broken
        waits = [self._waiting(number) for number in state.workers if number != DEAD]
        for queued, _ in waits:
            for _, holding in waits:
                for of in queued & holding:
                    return (
                        f"{_room(of)} holds pages on one side and waits for pages on the "
                        "other that come first"
                    )
        return ""

    def _waiting(self, number: int) -> tuple[frozenset[Key], frozenset[Key]]:
        """Rooms that wait for prefill's pages, and rooms that hold decode's."""
        found = self._waits.get(number)
        if found is None:
            leader = self.workers[number].leader
            prefill = leader.worker.manifest.role == "prefill"
            queued = frozenset(
                r.key
                for r in leader.worker.rooms.values()
                if prefill and r.state is RoomState.QUEUED
            )
            holding = frozenset(k for k in leader.worker.ledger._held if not prefill)
            found = self._waits[number] = queued, holding
        return found

    def done(self, state: State) -> bool:
        if any(state.queues) or not all(r.over for r in state.requests):
            return False
        leaders = [self.workers[n].leader for n in state.workers if n != DEAD]
        return all(leader.worker.ledger.clean and not leader.worker.rooms for leader in leaders)

    def owes(self, state: State) -> bool:
        """With an epoch to spare for all, or given up already."""
        return any(r.spent for r in state.requests) or all(
            r.over or r.epoch < self.epochs for r in state.requests
        )


class _Short:
    """A message in few words, spelled out only when a story is told."""

    def __init__(self, message: Any) -> None:
        self.message = message

    def __str__(self) -> str:
        name, of = type(self.message).__name__, getattr(self.message, "key", None)
        number = getattr(self.message, "number", "")
        return (
            f"{name} {number} of {_room(of)}"
            if of is not None
            else f"{name} {getattr(self.message, 'boot', '')}"
        )


def _room(of: Key) -> str:
    return f"room {int(of.room, 16)}" + (f" epoch {of.epoch}" if of.epoch > 1 else "")


def _gateway(ask: Ask) -> Boot:
    return Boot(GATEWAY + ask.gateway)


def _key(n: int, epoch: int) -> Key:
    return Key(Room(f"{n + 1:032x}"), Epoch(epoch))


def _manifest(role: str, boot: Boot, pages: int) -> Manifest:
    return msgspec.structs.replace(manifest(role, boot, pages=pages), table=ONE_TOKEN)
