"""The checkers themselves: every invariant on a bad history made by hand, and not on the good one
beside it."""

from types import SimpleNamespace

import msgspec
import numpy as np
import pytest

from baton.core.agreement import Fetch, Hold, Keep, Offload, Restore, RowOrder, StepPlan
from baton.core.door import Emit, Fail, Finish, RequestId, Submit
from baton.core.effects import Issue, Send
from baton.core.handoff.seal import block_sums
from baton.core.ids import (
    Boot,
    CheckpointName,
    Epoch,
    GroupName,
    Key,
    Page,
    Rank,
    RankId,
    Room,
    Seq,
    Stamp,
    TokenId,
    TokenIndex,
)
from baton.core.manifest import Manifest, PoolView, RankManifest
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
)
from baton.core.messages import (
    Abort,
    BlockRun,
    Drawn,
    FailCode,
    Failed,
    FinishReason,
    FirstToken,
    Intactness,
    Limits,
    Offer,
    PromptLogprobs,
    Received,
    Sampling,
    Shaping,
    Ticket,
    Tokens,
    Verdict,
    Withdrawn,
)
from baton.core.protocol import PROTOCOL
from baton.core.work import Batch, DigestOrder, HostCopy, Job, Row
from baton.dev.sim import content
from baton.dev.sim.books import READS, PlanBook, ShadowBooks
from baton.dev.sim.clients import Client, Oracle, right_answer, right_scores
from baton.dev.sim.collective import Collective
from baton.dev.sim.costs import Costs
from baton.dev.sim.endings import Endings
from baton.dev.sim.engine import SimEngine
from baton.dev.sim.excuses import EVERYBODY, EXCUSES, InjectedFault, excuse, worker_of
from baton.dev.sim.handoffs import Handoffs
from baton.dev.sim.heap import Heap
from baton.dev.sim.host_store import SimHostStore
from baton.dev.sim.loans import Loans
from baton.dev.sim.memory import SimPool
from baton.dev.sim.pressure import OVERTAKES, URGENT_OVERTAKES, Pressure
from baton.dev.sim.process import Process, SkewedClock
from baton.dev.sim.replicas import Replicas
from baton.dev.sim.settings import Faults
from baton.dev.sim.sharing import Sharing
from baton.dev.sim.sums import Sums
from baton.dev.sim.tape import Tape
from baton.dev.sim.work import Work

FULL, SLOT = GroupName("full"), GroupName("slot")
TABLE = StateTable(
    1,
    4,
    (Group(FULL, Unit.PAGE, Full()), Group(SLOT, Unit.SLOT, Whole())),
    (
        StateSpec("kv", FULL, (0,), ("k", "v"), 1, 4, DType.F32),
        StateSpec("s", SLOT, (0,), ("s",), 1, 8, DType.F32),
    ),
)
PLACEMENT = Placement(TABLE, 1, 1, 0, 0, 1)
PAGE = PLACEMENT.page_bytes(FULL)
PROMPT = tuple(TokenId(t) for t in (5, 9, 2, 11, 30))
SAMPLING = Sampling(0.0, 1.0, 0, 3, None)
LIMITS = Limits(4, (), (), 1000)
PREFILL, DECODE, GATEWAY = Boot(1), Boot(2), Boot(3)
PEER = RankId(PREFILL, PREFILL, Rank(0))


class Broken(Exception):
    pass


def violate(invariant, detail):
    raise Broken(invariant)


def breaks(invariant):
    return pytest.raises(Broken, match=f"^{invariant}$")


def key(number=1, epoch=1):
    return Key(Room(f"{number:032x}"), Epoch(epoch))


def plan(seq, **fields):
    return StepPlan(seq=Seq(seq), **fields)


def hold(k, full, slot=(0,)):
    return Hold(k, {FULL: tuple(map(Page, full)), SLOT: tuple(map(Page, slot))})


# ---- memory of a rank ----------------------------------------------------------------------------


class Engine:
    """As much of an engine as the books look at."""

    def __init__(self, wrong=""):
        self.computing, self.digesting, self.wrong, self.given_pages = {}, {}, wrong, []

    def given(self, group, page):
        self.given_pages.append((group, page))

    def differs(self, k, pages, passed):
        return self.wrong


def books(engine=None):
    found = ShadowBooks("decode-0/0", PLACEMENT, violate)
    found.engine = engine
    found.applied(plan(1, hold=(hold(key(1), (0, 1)),)))
    return found


def into(page, group=FULL, nbytes=PAGE):
    return [(group, 0, page * PAGE, nbytes)]


def test_a_page_is_given_to_another_room_only_after_its_own_was_dropped():
    found = books()
    found.applied(plan(2, drop=(key(1),), hold=(hold(key(2), (0,)),)))
    assert (FULL, 0) in found.owned()
    with breaks("one_owner"):
        found.applied(plan(3, hold=(hold(key(3), (0,), ()),)))


def test_a_page_is_given_away_only_when_our_reads_into_it_are_quiet():
    found = books()
    found.read_began(7, PEER, into(1))
    found.applied(plan(2, drop=(key(1),), hold=(hold(key(2), (0,)),)))
    with breaks("own_reads_ended"):
        found.applied(plan(3, hold=(hold(key(2), (1,), ()),)))
    found = books()
    found.read_began(7, PEER, into(1))
    found.read_quiet(7)
    found.applied(plan(2, drop=(key(1),), hold=(hold(key(2), (0, 1)),)))


