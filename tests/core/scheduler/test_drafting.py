"""Drafts: an answer is the same with and without, whatever is drafted, and nothing of a draft that
was wrong is sealed or cached."""

from collections import Counter
from typing import Any

import msgspec
import pytest
import tests.core.world as worlds
from hypothesis import given
from hypothesis import strategies as st
from tests.core.build import KV, submit
from tests.core.world import World, expected

from baton.core.effects import Issue
from baton.core.errors import ConfigError
from baton.core.gateway.suspects import MARGIN
from baton.core.ids import GroupName, Micros, TokenId
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit, Whole
from baton.core.messages import Limits
from baton.core.scheduler.draft_payoff import EVERY, TRIAL_STEPS, DraftPayoff
from baton.core.scheduler.drafting import before_end, require_draftable
from baton.core.scheduler.generating import completed
from baton.core.scheduler.lookup_rule import MOST_DRAFTS, LookupRule

PROMPT = tuple(range(1, 12))
RULE = LookupRule(drafts=6, shortest=1, factor=3.0)


def same_as_before(context: bytes, index: int) -> int:
    """The same four tokens again and again."""
    return (5, 6, 7, 8)[index % 4]


def one_of_two(context: bytes, index: int) -> int:
    """No more than two tokens, so that much occurs again, and often goes on otherwise."""
    return int.from_bytes(worlds.blake2b(context, digest_size=2).digest(), "little") % 2


def world_of(roles: tuple[str, ...], **settings: Any) -> tuple[World, list[Any]]:
    """A world, and the rows that its workers compute."""
    world = World()
    for boot, role in enumerate(roles, start=2):
        world.add(role, boot, **({"pages": 40, "drafts": RULE} | settings))
    world.run()
    rows: list[Any] = []
    for node in world.nodes.values():
        step = node.leader.core.step

        def seen(event: Any, now: Any, step: Any = step) -> list[Any]:
            found: list[Any] = step(event, now)
            rows.extend(row for e in found if isinstance(e, Issue) for row in e.plan.batch)
            return found

        node.leader.core.step = seen
    return world, rows


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("unified",)])
@pytest.mark.parametrize("text", [same_as_before, one_of_two])
@pytest.mark.parametrize("cache", [False, True])
def test_an_answer_is_the_same_in_fewer_steps(
    monkeypatch: pytest.MonkeyPatch, roles: tuple[str, ...], text: Any, cache: bool
) -> None:
    monkeypatch.setattr(worlds, "draw", text)
    world, rows = world_of(roles, prefix_cache=cache)
    for number in (1, 2, 3):
        world.submit(submit(number, (*PROMPT, number), max_tokens=24 + number))
    world.run()
    for number in (1, 2, 3):
        assert world.tokens(number) == expected((*PROMPT, number), 24 + number)
    assert any(row.ahead for row in rows)
    decoded = [row for row in rows if row.start > len(PROMPT)]
    assert len(decoded) < sum(24 + n for n in (1, 2, 3))
    assert world.clean
    counted = [node.leader.core.worker.speculation.figures() for node in world.nodes.values()]
    assert sum(c.drafts for c in counted) == sum(bool(row.ahead) for row in rows)
    assert sum(c.tokens for c in counted) == sum(len(row.ahead) for row in rows)


def nearly(index: int) -> int:
    """What comes next as the draft layer takes it: wrong now and then."""
    return same_as_before(b"", index) if index % 7 else 1


