"""Prompts that begin as earlier ones did: only the rest is computed, and every answer is what it
would be without the cache."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from tests.core.build import KV, manifest, settings, submit
from tests.core.world import Node, World, expected

from baton.core.door import Finish
from baton.core.ids import GroupName
from baton.core.marks import Mark
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit, Whole, Window
from baton.core.messages import FailCode, Failed, FirstToken, Intactness, Offer, Tokens, Verdict
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import RoomState
from baton.core.work import Batch

P, D, U = 2, 3, 4
SYSTEM = tuple(range(100, 113))  # 13 tokens: three pages of four, and one token of the fourth


@dataclass
class Bench:
    """A prefill worker with its cache on, a decode worker, and what prefill was told to compute."""

    world: World
    prefill: Node
    # room, first position, tokens
    computed: list[tuple[str, int, int]] = field(default_factory=list)

    def ask(
        self, number: int, prompt: tuple[int, ...], *, salt: str = "", max_tokens: int = 3
    ) -> list[int]:
        """One request, from its beginning to its end; the tokens that it was given."""
        self.begin(number, prompt, salt=salt, max_tokens=max_tokens)
        self.world.run()
        return self.world.tokens(number)

    def begin(
        self, number: int, prompt: tuple[int, ...], *, salt: str = "", max_tokens: int = 3
    ) -> None:
        """A client asks."""
        self.world.submit(
            msgspec.structs.replace(submit(number, prompt, max_tokens=max_tokens), cache_salt=salt)
        )

    def positions(self) -> list[tuple[int, int]]:
        """First position and count of all rows computed since the last call."""
        found, self.computed[:] = [(start, count) for _, start, count in self.computed], []
        return found

    def cached(self, number: int) -> int:
        """What a client was told of its prompt."""
        return sum(getattr(h, "cached", 0) for h in self.world.heard[submit(number).request])

    def view(self) -> dict[str, int]:
        return self.prefill.leader.worker.ledger.view()[KV]


def watch(node: Node, computed: list[tuple[str, int, int]]) -> None:
    compute = node.engine.compute

    def watched(batch: Batch) -> None:
        computed.extend((row.key.room, row.start, len(row.tokens)) for row in batch.rows)
        compute(batch)

    node.engine.compute = watched  # type: ignore[method-assign]


def bench(
    *,
    pages: int = 16,
    page_blocks: int = 1,
    on: bool = True,
    decode_pages: int = 32,
    decode_caches: bool = False,
    **limits: float,
) -> Bench:
    world = World()
    prefill = world.add(
        "prefill", P, pages=pages, page_blocks=page_blocks, prefix_cache=on, **limits
    )
    world.add("decode", D, pages=decode_pages, prefix_cache=decode_caches)
    world.run()
    found = Bench(world, prefill)
    watch(prefill, found.computed)
    return found


def test_only_what_is_new_is_computed_and_the_answers_are_the_same() -> None:
    b = bench()
    assert b.ask(1, (*SYSTEM, 1, 2)) == expected((*SYSTEM, 1, 2), 3)
    assert b.positions() == [(0, 15)]
    assert b.ask(2, (*SYSTEM, 1, 2)) == expected((*SYSTEM, 1, 2), 3), "the same again"
    assert b.positions() == [(12, 3)]
    longer = (*SYSTEM, 1, 2, 3, 4, 5, 6)
    assert b.ask(3, longer) == expected(longer, 3)
    assert b.positions() == [(12, 7)]
    assert b.ask(4, longer) == expected(longer, 3)
    assert b.positions() == [(16, 3)], "what the third computed was kept"
    assert [b.cached(n) for n in (1, 2, 3, 4)] == [0, 12, 12, 16]
    assert b.world.clean
    tally = b.prefill.leader.worker.reuse.tally()
    assert (tally.queries, tally.hits) == (15 + 15 + 19 + 19, 12 + 12 + 16)
    assert (b.view()["cached"], b.view()["shared"], b.view()["free"]) == (4, 0, 12)


def test_a_prompt_that_ends_at_a_page_border_computes_its_last_page() -> None:
    b = bench()
    prompt = SYSTEM[:12]
    for number, start in ((1, 0), (2, 8), (3, 8)):
        assert b.ask(number, prompt) == expected(prompt, 3)
        assert b.positions() == [(start, 12 - start)]
    assert b.ask(4, SYSTEM) == expected(SYSTEM, 3)
    assert b.positions() == [(12, 1)], "its third page is complete, and another's"


def test_a_prompt_shorter_than_a_page_leaves_nothing() -> None:
    b = bench(page_blocks=2)
    b.ask(1, SYSTEM[:7])
    assert b.view()["cached"] == 0
    b.ask(2, SYSTEM[:9])
    assert b.view()["cached"] == 1
    assert b.ask(3, SYSTEM) == expected(SYSTEM, 3)
    assert b.positions() == [(0, 7), (0, 9), (8, 5)], (
        "pages of eight here, of four on the other side"
    )


def test_cached_blocks_are_offered_at_once_with_the_sums_of_their_birth() -> None:
    b = bench(step_tokens=4, last_chunk_tokens=4)
    b.ask(1, SYSTEM)
    before = {
        (s.leg, s.group, n): v
        for o in offers(b)
        for s in o.sums
        for n, v in zip(s.blocks, s.seals, strict=True)
    }
    b.world.log.clear()
    b.ask(2, (*SYSTEM, 1, 2, 3, 4, 5, 6))
    numbers = [
        (o.number, run.start, run.end)
        for o in offers(b)
        for run in (o.runs.get(KV),)
        if run is not None
    ]
    assert numbers == [(1, 0, 3), (2, 3, 4), (3, 4, 5)]
    first = offers(b)[1]
    assert {
        (s.leg, s.group, n): v for s in first.sums for n, v in zip(s.blocks, s.seals, strict=True)
    } == {where: seal for where, seal in before.items() if where[2] < 3}
    assert b.positions()[-2:] == [(12, 4), (16, 3)]


def offers(b: Bench) -> list[Offer]:
    return [m for _, _, m in b.world.log if isinstance(m, Offer)]


def test_with_the_cache_off_everything_is_computed() -> None:
    b = bench(on=False)
    for number in (1, 2):
        assert b.ask(number, SYSTEM) == expected(SYSTEM, 3)
    assert b.positions() == [(0, 13), (0, 13)]
    assert b.view()["free"] == 16


def test_only_requests_with_the_same_salt_share() -> None:
    b = bench()
    for number, salt, start in ((1, "a", 0), (2, "b", 0), (3, "", 0), (4, "a", 12), (5, "", 12)):
        assert b.ask(number, SYSTEM, salt=salt) == expected(SYSTEM, 3)
        assert b.positions() == [(start, 13 - start)], salt
    assert b.view()["cached"] == 9


def test_two_that_compute_the_same_at_once_leave_it_once() -> None:
    b = bench()
    b.prefill.leader.worker.followers.waits = lambda *rooms: False  # type: ignore[method-assign]
    b.begin(1, SYSTEM)
    b.begin(2, SYSTEM)
    b.world.run()
    assert b.world.tokens(1) == b.world.tokens(2) == expected(SYSTEM, 3)
    assert b.positions() == [(0, 13), (0, 13)]
    assert (b.view()["cached"], b.view()["free"]) == (3, 13)
    assert b.world.clean


def test_what_is_cached_gives_way_to_what_is_asked_for() -> None:
    b = bench(pages=5)
    for number in range(1, 9):
        prompt = tuple(range(20 * number, 20 * number + 17))
        assert b.ask(number, prompt) == expected(prompt, 3)
        assert b.world.clean
        assert (b.view()["cached"], b.view()["free"]) == (4, 1)
    assert b.prefill.leader.worker.reuse.tally().evicted == 4 * 6 + 3 + 1
    assert b.ask(9, prompt) == expected(prompt, 3)
    assert b.positions()[-1] == (16, 1), "the last is there as a whole"


def test_a_room_waits_while_others_pin_what_it_would_need() -> None:
    b = bench(pages=6, ahead=1)
    b.ask(1, SYSTEM)
    b.world.freeze_reads = True  # decode does not come to an end: the room stays
    b.begin(2, SYSTEM)
    b.world.run()
    assert (b.view()["shared"], b.view()["full"], b.view()["free"]) == (3, 1, 2)
    b.begin(3, tuple(range(20, 33)))  # four pages: two are free, and the others are used
    b.world.run()
    assert [r.state for r in b.prefill.leader.worker.rooms.values()] == [
        RoomState.OFFERED,
        RoomState.QUEUED,
    ]
    b.world.freeze_reads = False
    b.world.run()
    assert b.world.tokens(3) == expected(tuple(range(20, 33)), 3)
    assert b.world.clean


def test_a_room_that_ends_early_leaves_what_it_had_computed() -> None:
    b = bench(step_tokens=4, last_chunk_tokens=4)
    b.begin(1, (*SYSTEM, 1, 2, 3, 4))
    for _ in range(200):
        b.world.step()
        if len(b.computed) == 2:
            break
    b.world.cancel(1)
    b.world.run()
    assert b.world.clean
    left = b.view()["cached"]
    assert left >= 1
    b.positions()
    assert b.ask(2, (*SYSTEM, 1, 2, 3, 4)) == expected((*SYSTEM, 1, 2, 3, 4), 3)
    assert b.positions()[0][0] == 4 * left


# ---- damage -------------------------------------------------------------------------------------


def flip(node: Node, page: int) -> None:
    """A bit of a page changes in memory."""
    size = node.engine.placement.page_bytes(KV)
    node.engine.pool[page * size + 5] ^= 1


def failures(b: Bench) -> list[Failed]:
    """What prefill has ended badly."""
    return [m for source, _, m in b.world.log if isinstance(m, Failed) and source == P]


def page_of(b: Bench, number: int, at: int) -> int:
    """The page that holds a part of what request `number` asked."""
    room = next(r for r in b.prefill.leader.worker.rooms.values() if r.ticket.stamp == number)
    return int(b.prefill.leader.worker.ledger.held(room.key)[KV][at])


def test_a_damaged_page_leaves_with_all_above_it_and_all_who_share_it() -> None:
    b = bench(pages=32)
    b.ask(1, SYSTEM)
    b.world.freeze_reads = True
    b.begin(2, (*SYSTEM[:8], 50, 51, 52, 53, 54))  # shares two pages
    b.begin(3, (*SYSTEM[:4], 60, 61, 62, 63, 64))  # shares one
    b.world.run()
    b.begin(4, (*SYSTEM, 70))  # shares three
    b.world.run()
    flip(b.prefill, page_of(b, 2, 1))
    b.positions()
    b.world.log.clear()
    b.world.freeze_reads = False
    b.world.run()
    verdicts = [m.found for _, _, m in b.world.log if isinstance(m, Verdict)]
    assert Intactness.DAMAGED in verdicts
    assert [m.code for m in failures(b)] == [FailCode.HANDOFF_FAILED] * 2
    assert len({m.key.room for m in failures(b)}) == 2, "those that hold the page, each once"
    for number, prompt in (
        (2, (*SYSTEM[:8], 50, 51, 52, 53, 54)),
        (3, (*SYSTEM[:4], 60, 61, 62, 63, 64)),
        (4, (*SYSTEM, 70)),
    ):
        assert b.world.tokens(number) == expected(prompt, 3)
        assert isinstance(b.world.end(number), Finish)
    again = {start for start, _ in b.positions()}
    assert 4 in again, "the first that began again found the page that is whole"
    assert again <= {4, 8}, "and the other may have found what that one had computed"
    assert b.world.clean


def test_who_shares_a_damaged_page_begins_anew_before_anybody_has_read_it() -> None:
    """What it computes above that page follows from the damage, and has the right sums."""
    b = bench(pages=32)
    b.ask(1, SYSTEM)
    b.world.freeze_reads = True
    b.world.hold = lambda source, target, message: (
        isinstance(message, Offer) and int(message.key.room, 16) == 3
    )
    b.begin(2, (*SYSTEM, 70))
    b.begin(3, (*SYSTEM, 80))
    b.world.run()
    flip(b.prefill, page_of(b, 2, 1))
    b.world.log.clear()
    b.world.freeze_reads = False
    b.world.run()
    assert [(int(m.key.room, 16), m.retry) for m in failures(b)] == [(3, True), (2, True)]
    b.world.release()
    b.world.run()
    assert [b.world.tokens(n) for n in (2, 3)] == [
        expected((*SYSTEM, 70), 3),
        expected((*SYSTEM, 80), 3),
    ]
    assert b.world.clean


def test_damage_in_a_page_of_its_own_ends_only_that_room() -> None:
    b = bench(pages=32)
    b.ask(1, SYSTEM)
    b.world.freeze_reads = True
    b.begin(2, (*SYSTEM, 70))
    b.begin(3, (*SYSTEM, 80))
    b.world.run()
    flip(b.prefill, page_of(b, 2, 3))
    b.world.log.clear()
    b.world.freeze_reads = False
    b.world.run()
    assert len(failures(b)) == 1
    assert b.world.tokens(2) == expected((*SYSTEM, 70), 3)
    assert b.world.tokens(3) == expected((*SYSTEM, 80), 3)
    assert b.view()["cached"] == 3


# ---- reset --------------------------------------------------------------------------------------


def test_after_a_reset_nothing_is_found_and_nothing_is_lost() -> None:
    b = bench()
    b.ask(1, SYSTEM)
    b.world.freeze_reads = True
    b.begin(2, SYSTEM)
    b.world.run()
    question = b.world.front.ask_reset_cache()
    b.world.run()
    views = b.world.front.ledger(question)
    assert views is not None
    assert {v.role for v in views} == {"prefill", "decode"}
    assert b.view()["shared"] == 3, "an open room shares them still"
    b.positions()
    b.begin(3, SYSTEM)
    b.world.run()
    assert b.positions() == [(0, 13)]
    b.world.freeze_reads = False
    b.world.run()
    assert b.world.tokens(2) == b.world.tokens(3) == expected(SYSTEM, 3)
    assert (b.view()["cached"], b.view()["free"]) == (3, 13)
    assert b.world.clean


def test_a_reset_may_be_of_one_worker() -> None:
    b = bench(decode_caches=True)
    b.ask(1, SYSTEM)
    b.ask(2, tuple(range(8)))
    question = b.world.front.ask_reset_cache("prefill-2")
    b.world.run()
    views = b.world.front.ledger(question)
    assert views is not None
    assert [view.name for view in views] == ["prefill-2"]
    assert [b.world.nodes[boot].leader.worker.ledger.view()[KV]["cached"] for boot in (P, D)] == [
        0,
        5,
    ]


def test_clearing_the_pools_empties_the_cache() -> None:
    b = bench()
    b.ask(1, SYSTEM)
    b.world.front.ask_clear()
    b.world.run()
    assert b.view()["free"] == 16
    b.positions()
    assert b.ask(2, SYSTEM) == expected(SYSTEM, 3)
    assert b.positions() == [(0, 13)]


# ---- what the client is told --------------------------------------------------------------------


@pytest.mark.parametrize("late", [FirstToken, Tokens])
def test_the_client_is_told_once_whichever_message_comes_first(late: Any) -> None:
    b = bench()
    b.ask(1, SYSTEM)
    b.world.hold = lambda source, target, message: isinstance(message, late)
    b.begin(2, SYSTEM)
    b.world.run()
    b.world.release()
    b.world.run()
    assert b.world.tokens(2) == expected(SYSTEM, 3)
    assert b.cached(2) == 12


# ---- which models -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("groups", "cacheable"),
    [
        ((Group(KV, Unit.PAGE, Full()),), True),
        ((Group(KV, Unit.PAGE, Full()), Group(GroupName("index"), Unit.PAGE, Full())), True),
        ((Group(KV, Unit.PAGE, Full()), Group(GroupName("window"), Unit.PAGE, Window(8))), False),
        ((Group(KV, Unit.PAGE, Full()), Group(GroupName("slot"), Unit.SLOT, Whole())), False),
    ],
)
def test_only_state_in_pages_of_the_whole_sequence_is_kept(
    groups: tuple[Group, ...], cacheable: bool
) -> None:
    specs = tuple(StateSpec(g.name, g.name, (0,), ("k",), 1, 4, DType.F32) for g in groups)
    table = StateTable(1, 4, groups, specs)
    assert table.cacheable == cacheable
    worker = msgspec.structs.replace(manifest("unified", 2), table=table)
    leader = Leader(
        worker, settings(prefix_cache=True), dict.fromkeys((g.name for g in groups), 16)
    )
    assert leader.worker.reuse.on == cacheable


# ---- unified ------------------------------------------------------------------------------------


def unified(*, pages: int = 16, **limits: float) -> Bench:
    world = World()
    node = world.add("unified", U, pages=pages, prefix_cache=True, **limits)
    world.run()
    found = Bench(world, node)
    watch(node, found.computed)
    return found


@pytest.mark.parametrize("on", [False, True])
def test_what_is_generated_is_hashed_for_the_cache_alone(on: bool) -> None:
    world, final = World(), list[Any]()
    node = world.add("unified", U, prefix_cache=on)
    world.run()
    compute = node.engine.compute

    def watched(batch: Batch) -> None:
        final.extend(row.final for row in batch.rows if row.final and len(row.tokens) == 1)
        compute(batch)

    node.engine.compute = watched  # type: ignore[method-assign]
    world.submit(submit(1, SYSTEM, max_tokens=9))
    world.run()
    assert final == [{KV: (3, 4)}, {KV: (4, 5)}] * on


def test_the_next_turn_of_a_chat_begins_with_what_was_generated() -> None:
    b = unified()
    first = b.ask(1, SYSTEM, max_tokens=8)
    assert first == expected(SYSTEM, 8)
    b.positions()
    turn = (*SYSTEM, *first, 7, 8, 9)
    assert b.ask(2, turn) == expected(turn, 3)
    assert b.positions()[0] == (20, 4), "13 + 8 tokens, of which the last has no state"
    assert b.cached(2) == 20
    assert b.world.clean
    assert b.view()["shared"] == 0


def test_a_chat_under_pressure_is_the_same() -> None:
    b = unified(pages=12, max_rooms=4)
    prompts = {n: (*SYSTEM[:8], *range(n, n + 5)) for n in range(1, 7)}
    for n, prompt in prompts.items():
        b.begin(n, prompt, max_tokens=9)
    b.world.run()
    for n, prompt in prompts.items():
        assert b.world.tokens(n) == expected(prompt, 9)
    assert b.world.clean


class Remembering(dict[Any, Any]):
    """A host store's books, which know of everybody who was ever in it."""

    def __init__(self) -> None:
        super().__init__()
        self._ever: set[Any] = set()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ever.add(key)
        super().__setitem__(key, value)

    def __contains__(self, key: object) -> bool:
        return key in self._ever


def test_a_room_that_was_away_keeps_its_pages_to_itself() -> None:
    b = unified(pages=9, host_bytes=1 << 20)
    away, entered, enter = Remembering(), list[bool](), b.prefill.leader.worker.ledger.enter
    b.prefill.host = away

    def watched(k: Any, *page: Any) -> bool:
        entered.append(k in away)
        return enter(k, *page)

    b.prefill.leader.worker.ledger.enter = watched  # type: ignore[method-assign]
    for n in (1, 2):
        b.begin(n, tuple(range(40 * n, 40 * n + 9)), max_tokens=14)
    b.world.run()
    for n in (1, 2):
        assert b.world.tokens(n) == expected(tuple(range(40 * n, 40 * n + 9)), 14)
    assert b.prefill.leader.worker.marks[Mark.OFFLOADED]
    assert b.prefill.leader.worker.marks[Mark.RESUMED]
    assert entered
    assert not any(entered)
    assert b.world.clean
    assert b.view()["shared"] == 0
