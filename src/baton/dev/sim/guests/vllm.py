"""A simulated vLLM engine: its HTTP server, its scheduler and the steps of its ranks.

    Call ──▶ inbox ──between two steps──▶ VllmScheduler ──schedule──▶ GuestRanks compute ──▶ tokens ──▶ Call
                                           │    ▲
                                    SchedulerSide, the shipped hooks ◀──link──▶ leader

It steps as long as it has requests, also such that have ended and whose blocks are kept. If one of
its ranks ends, no step ends any more: the engine as a whole is started again.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec

from baton.core.ids import Boot, Key
from baton.dev.sim import content
from baton.dev.sim.guests.blocks import BlockPool
from baton.dev.sim.guests.books import GuestBooks
from baton.dev.sim.guests.call import Call, SimAnswerEvent
from baton.dev.sim.guests.rank import GuestRank
from baton.dev.sim.guests.request import SchedulerOutput, Status, VllmRequest
from baton.dev.sim.guests.scheduler import VllmScheduler
from baton.dev.sim.settings import WorkerDraw
from baton.vllm.scheduler_side import SchedulerSide, StepNotes

BETWEEN_US = 50
IDLE_STEPS = 30  # after so many steps in a row that compute nothing ..
IDLE_US = 2_000  # .. this long between two of them
LOOK_US = 20_000  # between two looks whether a rank that stood still goes on
WIRE_US = 80  # an event of an answer, on its way to the client


class SimulatedVllm:
    """One boot of an engine."""

    def __init__(
        self,
        world: Any,
        draw: WorkerDraw,
        boot: Boot,
        ranks: Sequence[GuestRank],
        books: Sequence[GuestBooks],
        side: SchedulerSide,
    ) -> None:
        self._world, self._draw, self._boot = world, draw, boot
        self._ranks, self._books, self._side = ranks, books, side
        self._b = world.draw.table.block_tokens
        self.pool = BlockPool(draw.pages)
        self.scheduler = VllmScheduler(
            side,
            self.pool,
            self,
            block_tokens=self._b,
            budget=draw.step_tokens,
            seqs=draw.max_rooms,
            merged=world.draw.guests.merged,
        )
        side.evicts(self.pool.evict)
        self._names = 0
        self._calls: dict[str, Call] = {}
        self._inbox: list[tuple[bool, Call]] = []  # whether it comes or leaves
        self._stepping = False
        self._idle = 0  # steps in a row that computed nothing
        self._left = 0  # ranks that still compute the step
        self._holds: dict[int, tuple[int, ...]] = {}  # what blocks must hold
        self._tainted: set[int] = set()  # blocks that came damaged, as nobody could know
        for rank, book in zip(ranks, books, strict=True):
            rank.holds, book.users = self._has, self._users

    @property
    def alive(self) -> bool:
        """Whether all its ranks live."""
        return all(rank.process.alive for rank in self._ranks)

    def _users(self, block: int) -> set[Key]:
        return {r.key for r in self.scheduler.requests.values() if block in r.blocks}

    def _has(self, key: Key, block: int, number: int) -> bool:
        return any(
            r.key == key and block in r.blocks[number : number + 1]
            for r in self.scheduler.requests.values()
        )

    def strangers(self, key: Key, pages: Sequence[int]) -> list[int]:
        """Return those of these pages that the request of a room does not have now. Nothing can be
        said of one that was preempted: its leader hears of it a little later."""
        request = next((r for r in self.scheduler.requests.values() if r.key == key), None)
        if request is None:
            return [*pages]
        return [] if request.preemptions else [p for p in pages if p not in request.blocks]

    # ---- HTTP -----------------------------------------------------------------------------------

    def comes(self, call: Call) -> None:
        """A request has arrived."""
        self._inbox.append((True, call))
        self._wake()

    def leaves(self, call: Call) -> None:
        """Its client has closed the connection."""
        self._inbox.append((False, call))
        self._wake()

    def ends(self) -> None:
        """The engine has ended, and its connections with it."""
        for call in [*self._calls.values(), *(call for comes, call in self._inbox if comes)]:
            self._world.heap.after(WIRE_US, call.broken, "the connection was reset")
        self._calls.clear()
        self._inbox.clear()

    def _take_in(self) -> None:
        """Between two steps: requests come and leave."""
        inbox, self._inbox = self._inbox, []
        for comes, call in inbox:
            if comes:
                self._names += 1
                name = f"cmpl-{self._boot}-{self._names}"
                self._calls[name] = call
                self.scheduler.add(VllmRequest(name, call.ticket, most=call.most))
            else:
                for name in [n for n, other in self._calls.items() if other is call]:
                    del self._calls[name]
                    self.scheduler.finish(self.scheduler.requests[name])

    def _say(self, request: VllmRequest, event: SimAnswerEvent) -> None:
        call = self._calls.get(request.request_id)
        if call is not None:
            self._world.heap.after(WIRE_US, call.hear, event)
            if event.finish is not None:
                del self._calls[request.request_id]

    # ---- steps ----------------------------------------------------------------------------------

    def _wake(self, delay: int = BETWEEN_US) -> None:
        if not self._stepping and (self._inbox or self.scheduler.requests):
            self._stepping = True
            self._world.heap.after(delay, self._step)

    def _step(self) -> None:
        if not self.alive:
            return
        world, now = self._world, self._world.heap.now
        if (stands := max(rank.process.paused_until for rank in self._ranks)) > now:
            world.heap.at(min(stands, now + LOOK_US), self._step)
            return
        self._take_in()
        output = self.scheduler.schedule()
        encoded = msgspec.msgpack.encode(self._side.step(output))
        notes = msgspec.msgpack.decode(encoded, type=StepNotes)
        tokens = sum(output.num_scheduled_tokens.values())
        cost = world.costs.step(rows=len(output.parts), tokens=tokens) if tokens else 0
        cost *= max(rank.process.slowness for rank in self._ranks)
        cost += 300 * world.tape.below(20, "slow step") if world.hostile and tokens else 0
        self._left = len(self._ranks)
        for rank in self._ranks:
            lag = 100 * world.tape.below(8, "rank lag") if world.hostile and tokens else 0
            world.heap.after(cost + lag, partial(self._execute, rank, output, notes))

    def _execute(self, rank: GuestRank, output: SchedulerOutput, notes: StepNotes) -> None:
        if not rank.process.alive:
            return
        rank.execute(output.parts, notes)
        self._left -= 1
        if not self._left:
            self._computed(output, notes)

    def _computed(self, output: SchedulerOutput, notes: StepNotes) -> None:
        """The step is computed on every rank."""
        drawn = {
            part.request.request_id: part.request.draw()
            for part in output.parts
            if part.end == part.request.num_tokens
        }
        ends = self.scheduler.computed(output, drawn)
        for part in output.parts:
            if (token := drawn.get(part.request.request_id)) is not None:
                self._say(part.request, SimAnswerEvent(token, ends.get(part.request)))
        failing = self.scheduler.transferred(
            loaded=notes.loaded, failed=notes.failed, released=notes.released
        )
        for request in failing:
            self._say(request, SimAnswerEvent(None, "error"))
        self._stepping = False
        self._idle = 0 if output.parts else self._idle + 1
        self._wake(self._pause())

    def _pause(self) -> int:
        """Return how long it waits until its next step. vLLM does not wait at all; here that would
        be most of a run."""
        if not self._idle:
            return BETWEEN_US
        soon: int = self._world.draw.guests.idle_us
        return soon if self._idle <= IDLE_STEPS else IDLE_US

    # ---- what blocks hold (scheduler.Truth) -----------------------------------------------------

    def taken(self, request: VllmRequest, blocks: list[int]) -> None:
        for block in blocks:
            self._holds.pop(block, None)
            self._tainted.discard(block)
            for rank, book in zip(self._ranks, self._books, strict=True):
                book.taken(block)
                rank.taken(block)

    def hit(self, request: VllmRequest, blocks: list[int]) -> None:
        request.stamps = [stamp for block in blocks for stamp in self._holds[block]]
        if not self._tainted.isdisjoint(blocks):
            self._world.tainted.add(request.key)
        self._world.workers[self._draw.name].collective.inherited[request.key] = [*request.stamps]

    def loaded(self, request: VllmRequest) -> None:
        theirs = self._world.stamps[request.ticket.prefill, request.key]
        request.stamps += theirs[len(request.stamps) : request.computed]
        if request.key in self._world.tainted:
            self._tainted.update(request.blocks)
        self._note(request, 0, request.computed)

    def computes(self, request: VllmRequest, start: int, end: int) -> None:
        attempt = (
            content.attempt(self._boot, request.key.epoch) if self._world.attempts_differ else 0
        )
        histories = content.histories(request.tokens)[start:end]
        del request.stamps[start:]
        request.stamps += [content.scramble(h ^ attempt) | 1 for h in histories]
        self._world.work.computed(request.ticket, start, end - start)
        if self._draw.role == "prefill":
            self._world.stamps[self._boot, request.key] = request.stamps[:]
        self._note(request, start, end)

    def _note(self, request: VllmRequest, start: int, end: int) -> None:
        for n in range(start // self._b, -(-end // self._b)):
            stamps = request.stamps[n * self._b : (n + 1) * self._b]
            self._holds[request.blocks[n]] = tuple(stamps)

    def asserts(self, what: str) -> None:
        self._world.violate("vllm_asserts", f"{self._draw.name}: {what}")

    def mark(self, what: str) -> None:
        self._world.marks[f"vllm: {self._draw.role}: {what}"] += 1

    # ---- at rest --------------------------------------------------------------------------------

    @property
    def side(self) -> SchedulerSide:
        """The hooks in its scheduler."""
        return self._side

    def held(self) -> str:
        """Return what it still holds although nobody asks anything of it; empty if nothing. What
        its ranks are told only with the next step, they are told now."""
        notes = self._side.step(SchedulerOutput())
        if notes.loaded or notes.failed or notes.released:
            return f"vLLM of {self._draw.name} was not told of {notes}, and makes no step"
        for rank in self._ranks:
            rank.execute([], notes)
        if self.scheduler.requests:
            kept = [
                f"{r.key.room[-4:]}.{r.key.epoch} ({r.status.value})"
                for r in self.scheduler.requests.values()
            ]
            return f"vLLM of {self._draw.name} keeps requests {kept}"
        if self.pool.used or self.pool.free != self.pool.total:
            return f"vLLM of {self._draw.name} keeps blocks {self.pool.used}"
        return ""

    @property
    def loading(self) -> list[Key]:
        """The rooms whose state it waits for."""
        requests = self.scheduler.requests.values()
        return [r.key for r in requests if r.status is Status.LOADING]
