"""Whole worlds of the shipped code: without faults every request ends well, in every layout; with
faults nothing is violated."""

from collections import Counter
from itertools import product

import pytest

from baton.core.door import Finish
from baton.core.memory.state import Full, StateTable, Window
from baton.dev.sim.run import be_silent, run
from baton.dev.sim.settings import HEADS, Faults, WorkerDraw, WorldDraw, draw_table, draw_world
from baton.dev.sim.tape import Tape
from baton.dev.sim.world import World


@pytest.fixture(autouse=True)
def silence():
    be_silent()


def worker(role: str, tp: int, pp: int, page_blocks: int, *, number: int = 0) -> WorkerDraw:
    return WorkerDraw(
        name=f"{role}-{number}",
        role=role,
        tp=tp,
        pp=pp,
        page_blocks=page_blocks,
        pages=-(-18 // page_blocks),
        slots=3,
        step_tokens=8,
        last_chunk_tokens=8,
        max_rooms=4,
    )


def every_kind(heads: int = 4) -> StateTable:
    """Full, window and slot groups."""
    return of_kinds(4, heads)


def of_kinds(kinds: int, heads: int = 4) -> StateTable:
    return draw_table(Tape(script={0: HEADS.index(heads), 1: kinds}))


LAYOUTS = [
    ((tp_p, pp_p, k_p), (tp_d, pp_d, k_d))
    for (tp_p, pp_p), (tp_d, pp_d) in product([(1, 1), (2, 1), (4, 1), (2, 2)], repeat=2)
    for k_p, k_d in [(1, 2), (3, 1)]
]


MORE_HEADS = [
    (3, (1, 1, 1), (3, 1, 4)),
    (3, (3, 1, 4), (1, 2, 1)),
    (3, (3, 2, 1), (3, 1, 2)),
    (1, (3, 1, 1), (4, 1, 2)),
    (8, (4, 1, 4), (2, 1, 1)),
    (8, (1, 2, 1), (4, 1, 4)),
]


@pytest.mark.parametrize(
    ("heads", "source", "target"), [*((4, *layout) for layout in LAYOUTS), *MORE_HEADS]
)
def test_a_world_without_faults_completes_every_request_in_every_layout(heads, source, target):
    workers = (worker("prefill", *source), worker("decode", *target))
    draw = WorldDraw(
        every_kind(heads),
        ("gateway-0",),
        workers,
        Faults(),
        8,
        1000,
        attempts_differ=True,
        quiet_ends=True,
    )
    world = World(Tape(seed=1), draw=draw)
    world.run()
    clients = world.people.clients
    assert len(clients) == 10
    assert all(isinstance(c.end, Finish) for c in clients)
    assert not world.all_faults


@pytest.mark.parametrize("kinds", range(10))
@pytest.mark.parametrize(
    ("source", "target"), [((1, 1, 1), (2, 1, 2)), ((2, 2, 3), (1, 1, 1)), ((4, 1, 2), (2, 2, 1))]
)
def test_every_state_table_goes_from_every_layout_to_another(kinds, source, target):
    """Two windows, an index with pages of its own, a draft's rows: none of them is named in what
    moves state."""
    workers = (worker("prefill", *source), worker("decode", *target), worker("unified", *source))
    draw = WorldDraw(
        of_kinds(kinds),
        ("gateway-0",),
        workers,
        Faults(),
        8,
        1000,
        attempts_differ=True,
        quiet_ends=True,
    )
    world = World(Tape(seed=2), draw=draw)
    world.run()
    assert all(isinstance(c.end, Finish) for c in world.people.clients)


def test_state_tables_of_every_kind_are_drawn():
    tables = [draw_world(Tape(seed=seed)).table for seed in range(300)]
    windows = [sum(isinstance(g.extent, Window) for g in table.groups) for table in tables]
    wholes = [sum(isinstance(g.extent, Full) for g in table.groups) for table in tables]
    drafts = [any(spec.name == "draft" for spec in table.specs) for table in tables]
    assert min(windows.count(2), windows.count(3), wholes.count(2), sum(drafts)) > 15


@pytest.mark.parametrize("layout", [(1, 1, 1), (2, 1, 2), (2, 2, 3), (4, 1, 1)])
@pytest.mark.parametrize("beside", [False, True])
def test_a_unified_worker_completes_every_request_alone_and_beside_a_pair(layout, beside):
    pair = (worker("prefill", 1, 1, 1), worker("decode", 2, 1, 2)) if beside else ()
    workers = (*pair, worker("unified", *layout))
    draw = WorldDraw(
        every_kind(),
        ("gateway-0",),
        workers,
        Faults(),
        8,
        1000,
        attempts_differ=True,
        quiet_ends=True,
    )
    world = World(Tape(seed=1), draw=draw)
    world.run()
    assert all(isinstance(c.end, Finish) for c in world.people.clients)
    by_whom = {ticket.prefill == ticket.decode for ticket in world.tickets.values()}
    assert by_whom == ({True, False} if beside else {True})


def test_unified_workers_are_drawn_alone_and_beside_others():
    found = Counter(
        tuple(sorted({w.role for w in draw_world(Tape(seed=seed)).workers})) for seed in range(300)
    )
    assert (
        min(
            found[roles]
            for roles in (("unified",), ("decode", "prefill"), ("decode", "prefill", "unified"))
        )
        > 15
    )
    assert len(found) == 3


def test_all_layouts_are_drawn():
    """Counted over pairs of workers: heads and both widths, both numbers of stages, both page
    sizes."""
    widths, stages, pages = Counter(), Counter(), Counter()
    for seed in range(3000):
        draw = draw_world(Tape(seed=seed))
        heads = max(spec.heads for spec in draw.table.specs)
        by_role = {
            role: [w for w in draw.workers if w.role == role] for role in ("prefill", "decode")
        }
        for source, target in product(by_role["prefill"], by_role["decode"]):
            widths[heads, source.tp, target.tp] += 1
            stages[(source.tp, source.pp), (target.tp, target.pp)] += 1
            pages[source.page_blocks, target.page_blocks] += 1
    fits = {h: [tp for tp in (1, 2, 3, 4) if h % tp == 0 or tp % h == 0] for h in (1, 2, 3, 4, 8)}
    assert widths.keys() == {(h, a, b) for h in fits for a, b in product(fits[h], repeat=2)}
    assert stages.keys() >= {((a, p), (b, q)) for a, b, p, q in product((1, 2), repeat=4)}
    assert pages.keys() == set(product((1, 2, 3, 4), repeat=2))
    named = [widths[3, 1, 3], widths[3, 3, 1], stages[(2, 2), (1, 1)], pages[1, 4], pages[4, 1]]
    assert min(named) >= 60, "layouts that must be handed over in many of the worlds"


def test_worlds_are_wide_often_enough_and_have_few_ranks():
    """A third of all worlds must be wide; and what ranks say to each other is most of the time that
    a world takes."""
    ranks, wide = [], 0
    for seed in range(3000):
        draw = draw_world(Tape(seed=seed))
        widest = [
            max((w.tp for w in draw.workers if w.role == role), default=1)
            for role in ("prefill", "decode")
        ]
        ranks.append(sum(w.tp * w.pp for w in draw.workers))
        wide += min(widest) > 1
    assert wide / 3000 >= 0.36
    assert sum(ranks) / 3000 <= 6.2
    assert max(ranks) >= 10


def test_drawn_worlds_without_their_faults_complete_every_request():
    for seed in range(40):
        outcome = run(seed, calm=True)
        assert not outcome.invariant, f"seed {seed}: {outcome.invariant}: {outcome.detail}"
        assert not any(mark.startswith(("failed", "fault")) for mark in outcome.marks), (
            seed,
            outcome.marks,
        )


def test_a_run_repeats_itself_and_its_choices_repeat_it():
    first, again = run(11), run(11)
    assert (first.trace, first.events) == (again.trace, again.events)
    assert run(script=first.choices).trace == first.trace
    assert run(12).trace != first.trace


def test_the_worlds_are_of_the_promised_size_and_kind():
    found = [run(seed) for seed in range(120)]
    assert not [f"{o.seed}: {o.invariant}: {o.detail}" for o in found if o.invariant]
    events, requests = sorted(o.events for o in found), sorted(o.requests for o in found)
    assert 600 <= events[60] <= 1_900, "100,000 worlds take an hour at about 1,500 events"
    assert requests[60] >= 8
    assert sum(o.wide for o in found) >= 40
    assert sum(o.repeats for o in found) >= sum(requests) / 3.5  # a third over many worlds
