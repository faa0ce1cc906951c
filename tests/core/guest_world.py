"""The world of world.py with workers that are guests of an engine: `Host` stands for vLLM, which
gives out pages, computes chunks, keeps a prefix cache and draws tokens from the bytes of its pool.
"""

from collections import deque
from typing import Any

import numpy as np
from msgspec.structs import replace
from tests.core.build import KV, B, drawn, manifest, settings
from tests.core.driven import Driven
from tests.core.world import FakeEngine, Node, World, draw, row_bytes

from baton.core.effects import Evict, GuestNews, Notice, TellEngine
from baton.core.events import (
    GatewayConnected,
    GuestAllocated,
    GuestComputes,
    GuestFinished,
    GuestScheduled,
)
from baton.core.ids import Boot, Key, Page, TokenIndex
from baton.core.messages import Abort, Ended, FinishReason, Ticket, Tokens
from baton.core.scheduler.leader import Leader
from baton.core.work import BatchDone, RowDone


class GuestFake(FakeEngine):
    """Seals what its host has computed, in the order of the batches."""

    def __init__(self, placement: Any, pages: int) -> None:
        super().__init__(placement, pages)
        self.computed: dict[Key, int] = {}
        self.waiting: deque[Any] = deque()

    def compute(self, batch: Any) -> None:
        self.waiting.append(batch)
        self.look()

    def look(self) -> None:
        while self.waiting and all(
            self.computed.get(r.key, 0) >= r.valid for r in self.waiting[0].rows
        ):
            batch = self.waiting.popleft()
            rows = tuple(
                RowDone(
                    r.key,
                    None,
                    {
                        g: self._seal(r.pages[KV], a, past, past * B)
                        for g, (a, past) in r.final.items()
                    },
                )
                for r in batch.rows
            )
            self.done.append(BatchDone(batch.seq, rows))

    def write(self, pages: Any, position: int, token: int) -> None:
        """What attention stores of one token."""
        for h in range(2):
            for layer in range(2):
                for n, part in enumerate("kv"):
                    data = row_bytes("kv", h, layer, part, position, token, 16)
                    self.pool[self._at(pages, h, layer, n, position)] = np.frombuffer(
                        data, dtype=np.uint8
                    )

    def draw(self, pages: Any, length: int, index: int) -> int:
        """The token after so many positions, from what lies in the pages."""
        context = b"".join(
            self.pool[self._at(pages, h, layer, part, p)].tobytes()
            for h in range(2)
            for layer in range(2)
            for part in range(2)
            for p in range(length)
        )
        return draw(context, index)