@pytest.mark.parametrize("roles", [("prefill", "decode"), ("unified",)])
@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("right", [True, False])
def test_an_answer_is_the_same_with_the_drafts_of_a_layer(
    monkeypatch: pytest.MonkeyPatch, roles: tuple[str, ...], ahead: int, right: bool
) -> None:
    """Each row has what the engine drafted in the one before, and no draft is used twice."""
    if right:
        monkeypatch.setattr(worlds, "draw", same_as_before)
    monkeypatch.setattr(worlds, "guess", nearly)
    world, rows = world_of(roles, drafts=None, draft_layer=ahead, prefix_cache=True)
    answer = 40
    for number in (1, 2, 3):
        world.submit(submit(number, (*PROMPT, number), max_tokens=answer + number))
    world.run()
    for number in (1, 2, 3):
        assert world.tokens(number) == expected((*PROMPT, number), answer + number)
    for row in rows:
        guessed = row.tokens[len(row.tokens) - len(row.ahead) :]
        assert guessed == tuple(nearly(row.index + n) for n in range(len(guessed)))
        end = len(PROMPT) + 1 + answer + 3  # of the longest answer
        assert row.start + len(row.tokens) + row.drafts <= end
    assert any(row.ahead for row in rows)
    assert any(row.drafts for row in rows)
    if right:
        assert len(rows) < 3 * answer
    assert world.clean


def test_drafts_of_a_layer_are_made_only_where_there_are_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every row that is to make some has pages up to the last of them, and nobody gives way."""
    monkeypatch.setattr(worlds, "draw", same_as_before)
    monkeypatch.setattr(worlds, "guess", nearly)
    world, rows = world_of(("unified",), pages=11, drafts=None, draft_layer=6)
    world.submit(submit(1, PROMPT, max_tokens=20))
    world.submit(submit(2, PROMPT, max_tokens=20))
    held = world.nodes[worlds.Boot(2)].engine
    b, compute = held.placement.table.block_tokens, held.compute

    def checked(batch: Any) -> None:
        for row in batch.rows:
            assert row.start + len(row.tokens) + row.drafts <= b * len(row.pages[KV])
        compute(batch)

    held.compute = checked
    world.run()
    for number in (1, 2):
        assert world.tokens(number) == expected(PROMPT, 20)
    assert any(row.drafts for row in rows)


def test_a_step_that_makes_drafts_and_has_none_is_compared_with_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worlds, "guess", nearly)
    world, rows = world_of(("unified",), drafts=None, draft_layer=2)
    seen: list[int] = []
    monkeypatch.setattr(
        DraftPayoff, "stepped", lambda self, rooms, drafts, tokens, us: seen.append(drafts)
    )
    world.submit(submit(1, PROMPT, max_tokens=30))
    world.run()
    decoded = [row for row in rows if row.start >= len(PROMPT)]
    assert seen == [len(row.ahead) for row in decoded if row.ahead or not row.drafts]


def test_drafts_of_a_layer_that_do_not_pay_are_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A step makes what the next one has: a trial of one step would have none."""
    monkeypatch.setattr(worlds, "guess", nearly)  # wrong
    stepped = DraftPayoff.stepped

    def slow(self: Any, rooms: int, drafts: int, tokens: int, us: Any) -> None:
        stepped(self, rooms, drafts, tokens, Micros(300 if drafts else 100))

    monkeypatch.setattr(DraftPayoff, "stepped", slow)
    trials = 4
    world, rows = world_of(("unified",), drafts=None, draft_layer=1, pages=200)
    world.submit(submit(1, PROMPT, max_tokens=(trials + 1) * EVERY))
    world.run()
    assert world.tokens(1) == expected(PROMPT, (trials + 1) * EVERY)
    decoded = [row for row in rows if row.start >= len(PROMPT)]
    later = [bool(row.ahead) for row in decoded[EVERY:]]
    assert trials - 1 <= sum(later) <= trials
    made = sum(bool(row.drafts) for row in decoded[EVERY:])
    assert made <= 2 * trials


def test_a_draft_that_the_end_of_the_answer_cuts_off_is_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worlds, "draw", same_as_before)
    world, rows = world_of(("unified",))
    world.submit(submit(1, (5, 6, 7, 8, 5, 6, 7, 8), max_tokens=3))
    world.run()
    assert world.tokens(1) == expected((5, 6, 7, 8, 5, 6, 7, 8), 3)
    assert [len(row.ahead) for row in rows] == [0, 1], "the first token, then the other two"