def test_a_page_is_given_away_only_when_nothing_computes_or_hashes_it():
    batch = SimpleNamespace(rows=(SimpleNamespace(pages={FULL: np.array([1], dtype=np.int32)}),))
    for page, invariant in ((0, None), (1, "own_compute_ended")):
        engine = Engine()
        found = books(engine)
        engine.computing[1] = batch
        given = plan(2, drop=(key(1),), hold=(hold(key(2), (page,), ()),))
        if invariant is None:
            found.applied(given)
        else:
            with breaks(invariant):
                found.applied(given)
    engine = Engine()
    found = books(engine)
    engine.digesting[Job(1)] = DigestOrder(Job(1), FULL, np.array([1]), np.array([0]))
    found.applied(plan(2, drop=(key(1),), hold=(hold(key(2), (0,), ()),)))
    with breaks("own_digest_ended"):
        found.applied(plan(3, hold=(hold(key(2), (1,), ()),)))


def test_a_page_is_given_away_only_when_nothing_copies_it():
    found = books(Engine())
    found.store = SimpleNamespace(
        under_way={1: HostCopy(Job(1), key(1), {FULL: np.array([1])})}, saving={key(1)}
    )
    found.applied(plan(2, drop=(key(1),), hold=(hold(key(2), (0,), ()),)))
    with breaks("own_copy_ended"):
        found.applied(plan(3, hold=(hold(key(2), (1,), ()),)))


def test_a_room_of_which_a_part_is_being_kept_computes_nothing():
    found = books()
    found.store = SimpleNamespace(under_way={}, saving={CheckpointName(1)})
    found.applied(plan(2, keep=(Keep(1, CheckpointName(1), key(1), 4, seal=True),)))
    found.applied(plan(3, batch=(row(key(2), 0),)))
    with breaks("right_resume"):
        found.applied(plan(4, batch=(row(key(1), 4),)))
    found.store.saving.clear()
    found.applied(plan(5, batch=(row(key(1), 4),)))
    keep = Keep(2, CheckpointName(2), key(1), 5, seal=True)
    with breaks("right_resume"):  # a row does not wait for the copy of the same plan
        found.applied(plan(6, keep=(keep,), batch=(row(key(1), 5),)))


class Pools(Engine):
    """As much of an engine as a state is compared in: pages filled with their own number."""

    def __init__(self):
        super().__init__()
        self.sim_pools = {
            g: SimpleNamespace(data=np.zeros(8 * PLACEMENT.page_bytes(g), np.uint8))
            for g in (FULL, SLOT)
        }
        self.world = SimpleNamespace(tainted=set())

    def fill(self, group, page, value):
        size = PLACEMENT.page_bytes(group)
        self.sim_pools[group].data[page * size : (page + 1) * size] = value


def row(k, start):
    return RowOrder(k, start, (TokenId(1),), {}, start + 1, None, TokenIndex(0))


@pytest.mark.parametrize("spoiled", [None, FULL, SLOT])
def test_a_room_that_was_away_has_the_same_bytes_of_every_kind(spoiled):
    engine = Pools()
    for group, page, value in (
        (FULL, 0, 11),
        (FULL, 1, 12),
        (SLOT, 0, 13),
        (FULL, 4, 11),
        (FULL, 5, 12),
        (SLOT, 3, 13),
    ):
        engine.fill(group, page, value)
    found = books(engine)
    found.applied(plan(2, offload=(Offload(1, key(1), 7),)))
    for group, page in ((FULL, 0), (FULL, 1), (SLOT, 0)):
        engine.fill(group, page, 99)
    found.applied(plan(3, vacate=(key(1),), hold=(hold(key(2), (0, 1)),)))
    found.applied(plan(4, hold=(hold(key(1), (4, 5), (3,)),), restore=(Restore(2, key(1), 7),)))
    if spoiled is None:
        found.applied(plan(5, batch=(row(key(1), 7),)))
        return
    engine.fill(spoiled, 4 if spoiled == FULL else 3, 98)
    with breaks("same_after_resume"):
        found.applied(plan(5, batch=(row(key(1), 7),)))


def test_damage_that_was_done_before_a_room_went_away_is_no_fault_of_its_way_back():
    engine = Pools()
    found = books(engine)
    found.applied(plan(2, offload=(Offload(1, key(1), 7),)))
    engine.fill(FULL, 0, 99)
    engine.world.tainted.add(key(1))
    found.applied(plan(3, restore=(Restore(2, key(1), 7),)))
    found.applied(plan(4, batch=(row(key(1), 7),)))


def test_the_host_store_knows_whose_state_was_damaged_when_it_was_copied():
    heap, tainted = Heap(Tape(), shuffle=False), set()
    world = SimpleNamespace(
        heap=heap, tape=Tape(), faults=Faults, fault=lambda *_: None, tainted=tainted
    )
    process = SimpleNamespace(
        alive=True,
        name="d",
        port_call=lambda: None,
        wake=lambda: None,
        ends=lambda kind: True,
        has_ended=lambda kind: None,
    )
    pools = {FULL: SimPool(8 * PLACEMENT.page_bytes(FULL))}
    store = SimHostStore(
        world=world, process=process, placement=PLACEMENT, pools=pools, total=1 << 20
    )
    store.damaged = lambda group, slot: slot == 5
    store.save(HostCopy(Job(1), key(1), {FULL: np.array([3, 4])}))
    store.save(HostCopy(Job(2), key(2), {FULL: np.array([4, 5])}))
    heap.advance(heap.now + 10_000_000)
    assert tainted == {key(2)}


