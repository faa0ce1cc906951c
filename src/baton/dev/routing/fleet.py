"""A service on a virtual clock: the core of one gateway and the leaders of its workers as they are
shipped, with a rank for each worker that takes time instead of computing.

    request ──▶ Front ──Ticket──▶ Leader ──Issue──▶ a rank that is busy for as long as its machine would be
       ▲          ▲                 └──Credits, CacheChanged, FirstToken──▶ Front
    a trace       └── all messages take LATENCY_US

Each worker computes prompts and answers with one token, so what is seen is the time to the first
token. Left out: decode, the handoff, and everything that fails.
"""

from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any

import msgspec

from baton.core.agreement import Report, RowOrder, RowResult, StepPlan, StepResult
from baton.core.door import Emit, RequestId, Submit
from baton.core.effects import Issue, Send
from baton.core.errors import Overloaded
from baton.core.events import (
    GatewayConnected,
    MessageReceived,
    RankReported,
    Submitted,
    TimerDue,
)
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings, Say
from baton.core.ids import Boot, GroupName, Key, Micros, Rank, Room, TokenId
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit
from baton.core.messages import Drawn, Limits, Sampling
from baton.core.protocol import PROTOCOL
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import LeaderSettings
from baton.dev.bench.workload import Item

LATENCY_US = 200  # of a message
KV = GroupName("full")
HOUR_MS = 3_600_000
SAMPLING = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=0, logprobs=None)
LIMITS = Limits(1, (), (), 10 * HOUR_MS)


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One worker: its speed, and its memory.

    Attributes:
        token_us: microseconds for each token of a prompt
        pair_us: microseconds for each pair of a token and a position at or before it
        step_us: microseconds of a step, whatever is in it
        step_tokens: tokens of a step at most
        page_tokens: tokens of a page
        pages: pages of its pool
    """

    token_us: float
    pair_us: float
    step_us: int
    step_tokens: int
    page_tokens: int
    pages: int

    def time(self, batch: Sequence[RowOrder]) -> int:
        """Return the microseconds of a step."""
        us = float(self.step_us)
        for row in batch:
            n = len(row.tokens)
            us += n * (self.token_us + self.pair_us * (row.start + row.valid) / 2)
        return round(us)


class ServedRequest(msgspec.Struct, frozen=True):
    """What became of one request: when it came, its prompt's length and, if it was not refused, the
    time to its first token."""

    at_us: int
    tokens: int
    ttft_us: int | None


class FleetWorker:
    """One worker of a fleet."""

    def __init__(self, name: str, boot: Boot, machine: Machine) -> None:
        spec = StateSpec("kv", KV, (0,), ("k",), 1, 4, DType.F32)
        table = StateTable(1, machine.page_tokens, (Group(KV, Unit.PAGE, Full()),), (spec,))
        pool = PoolView(KV, machine.pages, machine.pages * machine.page_tokens * 16)
        rank = RankManifest(boot, 0, 0, 0, (pool,), {"none": b""})
        manifest = Manifest(
            *(PROTOCOL, "unified", "model", "0" * 32, "float32", table, 1, 1, 1, 1 << 20),
            *(False, (rank,)),
        )
        settings = LeaderSettings(
            name=name,
            address=None,
            step_tokens=machine.step_tokens,
            last_chunk_tokens=machine.step_tokens,
            max_rooms=1 << 20,
            max_queue=1 << 20,
            stall_ms=HOUR_MS,
            fetch_ms=HOUR_MS,
            pids=(1,),
            prefix_cache=True,
        )
        self.boot, self.machine = boot, machine
        self.leader = Leader(manifest, settings, {KV: machine.pages})
        self.free_at = self.busy_us = 0
        self.wakes_at: int | None = None


class Fleet:
    """Workers and their gateway, and the clock."""

    GATEWAY = Boot(1)

    def __init__(self, machines: Sequence[Machine], policy: str) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        self._numbers = count()
        bounds = FrontSettings(
            max_requests=1 << 30, max_queued=1 << 30, queue_ms=10 * HOUR_MS, routing_policy=policy
        )
        self.front = Front(self.GATEWAY, bounds)
        self._front_wakes_at: int | None = None
        self.workers = {
            boot: FleetWorker(f"worker-{i}", boot, machine)
            for i, machine in enumerate(machines)
            for boot in (Boot(i + 2),)
        }
        self._came: dict[RequestId, tuple[int, int]] = {}
        self.served: list[ServedRequest] = []
        for worker in self.workers.values():
            self._leader(worker, GatewayConnected(self.GATEWAY))

    def serve(self, items: Sequence[Item]) -> None:
        """Serve requests at their times, until all have ended."""
        start = self.now + 1_000_000
        for number, item in enumerate(items):
            assert item.at_s is not None, "a trace has times"
            self._at(start + round(item.at_s * 1e6), self._ask, RequestId(number), item)
        while self._heap and (self._came or len(self.served) < len(items)):
            self.now, _, what, args = heappop(self._heap)
            what(*args)

    def _at(self, when: int, what: Any, *args: Any) -> None:
        heappush(self._heap, (when, next(self._numbers), what, args))

    # ---- requests -------------------------------------------------------------------------------

    def _ask(self, number: RequestId, item: Item) -> None:
        assert not isinstance(item.prompt, str), "a trace has token ids"
        prompt = tuple(map(TokenId, item.prompt))
        self._came[number] = self.now, len(prompt)
        submit = Submit(number, prompt, SAMPLING, LIMITS)
        try:
            self._front(Submitted(submit, Room(f"{number:032x}")))
        except Overloaded:
            self._ends(number, None)

    def _ends(self, number: RequestId, at: int | None) -> None:
        came, tokens = self._came.pop(number)
        self.served.append(ServedRequest(came, tokens, None if at is None else at - came))

    # ---- the core -------------------------------------------------------------------------------

    def _front(self, event: Any) -> None:
        for effect in self.front.step(event, Micros(self.now)):
            match effect:
                case Send(to=to, message=message):
                    arrived = MessageReceived(self.GATEWAY, message)
                    self._at(self.now + LATENCY_US, self._leader, self.workers[to], arrived)
                case Say(heard=Emit(request=number)) if number in self._came:
                    self._ends(number, self.now)
                case _:
                    pass
        wake = self.front.next_wake()
        if wake is not None and (self._front_wakes_at is None or wake < self._front_wakes_at):
            self._front_wakes_at = wake
            self._at(max(wake, self.now), self._front_timer, wake)

    def _front_timer(self, wake: int) -> None:
        if self._front_wakes_at == wake:
            self._front_wakes_at = None
            self._front(TimerDue())

    def _leader(self, worker: FleetWorker, event: Any) -> None:
        for effect in worker.leader.step(event, Micros(self.now)):
            match effect:
                case Send(message=message):
                    arrived = MessageReceived(worker.boot, message)
                    self._at(self.now + LATENCY_US, self._front, arrived)
                case Issue(plan=plan):
                    self._rank(worker, plan)
                case _:
                    pass
        wake = worker.leader.next_wake()
        if wake is not None and (worker.wakes_at is None or wake < worker.wakes_at):
            worker.wakes_at = wake
            self._at(max(wake, self.now), self._leader_timer, worker, wake)

    def _leader_timer(self, worker: FleetWorker, wake: int) -> None:
        if worker.wakes_at == wake:
            worker.wakes_at = None
            self._leader(worker, TimerDue())

    # ---- a rank ---------------------------------------------------------------------------------

    def _rank(self, worker: FleetWorker, plan: StepPlan) -> None:
        if plan.drop:
            self._at(self.now, self._report, worker, plan.drop, ())
        if plan.batch:
            us = worker.machine.time(plan.batch)
            worker.busy_us += us
            worker.free_at = max(worker.free_at, self.now) + us
            drawn = Drawn(TokenId(1), None, ())
            rows = tuple(
                RowResult(row.key, drawn if row.sampling is not None else None, {})
                for row in plan.batch
            )
            step = StepResult(plan.seq, rows)
            self._at(worker.free_at, self._report, worker, (), (step,))

    def _report(
        self, worker: FleetWorker, quiet: tuple[Key, ...], steps: tuple[StepResult, ...]
    ) -> None:
        chain = worker.leader.worker.agreement.chain
        report = Report(
            *(Rank(0), worker.boot, chain.seq, chain.value, (), quiet, steps, (), (), 0)
        )
        self._leader(worker, RankReported(report))
