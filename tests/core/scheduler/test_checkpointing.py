"""Checkpoints on a prefill worker or a unified one of a model with a window and a slot: what is
ordered, what a later prompt computes and offers, and what becomes of copies that fail."""

from collections import deque
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from tests.core.build import GREEDY, KV, B, drawn, key, limits, manifest, settings, ticket
from tests.core.driven import T0, Driven, report_of

from baton.core.agreement import Keep, StepPlan
from baton.core.effects import Issue, Send
from baton.core.events import GatewayConnected, MessageReceived, RankReported, TimerDue
from baton.core.handoff.fetch_back import FetchBack
from baton.core.handoff.plan import pair
from baton.core.ids import Boot, GroupName, Micros, Rank
from baton.core.marks import Mark
from baton.core.memory.checkpoints import kept_at_most, kept_bytes, kept_every
from baton.core.memory.host_ledger import state_bytes
from baton.core.memory.prefix_cache import page_hashes, root_hash
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    StateSpec,
    StateTable,
    Unit,
    Whole,
    Window,
    extent_blocks,
)
from baton.core.messages import (
    HASH_BYTES,
    Abort,
    Admitted,
    CacheChanged,
    Clear,
    Close,
    Failed,
    FirstToken,
    Hello,
    Lends,
    Offer,
    Received,
    Register,
    ResetCache,
)
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import (
    CancelRead,
    ClearPools,
    Compute,
    Connect,
    Digest,
    Discard,
    Load,
    Read,
    Save,
)
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.tables import PREFILL, UNIFIED, Table
from baton.core.work import (
    BatchDone,
    Connected,
    Copied,
    DigestDone,
    ReadEnded,
    ReadOutcome,
    Row,
    RowDone,
)

NOW, GATEWAY, PREFILL_BOOT, DECODE = Micros(1), Boot(1), Boot(2), Boot(4)
WINDOW, SLOT = GroupName("window"), GroupName("slot")
WIDTH, RANKS, PLENTY = 6, 2, 1 << 20
GROUPS = (
    Group(KV, Unit.PAGE, Full()),
    Group(WINDOW, Unit.PAGE, Window(WIDTH)),
    Group(SLOT, Unit.SLOT, Whole()),
)
SPECS = (
    StateSpec("kv", KV, (0, 1), ("k", "v"), 2, 4, DType.F32),
    StateSpec("swa", WINDOW, (1,), ("k", "v"), 2, 4, DType.F32),
    StateSpec("delta", SLOT, (0,), ("s",), 2, 8, DType.F32),
)
TABLE = StateTable(2, B, GROUPS, SPECS)


def worker(role: str, boot: int, *, tp: int, page_blocks: int, table: StateTable = TABLE) -> Any:
    one = manifest(role, boot)
    ranks = tuple(replace(one.ranks[0], boot=Boot(boot + r), rank=r, tp_rank=r) for r in range(tp))
    return replace(one, table=table, tp=tp, ranks=ranks, page_blocks=page_blocks)


