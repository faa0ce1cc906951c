"""The scheduler of a simulated vLLM, with the hooks of a connector where vLLM has them.

    waiting ──matched, allocated──▶ loading ──loaded──▶ running ──blocks run short──▶ preempted, and waits again
       └──────────────────────────────────────────────────▲ └──ended──▶ its blocks are kept while the connector says so

A step computes what running requests lack, then what waiting ones do, within a budget of tokens.
Whole blocks enter the prefix cache when they are scheduled. A preempted request begins from nothing
again. A load that fails ends its request (kv_load_failure_policy=fail).
"""

from collections import deque
from collections.abc import Collection, Mapping
from typing import Protocol

from baton.core.ids import TokenId
from baton.dev.sim.guests.blocks import BlockPool, Prefix
from baton.dev.sim.guests.request import ComputedPart, Named, SchedulerOutput, Status, VllmRequest
from baton.vllm.scheduler_side import SchedulerSide


class Truth(Protocol):
    """Knows what blocks hold."""

    def taken(self, request: VllmRequest, blocks: list[int]) -> None:
        """Blocks begin a new life."""
        ...

    def hit(self, request: VllmRequest, blocks: list[int]) -> None:
        """A request begins with blocks of the prefix cache."""
        ...

    def loaded(self, request: VllmRequest) -> None:
        """The state of a request's prompt has come from elsewhere."""
        ...

    def computes(self, request: VllmRequest, start: int, end: int) -> None:
        """A step is to compute these positions."""
        ...

    def asserts(self, what: str) -> None:
        """An assertion of vLLM fails."""
        ...

    def mark(self, what: str) -> None:
        """Count something that worlds should reach."""
        ...


