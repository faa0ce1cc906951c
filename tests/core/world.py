"""Front, leaders and ranks joined in one process without clocks, sockets or threads.

The engine's state is a pure function of (spec, head, layer, part, position, token), and a drawn
token hashes every byte of its context: a misplaced, stale or missing row shows as a wrong token.
`expected` computes the same tokens without pages, placements or handoff.
"""

from collections import deque
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
from tests.core.build import KV, manifest, settings
from tests.core.driven import T0, Driven, DrivenFront, report_of

from baton.core.door import Cancel, Heard, RequestId, Submit
from baton.core.effects import AskDelivery, Dial, Evict, GuestNews, HangUp, Issue, Send, TellEngine
from baton.core.events import (
    Delivered,
    GatewayConnected,
    MessageReceived,
    PeerConnected,
    PeerLost,
    RankReported,
    TimerDue,
)
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings, Say
from baton.core.handoff.seal import block_sums
from baton.core.ids import Boot, Key, Micros, Rank, TokenId
from baton.core.memory.state import Placement
from baton.core.messages import Drawn
from baton.core.prompt_scores import PromptScores, TokenScore, pack_scores
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import (
    CancelRead,
    ClearPools,
    Compute,
    Connect,
    ConstrainDraws,
    Digest,
    Discard,
    Load,
    Read,
    Save,
)
from baton.core.scheduler.leader import Leader
from baton.core.work import (
    Batch,
    BatchDone,
    Connected,
    Copied,
    DigestDone,
    Done,
    GrammarReady,
    HostCopy,
    ReadEnded,
    ReadOutcome,
    RowDone,
)

VOCAB = 1000
IDENTITY = 77