class Bench:
    """A leader with two ranks. A block in a pool is one number, which stands for its bytes."""

    def __init__(
        self,
        *,
        role: str = "prefill",
        page_blocks: int = 1,
        host_bytes: int = PLENTY,
        pages: int = 24,
        table: StateTable = TABLE,
        keep_every: int = 512,
        fetch_back: FetchBack = FetchBack.NEVER,
        **changes: Any,
    ) -> None:
        self.role, self.decode = role, DECODE if role == "prefill" else PREFILL_BOOT
        self.manifest = worker(role, PREFILL_BOOT, tp=RANKS, page_blocks=page_blocks, table=table)
        totals = {g.name: pages if g.unit is Unit.PAGE else 6 for g in table.groups}
        limited = settings(prefix_cache=True, host_bytes=host_bytes, keep_every=keep_every)
        limited = msgspec.structs.replace(limited, pids=(1, 2), fetch_back=fetch_back, **changes)
        self.leader: Any = Driven(Leader(self.manifest, limited, totals))
        self.placements = [self.manifest.placement(r) for r in range(RANKS)]
        self.ranks = [
            RankCore(
                rank=Rank(r), boot=Boot(PREFILL_BOOT + r), placements=self.placements, seal=True
            )
            for r in range(RANKS)
        ]
        self.pools: list[dict[tuple[str, int], int]] = [{} for _ in range(RANKS)]
        self.stores: list[dict[Any, dict[str, list[int]]]] = [{} for _ in range(RANKS)]
        self.work: deque[tuple[int, Any]] = deque()  # of which rank, and what
        self.plans: list[StepPlan] = []
        self.sent: list[Any] = []
        self.rows: list[Row] = []
        self.host_bytes = host_bytes
        self.late: tuple[type, ...] = ()  # work that is done only if there is no other
        self.fails: Any = lambda rank, effect: ""  # why a copy fails
        self.written = 0
        self.leader.step(GatewayConnected(GATEWAY), NOW)
        if role != "prefill":
            return
        theirs = worker("decode", DECODE, tp=1, page_blocks=1, table=table)
        self.pair = pair(self.placements, [theirs.placement(0)])
        self.back = pair([theirs.placement(0)], self.placements)
        lends = Lends("shm", self.back.digest) if fetch_back is not FetchBack.NEVER else None
        self.hear(DECODE, Hello(theirs, self.pair.digest, lends))

    # ---- driving --------------------------------------------------------------------------------

    def hear(self, sender: Boot, message: Any) -> None:
        self.leader.step(MessageReceived(sender, message), NOW)
        self.perform()

    def perform(self) -> None:
        """Give plans to the ranks, and note the work that they order."""
        for effect in self.leader.effects():
            match effect:
                case Send(message=message):
                    self.sent.append(message)
                case Issue(plan=plan):
                    self.plans.append(plan)
                    for r, rank in enumerate(self.ranks):
                        self.work += [(r, e) for e in rank.step(plan, T0)]

    def run(self, *, until: type | None = None) -> None:
        """Until nothing moves, or until such work is to be done next."""
        for _ in range(500):
            self.report()
            if any(not isinstance(effect, self.late) for _, effect in self.work):
                while isinstance(self.work[0][1], self.late):
                    self.work.rotate(-1)
            if not self.work or (until is not None and isinstance(self.work[0][1], until)):
                return
            self.do(*self.work.popleft())
        raise AssertionError("it does not come to rest")

    def report(self) -> None:
        while sum(self._report(rank) for rank in self.ranks):
            self.leader.worker.ledger.audit()

    def _report(self, rank: RankCore) -> bool:
        found = report_of(rank)
        if found is not None:
            self.leader.step(RankReported(found), NOW)
            self.perform()
        return found is not None

    def do(self, r: int, effect: Any) -> None:
        pool, store = self.pools[r], self.stores[r]
        match effect:
            case Compute(batch=batch):
                self.rows += batch.rows if r == 0 else ()
                rows = tuple(self._compute(r, row) for row in batch.rows)
                self._step(r, BatchDone(batch.seq, rows))
            case Save(copy=copy) | Load(copy=copy) if why := self.fails(r, effect):
                self._step(r, Copied(copy.job, why))
            case Save(copy=copy):
                store[copy.key] = {
                    g: [pool[g, int(s)] for s in slots] for g, slots in copy.slots.items()
                }
                self._step(r, Copied(copy.job, ""))
            case Load(copy=copy):
                for g, slots in copy.slots.items():
                    kept = store[copy.key][g]
                    pool.update({(g, int(s)): k for s, k in zip(slots, kept, strict=True)})
                self._step(r, Copied(copy.job, ""))
            case Connect(peer=peer):
                self._step(r, Connected(peer, ""))
            case Read(handle=handle, copies=copies):
                self.read(r, copies)
                self._step(r, ReadEnded(handle, ReadOutcome.OK, ""))
            case CancelRead():
                pass  # it is done when its turn comes
            case Discard(key=name):
                store.pop(name, None)
            case Digest(order=order):
                sums = self._sums(r, order.group, order.slots)
                self._step(r, DigestDone(order.job, sums))
            case _:
                raise AssertionError(effect)

    def read(self, r: int, copies: Any) -> None:
        """What is read lands. Here it is what a source has whose blocks are all the same."""
        for copy in copies:
            size = self.placements[r].block_bytes(copy.group)
            for target in copy.target:
                self.pools[r][copy.group, int(target) // size] = 77

    def _step(self, r: int, event: Any) -> None:
        self.work += [(r, e) for e in self.ranks[r].step(event, T0)]

    def _slot(self, row: Row, group: GroupName, block: int) -> int:
        k = self.placements[0].blocks_per_page(group)
        at = block - row.begins.get(group, 0)
        return int(row.pages[group][at // k]) * k + at % k

    def _compute(self, r: int, row: Row) -> RowDone:
        """Write a new number into every block with a position of the row."""
        sums = {}
        for group in self.manifest.table.groups:
            b = B if group.unit is Unit.PAGE else row.start + len(row.tokens)
            for block in range(row.start // b, -(-(row.start + len(row.tokens)) // b)):
                self.written += 1
                self.pools[r][group.name, self._slot(row, group.name, block)] = self.written
        for g, (first, past) in row.final.items():
            sums[g] = self._sums(r, g, [self._slot(row, g, n) for n in range(first, past)])
        said = drawn(7) if row.draw is not None and r == 0 else None
        return RowDone(row.key, said, sums)

    def _sums(self, r: int, group: GroupName, slots: Any) -> np.ndarray:
        units = self.placements[r].unit_count(group)
        return np.array([[self.pools[r].get((group, int(s)), 0)] * units for s in slots], np.uint64)

    # ---- requests -------------------------------------------------------------------------------

    def ask(self, number: int, tokens: Any, *, answer: int = 4, salt: str = "") -> None:
        asked = ticket(number, prefill=PREFILL_BOOT, decode=self.decode)
        asked = replace(
            asked, prompt=tuple(tokens), limits=limits(answer), sampling=GREEDY, cache_salt=salt
        )
        self.hear(GATEWAY, asked)

    def serve(self, number: int, tokens: Any, **changes: Any) -> int:
        """A whole prompt; returns the position at which it was begun."""
        before = len(self.rows)
        self.ask(number, tokens, **changes)
        self.run()
        if self.role == "prefill":
            self.hear(DECODE, Admitted(key(number)))
            self.hear(DECODE, Received(key(number)))
            self.run()
        self.close(number)
        assert all(not rank.kept() for rank in self.ranks)
        assert self.leader.worker.ledger.clean
        return self.rows[before].start

    def close(self, number: int) -> None:
        """A request is over, and forgotten by everybody."""
        assert not self.leader.worker.rooms
        self.hear(GATEWAY, Close(key(number).room))
        assert not self.leader.kept()

    @property
    def marks(self) -> Any:
        return self.leader.worker.marks

    def orders(self, field: str) -> list[Any]:
        return [order for plan in self.plans for order in getattr(plan, field)]

    def offers(self, number: int) -> list[Offer]:
        return [m for m in self.sent if isinstance(m, Offer) and m.key == key(number)]


FIRST = tuple(range(100, 121))
NEXT = (*FIRST, *range(200, 213))


@pytest.mark.parametrize("page_blocks", [1, 2, 3])
def test_a_later_prompt_goes_on_where_the_earlier_one_ended(page_blocks: int) -> None:
    bench = Bench(page_blocks=page_blocks)
    assert bench.serve(1, FIRST) == 0
    assert bench.orders("keep") == [Keep(order=1, name=1, key=key(1), length=len(FIRST))]
    assert bench.serve(2, NEXT) == len(FIRST)
    (resume,) = bench.orders("resume")
    assert (resume.name, resume.key, resume.length) == (1, key(2), len(FIRST))
    assert bench.serve(3, (*NEXT, 5)) == len(NEXT), "the end of the second one was kept too"
    assert bench.serve(4, (*FIRST, 9, 9)) == len(FIRST)
    assert bench.marks[Mark.CHECKPOINT_KEPT] == 4
    assert bench.marks[Mark.CHECKPOINT_USED] == 3
    assert not bench.orders("vacate")


@pytest.mark.parametrize("page_blocks", [1, 2, 3])
@pytest.mark.parametrize("more", [1, 3, 13])
def test_every_block_is_offered_once_with_the_sum_that_it_has(page_blocks: int, more: int) -> None:
    bench = Bench(page_blocks=page_blocks)
    bench.serve(1, FIRST)
    length = len(FIRST) + more
    bench.ask(2, (*FIRST, *range(300, 300 + more)))
    assert not bench.offers(2), "while it resumes, nothing is offered, as it may wait anew"
    bench.run()
    first, *rest = bench.offers(2)
    assert not first.runs
    seen: dict[str, list[int]] = {}
    for offer in rest:
        for g, run in offer.runs.items():
            blocks = range(run.start, run.end)
            seen.setdefault(g, []).extend(blocks)
            k = bench.placements[0].blocks_per_page(g)
            at = [int(run.pages[n // k - run.start // k]) * k + n % k for n in blocks]
            of_group = [told for told in offer.sums if told.group == g]
            assert len(of_group) == RANKS
            for told in of_group:
                rank = bench.pair.legs[told.leg].source
                pool, units = bench.pools[rank], bench.placements[rank].unit_count(g)
                assert told.blocks == tuple(blocks)
                assert list(told.seals) == [pool[g, slot] * units for slot in at]
    for group in GROUPS:
        due = extent_blocks(group.extent, length, B)
        assert seen[group.name] == list(range(due.start, due.end))


def test_other_tokens_another_salt_or_no_token_to_compute_are_no_reason_to_resume() -> None:
    bench = Bench()
    bench.serve(1, FIRST)
    assert bench.serve(2, FIRST) == 0, "a token must be left"
    assert bench.serve(3, (*FIRST[:-1], 5, 5, 5)) == 0, "its last token is another one"
    assert bench.serve(4, NEXT, salt="another") == 0
    assert bench.serve(5, NEXT, salt="") == len(FIRST)


def test_a_prompt_that_computes_what_is_cached_already_is_kept_as_well() -> None:
    bench = Bench()
    bench.serve(1, FIRST)
    other = (*FIRST[:-1], 5, 5, 5)
    bench.serve(2, other)
    assert bench.serve(3, (*other, 6)) == len(other)
    assert bench.serve(4, NEXT) == len(FIRST), "each goes on from its own pages"


def test_a_prompt_that_comes_again_fills_the_cache_no_further() -> None:
    bench = Bench()
    for n in range(1, 5):
        assert bench.serve(n, FIRST) == 0
        assert bench.leader.worker.ledger.view()[KV]["cached"] == len(FIRST) // B
    assert len(bench.orders("keep")) == 1
    assert bench.serve(5, NEXT) == len(FIRST)


def test_a_request_that_ends_at_its_first_token_leaves_a_checkpoint_too() -> None:
    bench = Bench()
    bench.ask(1, FIRST, answer=1)
    bench.run()
    (plan,) = [plan for plan in bench.plans if plan.keep]
    assert plan.drop == (key(1),)
    bench.close(1)
    assert bench.serve(2, NEXT) == len(FIRST)


def test_gateways_are_told_where_prompts_have_ended_and_of_no_other_page() -> None:
    bench = Bench()
    (registered,) = [m for m in bench.sent if isinstance(m, Register)]
    assert not registered.caches, "a prompt has nothing of one that comes with it"
    bench.serve(1, FIRST)
    bench.serve(2, (*FIRST, 9))  # ends in the page after the same one
    bench.serve(3, NEXT)
    bench.leader.step(TimerDue(), 1_000_000)
    bench.perform()
    told = b"".join(m.entered for m in bench.sent if isinstance(m, CacheChanged))
    root = root_hash(bench.manifest.model, bench.manifest.weights, "")
    pages = page_hashes(root, NEXT, B)
    due = {pages[len(FIRST) // B - 1][:HASH_BYTES], pages[len(NEXT) // B - 1][:HASH_BYTES]}
    assert {told[n : n + HASH_BYTES] for n in range(0, len(told), HASH_BYTES)} == due
    bench.hear(GATEWAY, ResetCache(1))
    bench.serve(4, (1, 2, 3, 4, 5))
    bench.leader.step(TimerDue(), 2_000_000)
    bench.perform()
    left = b"".join(m.left for m in bench.sent if isinstance(m, CacheChanged))
    assert {left[n : n + HASH_BYTES] for n in range(0, len(left), HASH_BYTES)} == due


# ---- within a prompt ----------------------------------------------------------------------------

LONG = tuple(range(1000, 1077))
ROLES = pytest.mark.parametrize("role", ["prefill", "unified"])


@ROLES
@pytest.mark.parametrize("page_blocks", [1, 2, 3])
@pytest.mark.parametrize("common", [23, 24, 25, 50, 77])
def test_a_prompt_with_a_common_beginning_goes_on_within_the_earlier_one(
    role: str, page_blocks: int, common: int
) -> None:
    bench = Bench(role=role, page_blocks=page_blocks, pages=40, keep_every=24)
    every = 24
    assert bench.serve(1, LONG, answer=1) == 0
    assert [order.length for order in bench.orders("keep")] == [24, 48, 72, 77]
    assert [row.start for row in bench.rows] == [0, 24, 48, 72]
    other = (*LONG[:common], *range(50)) if common < len(LONG) else LONG
    known = (common if common < len(LONG) else len(LONG) - 1) // every * every
    assert bench.serve(2, other, answer=1) == known
    lengths = [order.length for order in bench.orders("keep")[4:]]
    due = [n for n in (24, 48, 72, 96) if known < n < len(other)]
    assert lengths == [*due, *([len(other)] if other != LONG else [])], "nothing is kept twice"
    assert bench.marks[Mark.PART_USED] == (known > 0)
    assert not bench.orders("vacate")


@ROLES
def test_no_chunk_changes_what_is_being_kept(role: str) -> None:
    bench = Bench(role=role, pages=40, keep_every=24)
    bench.late = (Save, Digest)
    bench.ask(1, LONG)
    for count in (1, 2, 3):
        bench.run(until=Save)
        assert [len(row.tokens) for row in bench.rows] == [24] * count
        bench.do(*bench.work.popleft())
        bench.run(until=Save)
        bench.do(*bench.work.popleft())
    bench.run()
    if role == "unified":
        bench.close(1)
        assert bench.serve(2, LONG[:50]) == 48


def test_a_prompt_that_is_kept_while_others_compute_holds_them_not_up() -> None:
    bench = Bench(role="unified", pages=40, keep_every=24)
    bench.late = (Save, Digest)
    bench.ask(1, LONG)
    bench.run(until=Save)
    before = len(bench.rows)
    bench.ask(2, FIRST[:3], answer=4)
    bench.run(until=Save)
    assert len(bench.rows) - before == 4


def test_one_prompt_does_not_fill_the_host_memory() -> None:
    each = max(kept_at_most(p) for p in Bench().placements)
    bench = Bench(pages=40, keep_every=8, host_bytes=12 * each)
    bench.serve(1, LONG)
    lengths = [order.length for order in bench.orders("keep")]
    assert lengths == [32, 64, 77], "there is space for three before the end"
    assert bench.serve(2, LONG[:33]) == 32
    assert bench.serve(3, (*LONG[:20], *range(20))) == 0
    assert [o.length for o in bench.orders("keep")[4:]] == [16, 32, 40], "a shorter one has more"


@pytest.mark.parametrize("least", [1, 40])
def test_within_a_prompt_it_takes_no_more_than_its_cached_pages(least: int) -> None:
    placements = Bench(page_blocks=2).placements
    page_tokens = 2 * B
    every = kept_every(placements, least)
    lasts = sum(p.block_bytes(KV) for p in placements) / B
    for n in range(1, 60):
        kept = sum(kept_bytes(p, n * page_tokens) for p in placements)
        assert kept <= lasts * every
    assert every % page_tokens == 0
    assert every >= least
    most = sum(kept_bytes(p, 60 * page_tokens) for p in placements)
    assert every == -(-max(least, most / lasts) // page_tokens) * page_tokens


# ---- where tokens are generated -----------------------------------------------------------------


def answer(count: int) -> tuple[int, ...]:
    """What is generated here."""
    return (7,) * count


@pytest.mark.parametrize("role", ["unified", "decode"])
@pytest.mark.parametrize("page_blocks", [1, 2, 3])
@pytest.mark.parametrize("tokens", [1, 2, 4, 5, 14])
def test_the_next_turn_goes_on_where_the_answer_ended(
    page_blocks: int, tokens: int, role: str
) -> None:
    """The last token of an answer is not computed. A decode worker computes its prompts here."""
    bench = Bench(role=role, page_blocks=page_blocks, local_prefill=role == "decode")
    assert bench.serve(1, FIRST, answer=tokens) == 0
    lengths = [order.length for order in bench.orders("keep")]
    ends = len(FIRST), len(FIRST) + tokens - 1
    assert lengths == sorted(set(ends))
    assert bench.serve(2, (*FIRST, *answer(tokens), 1, 2), answer=1) == ends[1]
    assert bench.serve(3, (*FIRST, *answer(tokens - 1), 9), answer=1) == ends[1]
    assert bench.serve(4, (*FIRST, 8), answer=1) == len(FIRST), "the end of the prompt"
    assert bench.marks[Mark.CHECKPOINT_USED] == 3
    assert bench.marks[Mark.ANSWER_USED] == (2 if tokens > 1 else 0)
    assert bench.marks[Mark.LOCAL_USED] == (3 if role == "decode" else 0)
    assert not bench.orders("vacate")


@pytest.mark.parametrize(
    ("local_prefill", "host_bytes"), [(True, 0), (False, PLENTY)], ids=["no memory", "not said"]
)
def test_decode_without_checkpoints_computes_all_of_a_prompt(
    local_prefill: bool, host_bytes: int
) -> None:
    """What lasts is cached there for prompts that are fetched; a prompt that it computes cannot go
    on from that alone."""
    bench = Bench(role="decode", local_prefill=local_prefill, host_bytes=host_bytes)
    assert bench.serve(1, FIRST) == 0
    assert bench.leader.worker.ledger.view()[KV]["cached"] > 0
    assert bench.serve(2, NEXT) == 0


@pytest.mark.parametrize("role", ["prefill", "unified", "decode"])
def test_pages_under_their_own_hashes_were_computed_above_each_other(role: str) -> None:
    """On decode a prompt that is fetched takes them one by one. What was beneath one of them must
    not be evicted while it is held."""
    bench = Bench(role=role, local_prefill=role == "decode")
    other = (*FIRST[: 2 * B], *range(400, 413))
    bench.serve(1, FIRST)
    assert bench.serve(2, other) == 0
    root = root_hash(bench.manifest.model, bench.manifest.weights, "")
    plain = {page for tokens in (FIRST, other) for page in page_hashes(root, tokens, B)}
    found = [entry.chain() for entry in bench.leader.worker.ledger.cache.live()]
    assert len(found) >= len(FIRST) // B + len(other) // B
    for chain in found:
        assert chain[-1].digest not in plain or all(one.digest in plain for one in chain)
    assert bench.serve(3, (*other, 5)) >= len(other)


@pytest.mark.parametrize("role", ["prefill", "unified", "decode"])
@pytest.mark.parametrize("local_prefill", [False, True])
@pytest.mark.parametrize("groups", [GROUPS, GROUPS[:1]], ids=["windows", "all lasts"])
def test_decode_says_whether_its_pools_have_room_for_chunks(
    role: str, local_prefill: bool, groups: tuple[Group, ...]
) -> None:
    names = {group.name for group in groups}
    table = StateTable(2, B, groups, tuple(s for s in SPECS if s.group in names))
    bench = Bench(role=role, local_prefill=local_prefill, table=table)
    bench.perform()
    (registered,) = [m for m in bench.sent if isinstance(m, Register)]
    room = local_prefill or len(groups) == 1
    assert registered.local_prefill == (room and role == "decode")


def test_no_step_changes_what_is_being_kept() -> None:
    """Copies and hashes are slower than steps here."""
    bench = Bench(role="unified")
    bench.late = (Save, Digest)
    bench.ask(1, FIRST)
    bench.run(until=Save)
    assert [len(row.tokens) for row in bench.rows] == [len(FIRST)]
    (told,) = [m for m in bench.sent if isinstance(m, FirstToken)]
    assert told.drawn.token == 7, "the client need not wait"
    bench.run()
    assert len(bench.rows) == 4
    bench.close(1)
    assert bench.serve(2, (*FIRST, 9)) == len(FIRST)
    assert bench.serve(3, (*FIRST, *answer(3), 9)) == len(FIRST) + 3


@pytest.mark.parametrize("length", [2, 5])
def test_what_follows_the_same_short_prompt_is_kept_if_it_has_no_page(length: int) -> None:
    """An answer that comes again is computed in pages of its own, and its end is known."""
    bench = Bench(role="unified")
    bench.serve(1, FIRST[:length], answer=8)
    bench.serve(2, FIRST[:length], answer=12)
    kept = [order.length for order in bench.orders("keep")]
    assert kept == ([9, 13] if length == 2 else [5, 12])
    assert bench.serve(3, (*FIRST[:length], *answer(12), 9)) == kept[-1]


def test_it_is_told_that_a_room_is_admitted_once_it_does_not_wait_anew() -> None:
    bench = Bench(role="unified")
    bench.serve(1, FIRST)
    bench.fails = lambda rank, effect: "no memory" if isinstance(effect, Load) else ""
    before = len(bench.sent)
    bench.ask(2, NEXT)
    bench.run(until=Load)
    assert not [m for m in bench.sent[before:] if isinstance(m, Admitted)]
    bench.run()
    assert [m.key for m in bench.sent[before:] if isinstance(m, Admitted)] == [key(2)]
    assert bench.rows[-4].start == 0


@pytest.mark.parametrize("where", [1, 2], ids=["end of the prompt", "end of the answer"])
def test_what_does_not_come_back_as_it_was_kept_is_computed(where: int) -> None:
    bench = Bench(role="unified")
    bench.serve(1, FIRST)
    bench.stores[1][where][SLOT][0] += 1
    more = (5,) if where == 1 else (*answer(4), 5)
    shorter = 0 if where == 1 else len(FIRST)
    assert bench.serve(2, (*FIRST, *more)) == shorter, "or it goes on from an earlier end"
    assert bench.marks[Mark.CHECKPOINT_UNUSABLE] == 1


def test_a_preempted_room_takes_the_place_of_checkpoints() -> None:
    table = StateTable(2, B, GROUPS[::2], SPECS[::2])
    size = max(state_bytes(p, 16) for p in Bench(table=table).placements)
    bench = Bench(role="unified", pages=8, host_bytes=size, table=table)
    bench.serve(1, tuple(range(500, 510)))
    assert bench.leader.worker.host.view()["used"] > 0
    bench.ask(2, tuple(range(100, 108)), answer=14)
    bench.ask(3, tuple(range(200, 208)), answer=14)
    bench.run()
    bench.hear(GATEWAY, Close(key(2).room))
    bench.close(3)
    assert bench.marks[Mark.OFFLOADED] == bench.marks[Mark.RESUMED] == 1
    assert bench.marks[Mark.CHECKPOINT_EVICTED] > 0
    assert not bench.marks[Mark.RECOMPUTE]


def test_state_that_is_away_gives_way_to_no_checkpoint() -> None:
    table = StateTable(2, B, GROUPS[::2], SPECS[::2])
    size = max(state_bytes(p, 16) for p in Bench(table=table).placements)
    bench = Bench(role="unified", pages=8, host_bytes=size, table=table)
    bench.ask(2, tuple(range(100, 108)), answer=14)
    bench.ask(3, tuple(range(200, 208)), answer=14)
    bench.run()
    bench.hear(GATEWAY, Close(key(2).room))
    bench.close(3)
    assert bench.marks[Mark.OFFLOADED] == bench.marks[Mark.RESUMED] == 1
    assert bench.marks[Mark.CHECKPOINT_NOT_KEPT] > 0


# ---- what fails ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page_blocks", [1, 2])
@pytest.mark.parametrize("how", ["one rank", "all ranks", "damage"])
def test_what_does_not_come_back_is_computed(page_blocks: int, how: str) -> None:
    bench = Bench(page_blocks=page_blocks)
    bench.serve(1, FIRST)
    if how == "damage":
        kept = bench.stores[1][1]
        kept[WINDOW][-1] += 1
    else:
        bench.fails = lambda rank, effect: (
            "no memory" if isinstance(effect, Load) and rank >= (how == "one rank") else ""
        )
    assert bench.serve(2, NEXT) == 0
    assert bench.orders("vacate") == [key(2)]
    assert bench.orders("forget") == [1]
    assert [set(store) for store in bench.stores] == [{2}, {2}]
    assert bench.marks[Mark.CHECKPOINT_UNUSABLE] == 1
    assert not any(isinstance(m, Failed) for m in bench.sent), "it costs speed alone"
    bench.fails = lambda rank, effect: ""
    assert bench.serve(3, (*NEXT, 1)) == len(NEXT)


def test_what_one_rank_could_not_keep_is_kept_by_none() -> None:
    bench = Bench()
    bench.fails = lambda rank, effect: "no memory" if rank else ""
    bench.serve(1, FIRST)
    assert bench.stores == [{}, {}]
    assert bench.serve(2, NEXT) == 0


def test_a_room_that_ends_while_it_resumes_is_quiet_when_nothing_is_copied_any_more() -> None:
    bench = Bench()
    bench.serve(1, FIRST)
    bench.ask(2, NEXT)
    bench.run(until=Load)
    bench.hear(GATEWAY, Abort(key(2), "gone"))
    bench.report()
    assert bench.leader.worker.rooms, "its pages are still copied into"
    bench.run()
    bench.close(2)
    assert bench.serve(3, NEXT) == len(FIRST), "the checkpoint is as good as before"


@pytest.mark.parametrize("role", ["prefill", "unified"])
def test_a_room_that_ends_while_it_is_kept_leaves_its_checkpoint(role: str) -> None:
    bench = Bench(role=role)
    bench.ask(1, FIRST)
    bench.run(until=Save)
    bench.hear(GATEWAY, Abort(key(1), "gone"))
    bench.report()
    assert bench.leader.worker.rooms, "its pages are still copied"
    bench.run()
    bench.close(1)
    assert bench.serve(2, NEXT) == len(FIRST)


# ---- space --------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_gives_way() -> None:
    prompts = {n: tuple(range(1000 * n, 1000 * n + 9)) for n in range(1, 5)}
    one = max(kept_bytes(p, 9) for p in Bench().placements)
    longer = max(kept_bytes(p, 10) for p in Bench().placements)
    bench = Bench(host_bytes=2 * max(one, longer))
    bench.serve(1, prompts[1])
    bench.serve(2, prompts[2])
    assert bench.serve(3, (*prompts[1], 1)) == 9  # keeps its own end in place of the second's
    assert bench.orders("forget") == [2]
    (plan,) = [plan for plan in bench.plans if plan.forget]
    assert plan.keep, "the space is free when it is taken"
    assert bench.serve(4, (*prompts[2], 1)) == 0
    assert bench.leader.worker.ledger.clean
    for store in bench.stores:
        assert len(store) == 2


def test_a_prompt_whose_end_never_fits_drives_no_other_out() -> None:
    # on a page border nothing but window and slot is kept
    bench = Bench(host_bytes=max(kept_bytes(p, 12) for p in Bench().placements))
    short, long = tuple(range(12)), tuple(range(500, 519))
    assert max(kept_bytes(p, len(long)) for p in bench.placements) > bench.host_bytes
    bench.serve(1, short)
    bench.serve(2, long)
    assert bench.marks[Mark.CHECKPOINT_NOT_KEPT] == 1
    assert bench.serve(3, (*short, 7)) == len(short)


def test_a_prompt_whose_end_does_not_fit_is_not_kept() -> None:
    bench = Bench(host_bytes=1)
    bench.serve(1, FIRST)
    assert not bench.orders("keep")
    assert bench.marks[Mark.CHECKPOINT_NOT_KEPT] == 1


@pytest.mark.parametrize("role", ["prefill", "unified"])
@pytest.mark.parametrize("message", [ResetCache, Clear])
def test_what_is_kept_of_pages_that_are_forgotten_leaves_host_memory_at_once(
    role: str, message: type
) -> None:
    """No room comes that would have it looked through."""
    bench = Bench(role=role)
    bench.serve(1, FIRST)
    assert bench.leader.worker.host.view()["used"] > 0
    bench.hear(GATEWAY, message(1))
    bench.work = deque(item for item in bench.work if not isinstance(item[1], ClearPools))
    bench.run()
    assert bench.leader.worker.host.view()["used"] == 0
    assert bench.stores == [{}, {}]


def test_a_checkpoint_goes_with_its_cached_pages() -> None:
    bench = Bench()
    bench.serve(1, FIRST)
    bench.hear(GATEWAY, ResetCache(1))
    assert bench.serve(2, NEXT) == 0
    assert bench.orders("forget") == [1]
    bench = Bench(pages=12)
    bench.serve(1, FIRST)
    bench.serve(2, tuple(range(500, 546)))  # takes all pages
    assert bench.serve(3, NEXT) == 0
    assert 1 in bench.orders("forget")


@pytest.mark.parametrize(
    ("host_bytes", "groups"), [(0, GROUPS), (PLENTY, GROUPS[:1])], ids=["no memory", "all lasts"]
)
def test_nothing_is_kept_where_there_is_no_memory_or_no_need(
    host_bytes: int, groups: tuple[Group, ...]
) -> None:
    names = {group.name for group in groups}
    table = StateTable(2, B, groups, tuple(s for s in SPECS if s.group in names))
    bench = Bench(host_bytes=host_bytes, table=table)
    assert not bench.leader.worker.reuse.keeps
    assert bench.leader.worker.reuse.on == table.cacheable


# ---- table --------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [PREFILL, UNIFIED])
def test_the_table_of_resuming_is_exactly_this(table: Table) -> None:
    found = {(s, saw): to for (s, saw), to in table.items() if s is RoomState.RESUMING}
    asks = {(RoomState.RESUMING, Saw.ASKED): RoomState.BORROWING} if table is PREFILL else {}
    assert found == asks | {
        (RoomState.RESUMING, Saw.RESUMED): RoomState.COMPUTING,
        (RoomState.RESUMING, Saw.NOT_RESUMED): RoomState.QUEUED,
        (RoomState.RESUMING, Saw.END): RoomState.ENDING,
    }, "nobody knows of it, so decode cannot have admitted it"