class VllmScheduler:
    """The requests of one engine.

    Args:
        budget: tokens of a step
        seqs: requests that run at once
        merged: whether requests that go on after a preemption are named among the new ones, as
            vLLM's newer model runner has it
    """

    def __init__(
        self,
        side: SchedulerSide,
        pool: BlockPool,
        truth: Truth,
        *,
        block_tokens: int,
        budget: int,
        seqs: int,
        merged: bool,
    ) -> None:
        self._side, self.pool, self._truth, self._b = side, pool, truth, block_tokens
        self._budget, self._seqs, self._merged = budget, seqs, merged
        self.requests: dict[str, VllmRequest] = {}
        self._waiting: deque[VllmRequest] = deque()
        self._loading: deque[VllmRequest] = deque()
        self.running: list[VllmRequest] = []
        self._arrived: set[str] = set()  # loads that have ended well

    # ---- a step ---------------------------------------------------------------------------------

    def schedule(self) -> SchedulerOutput:
        """Decide what the next step computes."""
        output = SchedulerOutput()
        left = self._go_on(output, self._budget)
        if not output.preempted_req_ids:
            self._admit(output, left)
        for name, count in output.num_scheduled_tokens.items():
            self.requests[name].computed += count
        return output

    def _go_on(self, output: SchedulerOutput, left: int) -> int:
        """Schedule what runs already. Returns how much of the budget is left."""
        at = 0
        while at < len(self.running) and left > 0:
            request = self.running[at]
            count = min(request.num_tokens - request.computed, left)
            new = self._room_for(request, request.computed + count, output)
            if new is None:
                break
            going_on = output.scheduled_cached_reqs
            going_on.req_ids.append(request.request_id)
            going_on.new_block_ids.append((new,) if new else None)
            going_on.num_computed_tokens.append(request.computed)
            self._compute(request, count, output)
            left -= count
            at += 1
        return left

    def _room_for(
        self, request: VllmRequest, tokens: int, output: SchedulerOutput
    ) -> list[int] | None:
        """Give a running request blocks for so many tokens, at the cost of the youngest. Returns
        the new ones; None if the request itself has been preempted."""
        want = -(-tokens // self._b) - len(request.blocks)
        while self.pool.free < want:
            victim = self.running.pop()
            self._preempt(victim, output)
            if victim is request:
                return None
        return self._take(request, want)

    def _take(self, request: VllmRequest, count: int) -> list[int]:
        new = self.pool.take(count)
        request.blocks += new
        self._truth.taken(request, new)
        return new

    def _preempt(self, request: VllmRequest, output: SchedulerOutput) -> None:
        self._free(request)
        request.status, request.computed, request.known = Status.PREEMPTED, 0, 0
        request.preemptions += 1
        request.stamps.clear()
        self._truth.mark("preempted")
        self._waiting.appendleft(request)
        output.preempted_req_ids.add(request.request_id)

    def _admit(self, output: SchedulerOutput, left: int) -> None:
        """Schedule waiting requests, or let them load."""
        skipped: list[VllmRequest] = []
        loading: list[VllmRequest] = []
        while left > 0 and len(self.running) < self._seqs:
            queue = self._loading or self._waiting
            if not queue:
                break
            request = queue[0]
            if request.status is Status.LOADING and not self._has_loaded(request):
                loading.append(queue.popleft())
                continue
            hit, more, loads = self._there(request)
            if more is None:
                skipped.append(queue.popleft())
                continue
            count = 0 if loads else min(request.num_tokens - request.computed - hit - more, left)
            if not self._fits(request, hit, more, count, loads=loads):
                break
            if loads:
                self._truth.mark("loads")
                request.status = Status.LOADING
                loading.append(queue.popleft())
                continue
            self._begin(queue.popleft(), count, output)
            left -= count
        self._loading.extendleft(reversed(loading))
        self._waiting.extendleft(reversed(skipped))

    def _has_loaded(self, request: VllmRequest) -> bool:
        """Whether a request that loads can go on. The last token is computed once more, so that the
        next one can be drawn."""
        if request.request_id not in self._arrived:
            return False
        self._arrived.discard(request.request_id)
        self._truth.loaded(request)
        self._know(request, request.computed)
        request.computed = min(request.computed, request.num_tokens - 1)
        request.status = Status.PREEMPTED if request.preemptions else Status.WAITING
        return True

    def _there(self, request: VllmRequest) -> tuple[int, int | None, bool]:
        """Return how many tokens of a request are cached, how many more the connector has (None: it
        does not know yet), and whether it takes time to load them."""
        if request.computed:
            return 0, 0, False
        hit = len(self._cached(request)) * self._b
        more, loads = self._side.matched(request, hit)
        return hit, more, loads

    def _cached(self, request: VllmRequest) -> list[int]:
        """Return the blocks of the prefix cache with which a request can begin: not all of it."""
        found = []
        for n in range((request.num_tokens - 1) // self._b):
            block = self.pool.find(self._prefix(request, n))
            if block is None:
                break
            found.append(block)
        return found

    def _prefix(self, request: VllmRequest, block: int) -> Prefix:
        return request.ticket.cache_salt, request.tokens[: (block + 1) * self._b]

    def _fits(self, request: VllmRequest, hit: int, more: int, count: int, *, loads: bool) -> bool:
        """Give a waiting request its blocks, if there are enough."""
        cached = self._cached(request)[: hit // self._b]
        need = -(-(request.computed + hit + more + count) // self._b)
        new = need - len(cached) - len(request.blocks)
        # a load holds its blocks for long, so what runs already must be able to end
        reserved = sum(self._lacks(other) for other in self.running) if loads else 0
        if new + self.pool.idle(cached) > self.pool.free - reserved:
            return False
        if cached:
            self.pool.share(cached)
            request.blocks += cached
            request.known = len(cached)
            self._truth.hit(request, cached)
            self._truth.mark("begins with cached blocks")
        self._take(request, new)
        request.computed += hit + more
        self._side.allocated(request, request.blocks, more)
        return True

    def _lacks(self, request: VllmRequest) -> int:
        """Return how many blocks a running request needs until its prompt is computed."""
        return max(0, -(-request.num_tokens // self._b) - len(request.blocks))

    def _begin(self, request: VllmRequest, count: int, output: SchedulerOutput) -> None:
        self.running.append(request)
        named = Named(request.request_id, (list(request.blocks),), request.computed)
        if request.status is Status.WAITING or self._merged:
            output.scheduled_new_reqs.append(named)
        else:
            going_on = output.scheduled_cached_reqs
            going_on.req_ids.append(named.req_id)
            going_on.new_block_ids.append(named.block_ids)
            going_on.num_computed_tokens.append(named.num_computed_tokens)
            going_on.resumed_req_ids.add(named.req_id)
        request.status = Status.RUNNING
        self._compute(request, count, output)

    def _compute(self, request: VllmRequest, count: int, output: SchedulerOutput) -> None:
        start, end = request.computed, request.computed + count
        output.num_scheduled_tokens[request.request_id] = count
        self._truth.computes(request, start, end)
        part = ComputedPart(request, start, end, tuple(request.blocks), tuple(request.stamps))
        output.parts.append(part)
        self._know(request, end)

    def _know(self, request: VllmRequest, tokens: int) -> None:
        """Whole blocks of so many tokens enter the prefix cache."""
        for n in range(request.known, tokens // self._b):
            self.pool.know(request.blocks[n], self._prefix(request, n))
        request.known = max(request.known, tokens // self._b)

    # ---- its end --------------------------------------------------------------------------------

    def computed(
        self, output: SchedulerOutput, drawn: Mapping[str, TokenId]
    ) -> dict[VllmRequest, str]:
        """A step is computed, and these tokens were drawn. Returns the requests that end, and
        why."""
        ends = {}
        for name in output.num_scheduled_tokens:
            request = self.requests.get(name)
            if request is None or request.status is not Status.RUNNING or name not in drawn:
                continue  # it has ended meanwhile
            if (why := request.add(drawn[name])) is not None:
                ends[request] = why
                self.finish(request)
        return ends

    def transferred(
        self, *, loaded: Collection[str], failed: Collection[str], released: Collection[str]
    ) -> list[VllmRequest]:
        """The connector says what has become of loads, and which kept blocks are free. Returns the
        requests that end because their load has failed."""
        failing = [
            request
            for name in failed
            if (request := self.requests.get(name)) is not None and request.status is Status.LOADING
        ]
        for request in failing:
            self._truth.mark("a load fails")
            self.finish(request)
        for name in (*loaded, *failed):
            self._load_ended(name)
        for name in released:
            self._let_go(name)
        return failing

    def _load_ended(self, name: str) -> None:
        request = self.requests.get(name)
        if request is None:
            self._truth.asserts(f"the load of {name} has ended, which is not known")
        elif request.status is Status.LOADING:
            self._arrived.add(name)
        else:
            self._truth.mark("a load ends after its request")
            self._let_go(name)

    def _let_go(self, name: str) -> None:
        """Free the blocks of a request that has ended."""
        request = self.requests.get(name)
        if request is None or request.status is not Status.FINISHED:
            self._truth.asserts(
                f"the blocks of {name} are let go, which has not ended, or long ago"
            )
            return
        self._free(request)
        del self.requests[name]

    # ---- requests -------------------------------------------------------------------------------

    def add(self, request: VllmRequest) -> None:
        """A request comes."""
        self.requests[request.request_id] = request
        self._waiting.append(request)
        self._side.arrives()

    def finish(self, request: VllmRequest) -> None:
        """A request ends, in any way."""
        loads = request.status is Status.LOADING and request.request_id not in self._arrived
        self._arrived.discard(request.request_id)
        for queue in (self._waiting, self._loading, self.running):
            if request in queue:
                queue.remove(request)
        request.status = Status.FINISHED
        if not (self._side.finished(request) or loads):
            self._let_go(request.request_id)

    def _free(self, request: VllmRequest) -> None:
        self.pool.give_back(request.blocks)
        request.blocks = []