def test_a_room_computes_only_when_it_is_back_and_where_it_was():
    for restore, start in (((), 7), ((Restore(2, key(1), 7),), 6)):
        found = books(Pools())
        found.applied(plan(2, offload=(Offload(1, key(1), 7),)))
        found.applied(plan(3, restore=restore))
        with breaks("same_after_resume"):
            found.applied(plan(4, batch=(row(key(1), start),)))


def test_a_read_goes_into_pages_of_one_room():
    found = books()
    found.applied(plan(2, hold=(hold(key(2), (2,), (1,)),)))
    found.read_began(1, PEER, into(0, nbytes=2 * PAGE))
    with breaks("own_pages"):
        found.read_began(2, PEER, into(1, nbytes=2 * PAGE))
    with breaks("own_pages"):
        found.read_began(3, PEER, into(5))


def test_a_read_lands_in_its_own_room_before_the_commit():
    found = books()
    found.read_began(1, PEER, into(0))
    found.landing(1, FULL, 0, PAGE)
    with breaks("landing"):
        found.landing(1, FULL, 3 * PAGE, PAGE)
    found.applied(plan(2, commit=(key(1),)))
    with breaks("landing"):
        found.landing(1, FULL, 0, PAGE)
    with breaks("landing"):
        found.landing(99, FULL, 0, PAGE)  # nobody began it


def test_a_read_begins_where_no_other_may_still_land():
    found = books()
    found.read_began(1, PEER, into(0, nbytes=16))
    found.read_began(2, PEER, [(FULL, 0, 16, 16)])
    found.read_quiet(1)
    found.read_began(3, PEER, into(0, nbytes=16))
    with breaks("one_read"):
        found.read_began(4, PEER, [(FULL, 0, 31, 16)])


def test_a_block_is_read_a_bounded_number_of_times():
    found = books()
    for handle in range(READS):
        found.read_began(handle, PEER, into(0))
        found.read_quiet(handle)
    found.read_began(READS, PEER, into(1))
    found.read_began(READS + 1, RankId(PREFILL, Boot(9), Rank(1)), into(0))
    found.read_quiet(READS + 1)
    with breaks("bounded_reads"):
        found.read_began(READS + 2, PEER, into(0))


def test_a_commit_finds_the_room_as_it_was_computed():
    books(Engine()).applied(plan(2, commit=(key(1),)))
    with breaks("right_commit"):
        books(Engine("block 1 of group full")).applied(plan(2, commit=(key(1),)))


def test_a_page_that_is_given_begins_a_new_life():
    engine = Engine()
    books(engine).applied(plan(2, hold=(hold(key(1), (2,), ()),)))
    assert engine.given_pages[-1] == (FULL, 2)


def test_all_ranks_apply_the_same_plans():
    first, second = plan(1, drop=(key(1),)), plan(2, drop=(key(2),))
    found = PlanBook("decode-0", violate)
    for rank in (Rank(0), Rank(1), Rank(2)):
        found.applied(rank, first)
    found.applied(Rank(0), second)
    found.applied(Rank(1), plan(2, drop=(key(2),)))
    with breaks("equal_plans"):
        found.applied(Rank(2), plan(2, drop=(key(3),)))
    with breaks("equal_plans"):
        found.applied(Rank(3), second)  # before the first


# ---- contents ------------------------------------------------------------------------------------


def computed():
    """A prefill engine that has computed the whole prompt, and the batch that did it."""
    tape = Tape(script={})
    heap = Heap(tape, shuffle=False)
    ticket = Ticket(key(), Stamp(1), GATEWAY, PREFILL, DECODE, PROMPT, (), SAMPLING, LIMITS)
    world = SimpleNamespace(
        heap=heap,
        tape=tape,
        attempts_differ=True,
        costs=Costs(),
        work=Work(),
        tickets={key(): ticket},
        stamps={},
        beside={},
        loans=Loans({}, violate),
        tainted=set(),
        hostile=False,
        violate=violate,
        rows_of=content.BlockContents,
        sums_of=lambda placement: Sums(block_sums),
    )
    process = Process("prefill-0/0", PREFILL, heap, SkewedClock(heap, offset=0, drift_ppm=0))
    process.start(lambda: SimpleNamespace(turn=lambda: None))
    engine = SimEngine(
        world=world,
        process=process,
        placement=PLACEMENT,
        rank=Rank(0),
        pages={FULL: 4, SLOT: 2},
        collective=Collective(world, PREFILL, "prefill", 1),
    )
    lists = {FULL: np.array([2, 1], dtype=np.int32), SLOT: np.array([1], dtype=np.int32)}
    batch = Batch(
        Seq(1), (Row(key(), 0, PROMPT, lists, {FULL: (0, 2), SLOT: (0, 1)}, len(PROMPT), None),)
    )
    again(engine, batch)
    return engine, batch


def again(engine, batch):
    engine.submit(batch)
    engine.world.heap.advance(engine.world.heap.now + 10_000)


PAGES = {FULL: [2, 1], SLOT: [1]}


def test_whole_and_right_state_is_told_from_any_other():
    engine, _ = computed()
    assert engine.differs(key(), PAGES, {}) == ""
    assert "group full" in engine.differs(key(), {**PAGES, FULL: [1, 2]}, {})
    assert "1 blocks, 2 are due" in engine.differs(key(), {**PAGES, FULL: [2]}, {})
    assert "group slot" in engine.differs(key(), {**PAGES, SLOT: [0]}, {})
    for group, page in ((FULL, 2), (FULL, 1), (SLOT, 1)):
        # the last one of page 1 is beyond the prompt, and zero
        for byte in (0, PLACEMENT.page_bytes(group) - 1):
            pool = engine.sim_pools[group].data
            pool[page * PLACEMENT.page_bytes(group) + byte] ^= 1
            assert f"group {group}" in engine.differs(key(), PAGES, {})
            pool[page * PLACEMENT.page_bytes(group) + byte] ^= 1
    assert engine.differs(key(), PAGES, {}) == ""