class Request:
    """One request in a host."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket, self.key = ticket, ticket.key
        self.tokens = [*ticket.prompt, *ticket.said]
        self.length = len(self.tokens)
        self.pages: list[int] = []
        self.done = 0
        self.state = "waiting"  # asked, loading, running, kept
        self.told: set[Notice] = set()


class Host:
    """An engine. `chunk`: positions that it computes in one step. `early`: it gives the pages of a
    request away as soon as the request has ended, as an engine without a guest would."""

    def __init__(
        self, world: "GuestWorld", boot: Boot, node: Node, pages: int, chunk: int, early: bool
    ) -> None:
        self.world, self.boot, self.node, self.chunk, self.early = world, boot, node, chunk, early
        self.free = deque(range(pages))
        self.pages = pages
        self.uses: dict[int, int] = {}  # requests that have a page
        self.cached: dict[tuple[int, ...], int] = {}  # prefix -> page
        self.requests: dict[Key, Request] = {}
        self.frozen = False  # it does nothing
        self.patient = True  # decode: whether it waits until it may load
        self.obeys = True  # whether it takes pages out of its cache when it is told to
        self.computes = node.leader.worker.manifest.role == "prefill"

    @property
    def engine(self) -> GuestFake:
        return self.node.engine  # type: ignore[return-value]

    def say(self, event: Any) -> None:
        self.node.leader.step(event, self.world.now)

    # ---- pages ----------------------------------------------------------------------------------

    def take(self, count: int) -> list[int] | None:
        if len(self.free) < count:
            return None
        taken = [self.free.popleft() for _ in range(count)]
        for page in taken:
            self.uses[page] = 1
            self.cached = {k: p for k, p in self.cached.items() if p != page}
        return taken

    def give(self, pages: list[int]) -> None:
        for page in pages:
            self.uses[page] -= 1
            if not self.uses[page]:
                del self.uses[page]
                self.free.append(page)

    def hit(self, request: Request) -> int:
        """Positions that the prefix cache has."""
        at = 0
        while at + B < request.length:
            page = self.cached.get(tuple(request.tokens[: at + B]))
            if page is None:
                break
            if page in self.free:
                self.free.remove(page)
            self.uses[page] = self.uses.get(page, 0) + 1
            request.pages.append(page)
            at += B
        return at

    # ---- requests -------------------------------------------------------------------------------

    def begin(self, ticket: Ticket) -> None:
        self.requests[ticket.key] = Request(ticket)

    def abort(self, key: Key) -> None:
        request = self.requests.get(key)
        if request is not None and request.state != "kept":
            self.end(request, None)

    def end(self, request: Request, token: int | None) -> None:
        """It has ended here: its pages stay if the guest may need them."""
        waits = self.computes or request.state == "loading"
        request.state = "kept"
        self.say(GuestFinished(request.key, None if token is None else drawn(token)))
        if not waits or self.early:
            self.drop(request)

    def drop(self, request: Request) -> None:
        self.give(request.pages)
        self.requests.pop(request.key, None)

    def hear(self, told: TellEngine) -> None:
        request = self.requests.get(told.key)
        if request is None:
            return
        request.told.add(told.notice)
        match told.notice, request.state:
            case Notice.RELEASED, "kept":
                self.drop(request)
            case Notice.LOADED, "loading":
                request.state = "running"
            case ((Notice.LOADED | Notice.FAILED), "kept"):
                self.drop(request)
            case Notice.FAILED, "loading" | "waiting":
                self.drop(request)  # as if the client had gone: the gateway tries again
            case _:
                pass

    def evict(self, pages: set[int]) -> None:
        """Take pages out of the prefix cache."""
        if self.obeys:
            self.cached = {k: p for k, p in self.cached.items() if p not in pages}

    def compute_alone(self, tokens: tuple[int, ...]) -> None:
        """Compute whole blocks of a request that names no room, and keep them in the cache."""
        pages = self.take(len(tokens) // B)
        assert pages is not None, "tests give it enough"
        self.say(GuestScheduled({}, {KV: tuple(map(Page, pages))}))
        for position in range(len(pages) * B):
            self.engine.write(np.array(pages), position, tokens[position])
        for n, page in enumerate(pages):
            self.cached[tuple(tokens[: (n + 1) * B])] = page
        self.give(pages)

    def preempt(self) -> bool:
        """Take the pages of the youngest prompt that is being computed."""
        for request in reversed(self.requests.values()):
            if request.state == "computing":
                self.say(GuestFinished(request.key, None, preempted=True))
                request.state = "kept"
                return True
        return False

    # ---- a step ---------------------------------------------------------------------------------

    def step(self) -> bool:
        """One step of the engine; whether it did anything."""
        moved = False
        for request in list(self.requests.values()) if not self.frozen else ():
            moved |= self.prefill(request) if self.computes else self.decode(request)
        return moved

    def prefill(self, request: Request) -> bool:
        if request.state not in ("waiting", "computing"):
            return False
        hit = request.done
        if request.state == "waiting":
            hit = request.done = self.hit(request)
        end = min(request.done + self.chunk, request.length)
        more = self.take(-(-end // B) - len(request.pages))
        if more is None:
            if request.state == "waiting":
                self.give(request.pages)
                request.pages = []
                return False
            return self.preempt()
        first = request.state != "computing"
        before = list(request.pages) if first else []
        request.pages += more
        request.state = "computing"
        self.say(GuestAllocated(request.key, {KV: tuple(map(Page, before + more))}, hit, first))
        self.say(GuestScheduled({request.key: (request.done, end)}, {KV: tuple(map(Page, more))}))
        table = np.array(request.pages)
        for position in range(request.done, end):
            self.engine.write(table, position, request.tokens[position])
        done, request.done = request.done, end
        for n in range(done // B, end // B):  # those before were cached when they were full
            self.cached.setdefault(tuple(request.tokens[: (n + 1) * B]), request.pages[n])
        self.engine.computed[request.key] = end
        self.engine.look()
        if end == request.length:
            index = len(request.ticket.said)
            self.end(request, self.engine.draw(table, end, index))
        return True

    def compute_itself(self, request: Request) -> bool:
        """Decode has waited long enough for a prompt."""
        pages = self.take(-(-(request.length + 1) // B))
        assert pages is not None, "tests give it enough"
        request.pages, request.state = pages, "running"
        self.say(GuestComputes(request.key))
        for position in range(request.length):
            self.engine.write(np.array(pages), position, request.tokens[position])
        return True

    def decode(self, request: Request) -> bool:
        if request.state == "waiting" and not self.patient:
            return self.compute_itself(request)
        if request.state == "waiting" and Notice.MAY_LOAD in request.told:
            pages = self.take(-(-(request.length + 1) // B))
            if pages is None:
                return False
            request.pages, request.state = pages, "loading"
            self.say(GuestAllocated(request.key, {KV: tuple(map(Page, pages))}, 0, True))
            return True
        if request.state != "running":
            return False
        table = np.array(request.pages)
        # the last position is computed once more, as vLLM does
        self.engine.write(table, len(request.tokens) - 1, request.tokens[-1])
        at = len(request.tokens) - len(request.ticket.prompt)
        token = self.engine.draw(table, len(request.tokens), at)
        request.tokens.append(token)
        last = at + 1 == request.ticket.limits.max_tokens
        finish = FinishReason.LENGTH if last else None
        said = Tokens(request.key, TokenIndex(at), (drawn(token),), finish)
        self.world._send(self.boot, World.GATEWAY, said)
        if last:
            self.end(request, None)
        elif len(request.tokens) >= len(request.pages) * B:
            more = self.take(1)
            assert more is not None, "tests give it enough"
            request.pages += more
        return True


class GuestWorld(World):
    """Everything, with hosts."""

    def __init__(self, **front: int) -> None:
        super().__init__(**front)
        self.hosts: dict[Boot, Host] = {}
        self.begun: dict[Key, set[Boot]] = {}  # what is held back is sent twice

    def add_guest(
        self, role: str, boot: int, *, pages: int = 16, chunk: int = 5, early: bool = False
    ) -> Host:
        """An engine joins, and its guest."""
        m = replace(manifest(role, boot, pages=pages), guest=True)
        engine = GuestFake(m.placement(0), pages)
        leader = Leader(m, settings(f"{role}-{boot}"), {KV: pages})
        node = self.nodes[Boot(boot)] = Node(Driven(leader), engine)
        host = self.hosts[Boot(boot)] = Host(self, Boot(boot), node, pages, chunk, early)
        node.leader.step(GatewayConnected(self.GATEWAY), self.now)
        return host

    def lose(self, boot: int, *, at: int | None = None) -> None:
        if at is None:
            self.hosts.pop(Boot(boot), None)
        super().lose(boot, at=at)

    def _tell(self, boot: Boot, told: GuestNews) -> None:
        match told:
            case TellEngine():
                self.hosts[boot].hear(told)
            case Evict():
                self.hosts[boot].evict({int(p) for pages in told.pages.values() for p in pages})

    def _send(self, source: Boot, target: Boot, message: Any) -> None:
        if isinstance(message, Ticket) and target in self.hosts.keys() - self.begun.get(
            message.key, set()
        ):
            self.begun.setdefault(message.key, set()).add(target)
            self.hosts[target].begin(message)
        if target in self.hosts and isinstance(message, Abort):
            self.hosts[target].abort(message.key)
        if isinstance(message, Ended) and source in self.hosts and self.hosts[source].computes:
            self.hosts[source].abort(message.key)  # as the gateway's client of engines does
        super()._send(source, target, message)

    def step(self) -> bool:
        moved = super().step()
        for host in list(self.hosts.values()):
            moved |= host.step()
        return moved

    @property
    def at_rest(self) -> bool:
        """Whether no leader keeps anything, no rank, and no host a page."""
        return all(
            not node.leader.kept() and not node.rank.kept() and not node.leader.worker.rooms
            for node in self.nodes.values()
        ) and all(
            not host.requests and not host.uses and len(host.free) == host.pages
            for host in self.hosts.values()
        )