def row_bytes(
    spec: str, head: int, layer: int, part: str, position: int, token: int, nbytes: int
) -> bytes:
    """The state of one row."""
    seed = f"{spec}/{head}/{layer}/{part}/{position}/{token}".encode()
    return blake2b(seed, digest_size=16).digest() * (nbytes // 16)


def guess(index: int) -> int:
    """What a draft layer takes for generated token `index`."""
    return index % VOCAB


def draw(context: bytes, index: int) -> int:
    """The next token."""
    return (
        int.from_bytes(
            blake2b(context + index.to_bytes(4, "little"), digest_size=4).digest(), "little"
        )
        % VOCAB
    )


def expected(prompt: tuple[int, ...], count: int) -> list[int]:
    """The tokens a right system generates."""
    tokens, said = list(prompt), []
    for index in range(count):
        context = b"".join(
            row_bytes("kv", h, layer, part, p, t, 16)
            for h in range(2)
            for layer in range(2)
            for part in "kv"
            for p, t in enumerate(tokens)
        )
        said.append(draw(context, index))
        tokens.append(said[-1])
    return said


def scores(tokens: tuple[int, ...], top: int) -> PromptScores:
    """Of all tokens but the first: no two tokens of a test have the same."""
    each = [TokenScore(-float(t), t, tuple((t + i, -1.0 - i) for i in range(top))) for t in tokens]
    return pack_scores(top, each[1:])


def _score(row: Any) -> PromptScores | None:
    if row.score is None:
        return None
    following = () if row.score.next is None else (row.score.next,)
    return scores((*row.tokens, *following), row.score.top)


class FakeEngine:
    """One rank's state as bytes; every call is answered at the next poll."""

    def __init__(self, placement: Placement, pages: int) -> None:
        self.placement = placement
        # never zero: stale bytes show
        self.pool = np.full(pages * placement.page_bytes(KV), 0xEE, dtype=np.uint8)
        self.done: deque[Done] = deque()
        self.unbuilt: list[Key] | None = None  # if not None, grammars are not built, but noted here

    def _at(self, pages: np.ndarray, head: int, layer: int, part: int, position: int) -> slice:
        place = self.placement.places["kv"]
        k, b = self.placement.page_blocks, self.placement.table.block_tokens
        block, token = position // b, position % b
        base = (int(pages[block // k]) * k + block % k) * self.placement.block_bytes(
            KV
        ) + place.offset
        start = (
            base + head * place.head_stride + layer * place.layer_stride + part * place.part_stride
        )
        return slice(start + token * place.row_bytes, start + (token + 1) * place.row_bytes)

    def compute(self, batch: Batch) -> None:
        rows = []
        for row in batch.rows:
            pages = row.pages[KV]
            for i, token in enumerate(row.tokens):
                for h in range(2):
                    for layer in range(2):
                        for n, part in enumerate("kv"):
                            where = self._at(pages, h, layer, n, row.start + i)
                            data = row_bytes("kv", h, layer, part, row.start + i, token, 16)
                            self.pool[where] = np.frombuffer(data, dtype=np.uint8)
            sums = {
                g: self._seal(pages, first, past, row.valid)
                for g, (first, past) in row.final.items()
            }
            drawn, more = self._draws(row, pages)
            last = row.draw.index + len(more) if drawn is not None else 0
            drafts = tuple(TokenId(guess(last + 1 + n)) for n in range(row.drafts))
            done = RowDone(row.key, drawn, sums, scores=_score(row), more=more, drafts=drafts)
            rows.append(done)
        self.done.append(BatchDone(batch.seq, tuple(rows)))

    def _draws(self, row: Any, pages: np.ndarray) -> tuple[Drawn | None, tuple[Drawn, ...]]:
        """The token after the row, or those after its drafts, as long as these are right."""
        found: list[Drawn] = []
        past = row.start + len(row.tokens)
        for n, order in enumerate(row.draws):
            end = past - len(row.draws) + 1 + n
            found.append(self._draw(pages, end, order.index))
            if end < past and found[-1].token != row.tokens[end - row.start]:
                break
        return (found[0], tuple(found[1:])) if found else (None, ())

    def _draw(self, pages: np.ndarray, past: int, index: int) -> Drawn:
        context = b"".join(
            self.pool[self._at(pages, h, layer, part, p)].tobytes()
            for h in range(2)
            for layer in range(2)
            for part in range(2)
            for p in range(past)
        )
        return Drawn(TokenId(draw(context, index)), None, ())

    def _seal(self, pages: np.ndarray, first: int, past: int, valid: int) -> np.ndarray:
        b = self.placement.table.block_tokens
        for position in range(valid, past * b):
            for h in range(2):
                for layer in range(2):
                    for part in range(2):
                        self.pool[self._at(pages, h, layer, part, position)] = 0
        k = self.placement.page_blocks
        numbers = np.arange(first, past, dtype=np.int64)
        slots = pages.astype(np.int64)[numbers // k] * k + numbers % k
        return block_sums(self.pool, self.placement, KV, slots, numbers, IDENTITY)

    def constrain(self, key: Key) -> None:
        if self.unbuilt is None:
            self.done.append(GrammarReady(key))
        else:
            self.unbuilt.append(key)

    def build(self) -> None:
        """What was not built is built now."""
        keys, self.unbuilt = self.unbuilt or [], None
        self.done.extend(map(GrammarReady, keys))

    def digest(self, order: Any) -> None:
        sums = block_sums(
            self.pool, self.placement, order.group, order.slots, order.numbers, IDENTITY
        )
        self.done.append(DigestDone(order.job, sums))


class Node:
    """A worker: leader, rank, engine."""

    def __init__(self, leader: Any, engine: FakeEngine) -> None:
        self.leader, self.engine = leader, engine
        boot = leader.worker.manifest.boot
        self.rank = RankCore(
            rank=Rank(0), boot=boot, placements=[engine.placement], seal=leader.worker.manifest.seal
        )
        self.reads: dict[int, Read] = {}
        self.ends: deque[ReadEnded] = deque()
        self.host: dict[Key, np.ndarray] = {}
        self.copies: deque[tuple[HostCopy, bool]] = deque()  # ordered; whether back into the pool

    def copy(self, order: HostCopy, *, back: bool) -> None:
        """What a host store does."""
        blocks = self.engine.pool.reshape(-1, self.engine.placement.block_bytes(KV))
        if back:
            blocks[order.slots[KV]] = self.host[order.key]
        else:
            self.host[order.key] = blocks[order.slots[KV]]


class World:
    """Everything; `run` until nothing moves."""

    GATEWAY = Boot(1)

    def __init__(self, **front: int) -> None:
        self.front: Any = DrivenFront(Front(self.GATEWAY, FrontSettings(**front)))
        self.nodes: dict[Boot, Node] = {}
        self.queues: dict[tuple[Boot, Boot], deque[Any]] = {}
        self.heard: dict[RequestId, list[Heard]] = {}
        self.now = Micros(0)
        self.log: list[tuple[Boot, Boot, Any]] = []
        self.held: list[tuple[Boot, Boot, Any]] = []
        self.hold: Callable[[Boot, Boot, Any], bool] = lambda source, target, message: False
        self.on_landed: Callable[[Read, Node], ReadOutcome] = lambda read, node: ReadOutcome.OK
        self.freeze_reads = False
        self.freeze_copies = False
        self.on_copied: Callable[[HostCopy, bool, Node], str] = lambda copy, back, node: ""

    def add(
        self, role: str, boot: int, *, pages: int = 16, page_blocks: int = 1, **limits: float
    ) -> Node:
        """A worker joins."""
        m = manifest(role, boot, pages=pages, page_blocks=page_blocks)
        engine, s, totals = (
            FakeEngine(m.placement(0), pages),
            settings(f"{role}-{boot}", **limits),
            {KV: pages},
        )
        make: Mapping[str, Callable[[], Leader]] = {
            "prefill": lambda: Leader(m, s, totals),
            "decode": lambda: Leader(m, s, totals),
            "unified": lambda: Leader(m, s, totals),
        }
        node = self.nodes[Boot(boot)] = Node(Driven(make[role]()), engine)
        node.leader.step(GatewayConnected(self.GATEWAY), self.now)
        return node

    def submit(self, request: Submit) -> None:
        """A client asks."""
        self.heard[request.request] = []
        self.front.submit(request, self.now)

    def cancel(self, number: int) -> None:
        """A client goes."""
        self.front.step(Cancel(RequestId(number), "gone"), self.now)

    def lose(self, boot: int, *, at: int | None = None) -> None:
        """A worker dies, or only the session between two processes ends (`at`)."""
        if at is not None:
            self.nodes[Boot(at)].leader.step(PeerLost(Boot(boot), "cut"), self.now)
            return
        del self.nodes[Boot(boot)]
        self.queues = {pair: q for pair, q in self.queues.items() if boot not in pair}
        self.front.step(PeerLost(Boot(boot), "dead"), self.now)
        for node in self.nodes.values():
            node.leader.step(PeerLost(Boot(boot), "dead"), self.now)

    def tokens(self, number: int = 1) -> list[int]:
        """What a client has seen."""
        return [d.token for h in self.heard[RequestId(number)] for d in getattr(h, "drawn", ())]

    def end(self, number: int = 1) -> Heard | None:
        """How a request ended."""
        last = self.heard[RequestId(number)][-1:] or [None]
        return None if last[0] is None or hasattr(last[0], "drawn") else last[0]

    @property
    def clean(self) -> bool:
        """Whether nobody holds anything."""
        for node in self.nodes.values():
            node.leader.worker.ledger.audit()
        return all(
            n.leader.worker.ledger.clean
            and not n.leader.worker.rooms
            and not n.reads
            and not n.host
            for n in self.nodes.values()
        )

    def run(self, steps: int = 10_000) -> None:
        """Until nothing moves."""
        for _ in range(steps):
            if not self.step():
                return
        raise AssertionError(f"still moving after {steps} steps")

    def advance(self, millis: int) -> None:
        """Time passes: every timer that is due fires, then everything comes to rest."""
        until = Micros(self.now + millis * 1000)
        while True:
            self.run()
            timers = [
                t
                for t in (
                    self.front.next_wake(),
                    *(n.leader.next_wake() for n in self.nodes.values()),
                )
                if t is not None
            ]
            soonest = min(timers, default=None)
            if soonest is None or soonest > until:
                break
            self.now = Micros(max(self.now, soonest))
            self._fire()
        self.now = until
        self.run()

    def _fire(self) -> None:
        for node in list(self.nodes.values()):
            timer = node.leader.next_wake()
            if timer is not None and timer <= self.now:
                node.leader.step(TimerDue(), self.now)
        timer = self.front.next_wake()
        if timer is not None and timer <= self.now:
            self.front.step(TimerDue(), self.now)

    def step(self) -> bool:
        """One round of everything; whether anything moved."""
        moved = self._front_effects()
        for boot, node in list(self.nodes.items()):
            moved |= self._node(boot, node)
        for (source, target), queue in list(self.queues.items()):
            if queue:
                moved = True
                self._deliver(source, target, queue.popleft())
        return moved

    def release(self) -> None:
        """Deliver what was held back."""
        held, self.held, self.hold = self.held, [], lambda source, target, message: False
        for source, target, message in held:
            self._send(source, target, message)

    def _front_effects(self) -> bool:
        effects = self.front.effects()
        for effect in effects:
            if isinstance(effect, Say):
                self.heard[effect.heard.request].append(effect.heard)
            else:
                self._send(self.GATEWAY, effect.to, effect.message)
        return bool(effects)

    def _send(self, source: Boot, target: Boot, message: Any) -> None:
        self.log.append((source, target, message))
        if self.hold(source, target, message):
            self.held.append((source, target, message))
        elif target == self.GATEWAY or target in self.nodes:
            self.queues.setdefault((source, target), deque()).append(message)

    def _deliver(self, source: Boot, target: Boot, message: Any) -> None:
        if isinstance(message, AskDelivery):
            self.nodes[source].leader.step(Delivered(target), self.now)
        elif target == self.GATEWAY:
            self.front.step(MessageReceived(source, message), self.now)
        elif target in self.nodes:
            self.nodes[target].leader.step(MessageReceived(source, message), self.now)

    def _node(self, boot: Boot, node: Node) -> bool:
        moved = False
        while node.engine.done:
            moved, done = True, node.engine.done.popleft()
            self._perform(node, node.rank.step(done, T0))
        if not self.freeze_reads:
            for handle, read in list(node.reads.items()):
                moved = True
                self._land(node, handle, read)
        while node.copies and not self.freeze_copies:
            moved, (copy, back) = True, node.copies.popleft()
            node.copy(copy, back=back)
            self._perform(
                node, node.rank.step(Copied(copy.job, self.on_copied(copy, back, node)), T0)
            )
        while node.ends:
            moved = True
            self._perform(node, node.rank.step(node.ends.popleft(), T0))
        report = report_of(node.rank)
        if report is not None:
            moved = True
            node.leader.step(RankReported(report), self.now)
        for effect in node.leader.effects():
            moved = True
            match effect:
                case Send():
                    self._send(boot, effect.to, effect.message)
                case AskDelivery():  # it comes after all that was sent before
                    self._send(boot, effect.to, effect)
                case Issue():
                    self._perform(node, node.rank.step(effect.plan, T0))
                case Dial():
                    node.leader.step(PeerConnected(effect.boot), self.now)
                case HangUp():
                    pass
                case TellEngine() | Evict():
                    self._tell(boot, effect)
        self._looks_right(node.leader)
        return moved

    def _tell(self, boot: Boot, told: GuestNews) -> None:
        raise AssertionError(f"worker {boot} is nobody's guest")

    @staticmethod
    def _looks_right(leader: Leader) -> None:
        """What a leader keeps so that it need not look at all of its rooms is what looking at them
        gives."""
        standing = {
            key: state for state, rooms in leader.worker.rooms._standing.items() for key in rooms
        }
        assert standing == {key: room.state for key, room in leader.worker.rooms.items()}
        assert leader.next_wake() == leader._next_due()

    def _land(self, node: Node, handle: int, read: Read) -> None:
        del node.reads[handle]
        source = self.nodes.get(read.peer.worker)
        if source is None:
            node.ends.append(ReadEnded(read.handle, ReadOutcome.FAILED, "the source is dead"))
            return
        for copies in read.copies:
            for s, t, n in zip(copies.source, copies.target, copies.nbytes, strict=True):
                node.engine.pool[t : t + n] = source.engine.pool[s : s + n]
        node.ends.append(ReadEnded(read.handle, self.on_landed(read, node), "as told"))

    def _perform(self, node: Node, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Connect():
                    node.rank.step(Connected(effect.peer, ""), T0)
                case Read():
                    node.reads[effect.handle] = effect
                case CancelRead():
                    if node.reads.pop(effect.handle, None) is not None:
                        node.ends.append(ReadEnded(effect.handle, ReadOutcome.FAILED, "cancelled"))
                case Compute():
                    node.engine.compute(effect.batch)
                case ConstrainDraws():
                    node.engine.constrain(effect.key)
                case ClearPools():
                    node.engine.pool[:] = 0
                case Digest():
                    node.engine.digest(effect.order)
                case Save():
                    node.copies.append((effect.copy, False))
                case Load():
                    node.copies.append((effect.copy, True))
                case Discard():
                    del node.host[effect.key]