def test_state_computed_from_damaged_memory_is_excused():
    engine, _ = computed()
    engine.sim_pools[FULL].data[2 * PAGE] ^= 1
    engine.world.tainted.add(key())
    assert engine.differs(key(), PAGES, {}) == ""


def test_a_sealed_block_is_not_written_again():
    engine, batch = computed()
    with breaks("sealed_once"):
        again(engine, batch)
    engine, batch = computed()
    for group, page in ((FULL, 2), (FULL, 1), (SLOT, 1)):
        engine.given(group, page)
    again(engine, batch)


@pytest.mark.parametrize(
    ("group", "page", "byte", "looked_at"),
    [
        (FULL, 2, 0, True),
        (FULL, 2, PAGE - 1, True),
        (FULL, 1, 0, True),  # position 4, k
        (FULL, 1, PAGE // 2 + 15, True),  # and v
        (FULL, 1, 16, False),  # position 5, which the step writes
        (FULL, 1, PAGE - 1, False),  # position 7
        (FULL, 0, 0, False),
        (SLOT, 1, 0, True),
        (SLOT, 0, 0, False),
    ],
)
def test_a_step_finds_its_whole_context_as_it_was_computed_and_looks_at_nothing_else(
    group, page, byte, looked_at
):
    engine, batch = computed()
    (row,) = batch.rows
    for g, written in ((FULL, 1), (SLOT, 1)):
        engine.given(g, written)  # else it is sealed
    step = Batch(
        Seq(2), (msgspec.structs.replace(row, start=5, tokens=(TokenId(7),), final={}, valid=6),)
    )
    engine.sim_pools[group].data[page * PLACEMENT.page_bytes(group) + byte] ^= 1
    if looked_at:
        with breaks("right_bytes"):
            again(engine, step)
    else:
        again(engine, step)


# ---- shared pages --------------------------------------------------------------------------------


def asks(engine, number, tokens, salt=""):
    """Another room, of the same worker."""
    k = key(number)
    prompt = tuple(map(TokenId, tokens))
    engine.world.tickets[k] = Ticket(
        k, Stamp(number), GATEWAY, PREFILL, DECODE, prompt, (), SAMPLING, LIMITS, cache_salt=salt
    )
    return k


def test_a_page_serves_a_room_with_the_same_beginning():
    engine, _ = computed()
    engine.reuses(asks(engine, 2, PROMPT), FULL, 0, 2)
    engine.reuses(asks(engine, 3, (*PROMPT[:4], 1, 1, 1, 1, 1)), FULL, 0, 2)
    with breaks("right_reuse"):
        engine.reuses(key(3), FULL, 1, 1)  # its second page is another
    with breaks("right_reuse"):
        engine.reuses(key(2), FULL, 0, 3)  # nobody has computed it
    with breaks("right_reuse"):
        engine.reuses(asks(engine, 4, (*PROMPT[:3], 1, 1)), FULL, 0, 2)
    with breaks("hit_leaves_a_token"):
        engine.reuses(asks(engine, 5, PROMPT[:4]), FULL, 0, 2)
    with breaks("own_salt"):
        engine.reuses(asks(engine, 6, PROMPT, salt="x"), FULL, 0, 2)


def test_a_byte_of_a_shared_page_is_another():
    engine, _ = computed()
    k = asks(engine, 2, PROMPT)
    engine.sim_pools[FULL].data[2 * PAGE] ^= 1
    assert engine.changed(FULL, 2)
    assert not engine.changed(FULL, 1)
    with breaks("right_reuse"):
        engine.reuses(k, FULL, 0, 2)
    engine.damaged.add((FULL, 2))
    engine.reuses(k, FULL, 0, 2)  # the world did it: the seal's to find
    engine.given(FULL, 2)
    assert not engine.changed(FULL, 2)


class Reusing(Engine):
    def __init__(self):
        super().__init__()
        self.reused = []

    def reuses(self, k, group, at, page):
        self.reused.append((k, group, at, page))


def test_a_shared_page_has_several_holders_and_no_reads():
    engine = Reusing()
    found = books(engine)
    engine.given_pages.clear()
    found.applied(plan(2, hold=(Hold(key(2), {FULL: (Page(0), Page(5))}, {}, {FULL: 1}),)))
    assert engine.reused == [(key(2), FULL, 0, 0)]
    assert engine.given_pages == [(FULL, 5)]
    found.applied(plan(3, drop=(key(1),)))
    with breaks("one_owner"):
        found.applied(plan(4, hold=(hold(key(3), (0,), ()),)))
    with breaks("own_pages"):
        found.read_began(7, PEER, into(0))
    found.read_began(8, PEER, into(5))
    found.applied(plan(5, drop=(key(2),)))
    found.applied(plan(6, hold=(hold(key(4), (0,), ()),)))


WORKER = Manifest(
    *(PROTOCOL, "prefill", "m", "ab" * 16, "f32"),
    StateTable(1, 4, TABLE.groups[:1], TABLE.specs[:1]),
    *(1, 1, 1, 64, True),
    (RankManifest(PREFILL, 0, 0, 0, (PoolView(FULL, 8, 8 * PAGE),), {}),),
)


def shares(k, *pages, shared=0):
    return Issue(plan(1, hold=(Hold(k, {FULL: tuple(map(Page, pages))}, {}, {FULL: shared}),)))


def damaged(k, *blocks):
    return Send(DECODE, Verdict(k, 0, FULL, blocks, Intactness.DAMAGED))


def drops(*keys):
    return Issue(plan(1, drop=keys))


def test_a_damaged_page_is_shared_with_nobody_and_ends_who_holds_it():
    def turn(*effects):
        sharing.acts(WORKER, effects, lambda group, page: page == 1)

    sharing = Sharing(violate)
    turn(shares(key(1), 0, 1, 2))
    turn(shares(key(2), 0, 1, 3, shared=2))
    turn(shares(key(3), 0, 4, shared=1))
    turn(damaged(key(1), 0, 1), drops(key(1), key(2)))
    turn(shares(key(4), 0, 5, shared=1))
    for page in (1, 2, 3):  # the page, and those computed above it
        with breaks("damage_leaves"):
            turn(shares(key(5), 0, page, shared=2))
    turn(shares(key(6), 1, 2))  # they begin a new life
    turn(shares(key(7), 1, 2, 6, shared=2))
    sharing = Sharing(violate)
    turn(shares(key(1), 0, 1), shares(key(2), 0, 1, 3, shared=2))
    with breaks("damage_leaves"):
        turn(damaged(key(1), 1), drops(key(1)))  # the other one goes on


# ---- what clients hear ---------------------------------------------------------------------------

SUBMIT = Submit(RequestId(1), PROMPT, SAMPLING, LIMITS)
ANSWER, REASON = right_answer(PROMPT, SAMPLING, LIMITS)


def drawn(*tokens):
    return tuple(Drawn(TokenId(t), None, ()) for t in tokens)


def oracle():
    found = Oracle(violate, {})
    found.clients[SUBMIT.request] = Client(SUBMIT, "gateway-0", 0, False, False, False, False)
    return found


def emit(start, *tokens):
    return Emit(SUBMIT.request, TokenIndex(start), drawn(*tokens))


def test_a_right_answer_is_a_function_of_the_request():
    assert len(ANSWER) == LIMITS.max_tokens
    assert REASON is FinishReason.LENGTH
    stops = Limits(4, (ANSWER[1],), (), 1000)
    assert right_answer(PROMPT, SAMPLING, stops) == (ANSWER[:2], FinishReason.STOP)
    assert right_answer((*PROMPT, ANSWER[0]), SAMPLING, LIMITS)[0] != ANSWER
    assert ANSWER[0] == content.next_token(content.histories(PROMPT)[-1], SAMPLING, TokenIndex(0))


SHAPED = msgspec.structs.replace(SAMPLING, logprobs=2, shaping=Shaping(1.2, 0.0, 0.5, ()))


def test_penalties_look_at_the_past_whatever_its_order_and_a_least_length_bars_the_end():
    history = content.histories(PROMPT)[-1]

    def draws(**past):
        return content.next_token(history, SHAPED, TokenIndex(2), **past)

    tokens = {draws(prompt=(1, 2), answer=(3, 4, 4)), draws(prompt=(2, 1, 1), answer=(4, 3, 4))}
    assert len(tokens) == 1
    others = [
        draws(prompt=(1,), answer=(3, 4, 4)),
        draws(prompt=(1, 2), answer=(3, 4)),
        draws(prompt=(1, 2)),
        draws(),
    ]
    assert len({*tokens, *others}) == 5
    assert draws(barred=tuple(tokens)) == draws()
    assert draws(barred=(draws(), draws() + 1)) == draws() + 2
    only = msgspec.structs.replace(SHAPED.shaping, allowed_token_ids=(TokenId(3), TokenId(30)))
    few = msgspec.structs.replace(SHAPED, shaping=only)
    drawn = {content.next_token(h, few, TokenIndex(2)) for h in range(40)}
    assert drawn == {3, 30}
    assert content.next_token(history, few, TokenIndex(2), barred=(3,)) == 30
    assert content.next_token(
        history, SAMPLING, TokenIndex(2), prompt=(1,), answer=(2,)
    ) == content.next_token(history, SAMPLING, TokenIndex(2)), (
        "who asked for no penalties has none, whatever is known of the past"
    )
    first = right_answer(PROMPT, SAMPLING, LIMITS)[0][0]
    ends_at_once = msgspec.structs.replace(LIMITS, eos_token_ids=(first,))
    assert right_answer(PROMPT, SAMPLING, ends_at_once)[0] == [first]
    assert (
        first
        not in right_answer(PROMPT, SAMPLING, msgspec.structs.replace(ends_at_once, min_tokens=4))[
            0
        ]
    )


def spoken(index, author, boot, epoch):
    """A token of the right answer, with logprobs as a boot computes them in an epoch."""
    answer = right_answer(PROMPT, author, LIMITS)[0]
    history = content.histories((*PROMPT, *answer[:index]))[-1]
    return Drawn(
        answer[index], *content.logprobs(history, author.logprobs, content.attempt(boot, epoch))
    )


@pytest.mark.parametrize(
    ("index", "boot", "epoch", "right"),
    [
        *(
            (0, PREFILL, 1, True),
            (0, DECODE, 1, False),
            (1, DECODE, 2, False),
            (1, PREFILL, 2, True),
        ),
        *((1, DECODE, 1, False), (2, DECODE, 2, True), (2, DECODE, 1, False)),
    ],
)
def test_logprobs_tell_which_epoch_a_token_is_from(index, boot, epoch, right):
    """The first epoch said index 0, and the second goes on from there: prefill draws 1, decode what
    follows."""
    answer = right_answer(PROMPT, SHAPED, LIMITS)[0]
    tickets = {
        key(1, e): Ticket(
            key(1, e),
            Stamp(1),
            GATEWAY,
            PREFILL,
            DECODE,
            PROMPT,
            tuple(answer[: e - 1]),
            SHAPED,
            LIMITS,
        )
        for e in (1, 2)
    }
    found, submit = Oracle(violate, tickets), Submit(RequestId(1), PROMPT, SHAPED, LIMITS)
    client = found.clients[submit.request] = Client(
        submit, "gateway-0", 0, False, False, False, False
    )
    client.tokens += answer[:index]
    heard = Emit(submit.request, TokenIndex(index), (spoken(index, SHAPED, boot, epoch),))
    if right:
        found.hear(heard, 1)
    else:
        with breaks("right_logprobs"):
            found.hear(heard, 1)


def test_who_wanted_no_logprobs_hears_none():
    found = oracle()
    with breaks("right_logprobs"):
        found.hear(Emit(SUBMIT.request, TokenIndex(0), (Drawn(ANSWER[0], -1.0, ()),)), 1)


SCORED = msgspec.structs.replace(SAMPLING, prompt_logprobs=1)


def scores_ticket(epoch=1, said=()):
    return Ticket(
        key(1, epoch), Stamp(1), GATEWAY, PREFILL, DECODE, PROMPT, tuple(said), SCORED, LIMITS
    )


@pytest.mark.parametrize(
    ("index", "epoch", "right"),
    [(0, 2, True), (0, 1, False), (0, None, False), (1, 2, False), (1, None, True)],
)
def test_logprobs_of_a_prompt_come_with_the_first_token_and_from_its_epoch(index, epoch, right):
    """The first epoch said nothing, and the second begins anew."""
    tickets = {key(1, e): scores_ticket(e) for e in (1, 2)}
    found, submit = Oracle(violate, tickets), Submit(RequestId(1), PROMPT, SCORED, LIMITS)
    client = found.clients[submit.request] = Client(
        submit, "gateway-0", 0, False, False, False, False
    )
    answer = right_answer(PROMPT, SCORED, LIMITS)[0]
    client.tokens += answer[:index]
    scores = None if epoch is None else right_scores(tickets[key(1, epoch)])
    heard = msgspec.structs.replace(emit(index, answer[index]), scores=scores)
    if right:
        found.hear(heard, 1)
    else:
        with breaks("right_prompt_logprobs"):
            found.hear(heard, 1)


def test_who_wanted_no_logprobs_of_the_prompt_hears_none():
    scores = right_scores(scores_ticket())
    with breaks("right_prompt_logprobs"):
        oracle().hear(msgspec.structs.replace(emit(0, ANSWER[0]), scores=scores), 1)


def test_leaders_tell_logprobs_of_the_whole_prompt_and_none_to_who_was_told():
    whole = right_scores(scores_ticket())
    short = msgspec.structs.replace(whole, ranks=whole.ranks[4:])
    for ticket, scores, right in (
        (scores_ticket(), whole, True),
        (scores_ticket(), short, False),
        (scores_ticket(said=ANSWER[:1]), whole, False),
    ):
        found = Handoffs({key(): ticket}, [], {key().room: set()}, violate, lossy=False)
        if right:
            found.told(PromptLogprobs(key(), scores))
        else:
            with breaks("right_prompt_logprobs"):
                found.told(PromptLogprobs(key(), scores))


def test_a_good_answer_in_two_parts():
    found = oracle()
    found.hear(emit(0, ANSWER[0]), 1)
    found.hear(emit(1, *ANSWER[1:]), 2)
    client = found.hear(Finish(SUBMIT.request, REASON), 3)
    assert client.tokens == ANSWER
    assert not client.open


@pytest.mark.parametrize(
    ("invariant", "heard"),
    [
        ("right_tokens", [emit(0, ANSWER[0] + 1)]),
        ("right_tokens", [emit(0, *ANSWER[:2]), emit(2, ANSWER[3])]),
        ("right_tokens", [emit(0, *ANSWER, 1)]),
        ("right_tokens", [emit(0, *ANSWER[:2]), Finish(SUBMIT.request, REASON)]),
        ("right_tokens", [emit(0, *ANSWER), Finish(SUBMIT.request, FinishReason.STOP)]),
        ("no_gap", [emit(1, ANSWER[1])]),
        ("no_gap", [emit(0, ANSWER[0]), emit(2, ANSWER[2])]),
        ("no_gap", [emit(0, ANSWER[0]), emit(0, ANSWER[0])]),
        (
            "one_end",
            [emit(0, *ANSWER), Finish(SUBMIT.request, REASON), Finish(SUBMIT.request, REASON)],
        ),
        ("one_end", [Fail(SUBMIT.request, FailCode.WORKER_LOST, ""), emit(0, ANSWER[0])]),
    ],
)
def test_a_bad_answer(invariant, heard):
    found = oracle()
    for word in heard[:-1]:
        found.hear(word, 1)
    with breaks(invariant):
        found.hear(heard[-1], 2)


def test_who_has_left_hears_nothing():
    found = oracle()
    found.clients[SUBMIT.request].gone = "left"
    with breaks("one_end"):
        found.hear(emit(0, ANSWER[0]), 1)


# ---- excuses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", FailCode)
def test_a_fault_of_ones_own_excuses_a_failure_and_no_other_does(code):
    mine, kinds = frozenset({"decode-0", "request 1"}), EXCUSES[code]
    every = set().union(*EXCUSES.values())
    for kind in every:
        fault = InjectedFault(5, kind, frozenset({"decode-0"}))
        assert excuse(code, [fault], mine) == (fault if kind in kinds else None)
        assert excuse(code, [InjectedFault(5, kind, frozenset({"decode-1"}))], mine) is None
        assert (
            excuse(code, [InjectedFault(5, kind, frozenset({EVERYBODY}))], mine) is not None
        ) == (kind in kinds)
    assert excuse(code, [], mine) is None


def test_ranks_belong_to_their_worker():
    assert [worker_of(name) for name in ("decode-1/3", "gateway-0")] == ["decode-1", "gateway-0"]


# ---- between processes ---------------------------------------------------------------------------


def manifest(role, boot):
    rank = RankManifest(boot, 0, 0, 0, (PoolView(FULL, 8, 8 * PAGE),), {})
    return Manifest(PROTOCOL, role, "sim", "ab" * 16, "f32", TABLE, 1, 1, 1, 4096, True, (rank,))


def handoffs(*, faults=(), lossy=False, said=()):
    ticket = Ticket(key(), Stamp(1), GATEWAY, PREFILL, DECODE, PROMPT, said, SAMPLING, LIMITS)
    return Handoffs(
        {key(): ticket}, list(faults), {key().room: {"prefill-0", "decode-0"}}, violate, lossy=lossy
    )


WHOLE = plan(1, hold=(hold(key(), (0, 1)),))


def test_memory_is_taken_on_prefill_first_and_at_once():
    found = handoffs()
    found.ordered(manifest("prefill", PREFILL), WHOLE)
    found.ordered(manifest("decode", DECODE), WHOLE)
    found.ordered(manifest("decode", DECODE), plan(2, hold=(hold(key(), (2,), ()),)))  # it grows
    with breaks("memory_order"):
        handoffs().ordered(manifest("decode", DECODE), WHOLE)
    with breaks("all_at_once"):
        handoffs().ordered(manifest("prefill", PREFILL), plan(1, hold=(hold(key(), (0,)),)))
    with breaks("all_at_once"):
        handoffs().ordered(manifest("prefill", PREFILL), plan(1, hold=(hold(key(), (0, 1), ()),)))
    with breaks("all_at_once"):
        handoffs(said=PROMPT).ordered(manifest("prefill", PREFILL), WHOLE)


def test_an_epoch_that_has_ended_does_not_begin_again():
    found = handoffs()
    # given up in the same turn
    found.ordered(manifest("prefill", PREFILL), plan(1, drop=(key(),), hold=WHOLE.hold))
    with breaks("ended_once"):
        found.ordered(manifest("prefill", PREFILL), plan(2, hold=WHOLE.hold))


def test_what_leaders_tell_is_right():
    found = handoffs()
    found.told(FirstToken(key(), TokenIndex(0), *drawn(ANSWER[0]), None))
    found.told(Tokens(key(), TokenIndex(1), drawn(*ANSWER[1:]), REASON))
    with breaks("right_tokens"):
        found.told(FirstToken(key(), TokenIndex(1), *drawn(ANSWER[0] + 1), None))
    with breaks("right_tokens"):
        found.told(Tokens(key(), TokenIndex(3), drawn(ANSWER[3], 1), None))


def test_an_epoch_may_fail_because_its_worker_said_what_was_not_so_of_a_pair_and_its_request_may_not():
    lost = Failed(key(), FailCode.WORKER_LOST, "not paired", True)
    told = InjectedFault(1, "mistaken pair", frozenset({"decode-0"}))
    handoffs(faults=[told]).told(lost)
    with breaks("no_spurious_failure"):
        handoffs(faults=[InjectedFault(1, "mistaken pair", frozenset({"decode-1"}))]).told(lost)
    assert excuse(FailCode.WORKER_LOST, [told], frozenset({"decode-0"})) is None


def test_an_epoch_fails_with_an_excuse():
    failed = Failed(key(), FailCode.HANDOFF_FAILED, "", True)
    handoffs(faults=[InjectedFault(1, "corrupt read", frozenset({"decode-0"}))]).told(failed)
    handoffs(lossy=True).told(failed)
    # judged by what its client hears
    handoffs().told(Failed(key(), FailCode.DEADLINE_EXCEEDED, "", False))
    with breaks("no_spurious_failure"):
        handoffs(faults=[InjectedFault(1, "corrupt read", frozenset({"decode-1"}))]).told(failed)


TWICE = Placement(TABLE, tp=2, pp=1, tp_rank=1, pp_rank=0, page_blocks=1)


def read_by_two(first, second, placement=TWICE):
    """Two ranks of a worker read the same block of a room, from these source ranks."""
    found = Replicas("decode-0", violate)
    for source in (first, second):
        found.asked(placement, key(), RankId(PREFILL, PREFILL, Rank(source)), into(0))


def test_copies_of_a_unit_come_from_the_same_source_rank():
    read_by_two(0, 0)
    with breaks("same_replica"):
        read_by_two(0, 1)


def test_units_that_one_rank_alone_holds_may_come_from_anywhere():
    read_by_two(0, 1, PLACEMENT)


def test_layers_of_a_block_may_come_from_two_stages():
    table = msgspec.structs.replace(
        TABLE, num_layers=2, specs=(StateSpec("kv", FULL, (0, 1), ("k", "v"), 1, 4, DType.F32),)
    )
    placement = Placement(table, tp=2, pp=1, tp_rank=0, pp_rank=0, page_blocks=1)
    half = placement.block_bytes(FULL) // 2
    found = Replicas("decode-0", violate)
    for _ in range(2):
        found.asked(placement, key(), RankId(PREFILL, PREFILL, Rank(0)), [(FULL, 0, 0, half)])
        found.asked(placement, key(), RankId(PREFILL, PREFILL, Rank(1)), [(FULL, 0, half, half)])
    with breaks("same_replica"):
        found.asked(placement, key(), RankId(PREFILL, PREFILL, Rank(1)), [(FULL, 0, half - 4, 4)])


def ends_after(heard=None, says=None, lost=None):
    """The prefill worker drops the room after it has heard, said or lost this."""
    found = Endings({key(): SimpleNamespace(gateway=GATEWAY)}, violate)
    found.heard(PREFILL, heard)
    found.lost(PREFILL, lost)
    found.acts(PREFILL, "prefill-0", [Issue(plan(1, drop=(key(),))), Send(GATEWAY, says)])


TOKEN = Drawn(TokenId(1), None, ())


@pytest.mark.parametrize(
    "explained",
    [
        {"heard": Abort(key(), "")},
        {"heard": Received(key())},
        {
            "heard": Ticket(
                key(epoch=2), Stamp(1), GATEWAY, PREFILL, DECODE, PROMPT, (), SAMPLING, LIMITS
            )
        },
        {"says": Failed(key(), FailCode.OVERLOADED, "", False)},
        {"says": Withdrawn(key())},
        {"says": FirstToken(key(), TokenIndex(0), TOKEN, FinishReason.STOP)},
        {"lost": GATEWAY},
    ],
    ids=["aborted", "received", "higher epoch", "failed", "withdrawn", "finished", "gateway lost"],
)
def test_an_end_that_was_asked_for_or_told_is_no_silent_one(explained):
    ends_after(**explained)


@pytest.mark.parametrize(
    "silent",
    [
        {},
        {"heard": Abort(key(2), "")},
        {"says": FirstToken(key(), TokenIndex(0), TOKEN, None)},
        {"lost": DECODE},
    ],
    ids=["nothing", "about another room", "a token that is not the last", "another peer lost"],
)
def test_a_silent_end_is_found(silent):
    with breaks("end_said"):
        ends_after(**silent)


# ---- rooms that are away -------------------------------------------------------------------------


def ticket_of(number):
    return Ticket(
        key(number), Stamp(number), GATEWAY, PREFILL, DECODE, PROMPT, (), SAMPLING, LIMITS
    )


class Leader:
    """A decode leader's turns, and the judge."""

    def __init__(self, rooms=20):
        self.tickets = {key(n): ticket_of(n) for n in range(1, rooms)}
        self.judge, self.seq = Pressure(self.tickets, violate), 0

    def turn(self, **fields):
        self.seq += 1
        self.judge.acts(DECODE, "decode-0", [Issue(plan(self.seq, **fields))])

    def away(self, number):
        self.turn(hold=(hold(key(number), (number,)),))
        self.turn(offload=(Offload(number, key(number), 5),))
        self.turn(vacate=(key(number),))


def offer(number, blocks=True):
    run = {FULL: BlockRun(number - 1, number, (Page(0),))} if blocks else {}
    return Offer(key(1), number, run, (), None)


FETCH = Fetch(1, None, (), key(1), PREFILL, 5, {}, (), 1000)


def test_what_is_offered_is_read_in_the_same_turn():
    leader = Leader()
    leader.judge.heard(DECODE, ticket_of(1))
    leader.judge.heard(DECODE, offer(0, blocks=False))
    leader.judge.heard(DECODE, offer(1))
    leader.turn()  # it is not admitted yet
    leader.turn(hold=(hold(key(1), (0,)),), fetch=(FETCH,))
    leader.judge.heard(DECODE, offer(2))
    with breaks("read_at_once"):
        leader.turn()


def test_a_room_that_is_back_computes_before_it_goes_again():
    for computes in (True, False):
        leader = Leader()
        leader.away(1)
        leader.turn(restore=(Restore(2, key(1), 5),))
        if computes:
            leader.turn(batch=(row(key(1), 5),))
            leader.turn(offload=(Offload(3, key(1), 6),))
        else:
            with breaks("runs_between"):
                leader.turn(offload=(Offload(3, key(1), 5),))


def test_rooms_come_back_in_their_order_and_are_overtaken_by_few():
    leader = Leader()
    leader.away(2)
    leader.away(3)
    with breaks("overtaking"):
        leader.turn(restore=(Restore(9, key(3), 5),))
    leader = Leader()
    leader.away(2)
    leader.turn(hold=(hold(key(1), (1,)),))  # an earlier one overtakes nobody
    for n in range(3, 3 + OVERTAKES):
        leader.turn(hold=(hold(key(n), (n,)),))
    with breaks("overtaking"):
        leader.turn(hold=(hold(key(3 + OVERTAKES), (9,)),))


def test_more_urgent_rooms_overtake_a_bounded_number_of_times_too():
    leader = Leader(rooms=40)
    for n in range(3, 40):
        leader.tickets[key(n)] = msgspec.structs.replace(ticket_of(n), priority=-1)
    leader.away(2)
    for n in range(3, 3 + URGENT_OVERTAKES):
        leader.turn(hold=(hold(key(n), (n,)),))
    with breaks("overtaking"):
        leader.turn(hold=(hold(key(3 + URGENT_OVERTAKES), (39,)),))