def test_what_is_cached_of_an_answer_serves_the_next_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its sums at birth are of the right tokens: they are compared before the pages are used."""
    monkeypatch.setattr(worlds, "draw", one_of_two)
    world, rows = world_of(("unified",), prefix_cache=True, verify_ms=0)
    world.submit(submit(1, PROMPT, max_tokens=30))
    world.run()
    said = world.tokens(1)
    again = (*PROMPT, *said, 3)
    rows.clear()
    world.submit(submit(2, again, max_tokens=5))
    world.run()
    assert world.tokens(2) == expected(again, 5)
    cached = rows[0].start
    assert cached >= len(PROMPT) + 30 - 8, "all but the last tokens"
    ledger = world.nodes[worlds.Boot(2)].leader.core.worker.ledger
    for entry in ledger.cache._entries.values():
        for (rank, group), rows_of in entry.sums.items():
            node = world.nodes[worlds.Boot(2)]
            k = node.engine.placement.page_blocks
            slots = [entry.pages[group] * k + j for j in range(k)]
            numbers = _numbers(entry, k)
            found = worlds.block_sums(
                *(node.engine.pool, node.engine.placement, group),
                *(worlds.np.array(slots), worlds.np.array(numbers), worlds.IDENTITY),
            )
            assert (found == rows_of).all(), (rank, entry.pages)


def _numbers(entry: Any, k: int) -> list[int]:
    depth = 0
    while entry.parent is not None:
        entry, depth = entry.parent, depth + 1
    return [depth * k + j for j in range(k)]


@given(st.integers(1, 20), st.lists(st.integers(1, 9), max_size=20), st.integers(1, 5))
def test_every_complete_block_is_sealed_once_when_all_of_it_is_right(
    length: int, tokens: list[int], b: int
) -> None:
    spec = StateSpec("kv", KV, (0,), ("k",), 1, 4, DType.F32)
    table = StateTable(1, b, (Group(KV, Unit.PAGE, Full()),), (spec,))
    room: Any = Room(length)
    found: Counter[int] = Counter()
    for count in tokens:  # of each step
        known = room.position  # positions before it are computed
        blocks = completed(table, room).get(KV, (0, 0))
        assert all((block + 1) * b <= known + 1 for block in range(*blocks))
        found.update(range(*blocks))
        room.position += count
    last = room.position - tokens[-1] if tokens else 0  # of the last row
    due = range(length // b, (last + 1) // b) if tokens else range(0)
    assert found == Counter(due)


class Room:
    """As much of a room as that looks at."""

    def __init__(self, length: int) -> None:
        self.length = self.position = length
        self.sealed = 0


def rate(
    payoff: DraftPayoff, steps: int, *, rooms: int, plain_us: int, drafted_us: int, tokens: int
) -> int:
    """How many of so many steps have drafts."""
    found = 0
    for _ in range(steps):
        if payoff.allows(rooms):
            found += 1
            payoff.stepped(rooms, 3 * rooms, tokens, Micros(drafted_us))
        else:
            payoff.stepped(rooms, 0, rooms, Micros(plain_us))
    return found


@pytest.mark.parametrize("rooms", [1, 7, 32])
def test_drafts_are_made_where_they_pay_and_tried_again_now_and_then_where_not(rooms: int) -> None:
    steps = 10 * EVERY
    pays = rate(
        DraftPayoff(lead=0), steps, rooms=rooms, plain_us=100, drafted_us=150, tokens=2 * rooms
    )
    assert steps - pays == TRIAL_STEPS + 10
    costs = rate(
        DraftPayoff(lead=0), steps, rooms=rooms, plain_us=100, drafted_us=250, tokens=2 * rooms
    )
    assert costs == TRIAL_STEPS + 10


def test_what_pays_for_one_room_need_not_pay_for_many() -> None:
    payoff = DraftPayoff(lead=0)
    rate(payoff, 20, rooms=1, plain_us=100, drafted_us=110, tokens=3)
    rate(payoff, 20, rooms=30, plain_us=300, drafted_us=1000, tokens=60)
    assert payoff.allows(1)
    assert not payoff.allows(30)


@pytest.mark.parametrize(("salt", "cache"), [("", True), ("mine", True), ("", False)])
def test_an_answer_that_was_given_before_is_drafted_for_those_who_share_its_salt(
    monkeypatch: pytest.MonkeyPatch, salt: str, cache: bool
) -> None:
    def told(context: bytes, index: int) -> int:
        return 100 + index  # nothing of it occurs before

    monkeypatch.setattr(worlds, "draw", told)
    world, rows = world_of(("unified",), prefix_cache=cache)
    world.submit(submit(1, PROMPT, max_tokens=20))
    world.run()
    assert not any(row.ahead for row in rows)
    world.submit(msgspec.structs.replace(submit(2, (7, 8, 9), max_tokens=20), cache_salt=salt))
    world.run()
    assert world.tokens(2) == expected((7, 8, 9), 20)
    assert any(row.ahead for row in rows) is (cache and not salt)


def test_stages_that_do_not_know_what_was_wrong_are_refused_where_state_must_go_back() -> None:
    pages = StateSpec("kv", KV, (0,), ("k",), 1, 4, DType.F32)
    slot = StateSpec("delta", GroupName("slot"), (1,), ("s",), 1, 8, DType.F32)
    groups = (Group(KV, Unit.PAGE, Full()), Group(GroupName("slot"), Unit.SLOT, Whole()))
    recurrent = StateTable(2, 4, groups, (pages, slot))
    require_draftable(StateTable(2, 4, groups[:1], (pages,)), pp=2)
    require_draftable(recurrent, pp=1)
    with pytest.raises(ConfigError, match="--speculative-config: this model has recurrent state"):
        require_draftable(recurrent, pp=2)


@pytest.mark.parametrize(
    ("drafts", "left"),
    [((1, 2, 3), (1, 2, 3)), ((1, 7, 3), (1,)), ((1, 2, 8), (1, 2)), ((8, 7), ()), ((), ())],
)
def test_an_end_is_no_draft(drafts: tuple[int, ...], left: tuple[int, ...]) -> None:
    limits = Limits(9, (TokenId(8),), (TokenId(7),), 1)
    tokens = tuple(TokenId(token) for token in drafts)
    assert before_end(tokens, limits) == left


def test_an_end_is_drawn_and_never_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or state that has taken it would be kept as that of the tokens before it."""
    monkeypatch.setattr(worlds, "draw", same_as_before)
    world, rows = world_of(("unified",))
    world.submit(submit(1, PROMPT, max_tokens=24, eos=(8,)))  # 8 follows 7 in the prompt
    world.run()
    assert world.tokens(1) == [5, 6, 7, 8]
    assert any(row.ahead for row in rows)
    assert not any(8 in row.tokens for row in rows if row.start >= len(PROMPT))


def test_a_suspect_is_alone_for_longer_than_a_step_with_drafts_reaches() -> None:
    """Or it could end a worker in a draft, beside others, that its gateway has not heard of."""
    assert MARGIN > 1 + MOST_DRAFTS


@pytest.mark.parametrize("optional", [True, False])
def test_a_slot_keeps_stages_from_drafts_and_pages_from_the_cache_unless_it_is_optional(
    optional: bool,
) -> None:
    slot = Group(GroupName("slot"), Unit.SLOT, Whole(), optional)
    table = StateTable(1, 4, (Group(KV, Unit.PAGE, Full()), slot), ())
    assert table.cacheable is optional
    if optional:
        require_draftable(table, pp=2)
    else:
        with pytest.raises(ConfigError, match="recurrent"):
            require_draftable(table, pp=2)
