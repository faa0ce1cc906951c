"""How many pages a sequence needs, against positions counted one by one."""

from hypothesis import given
from hypothesis import strategies as st

from baton.core.ids import GroupName
from baton.core.memory.span import Span
from baton.core.memory.state import Full, Group, StateTable, Unit, Whole, Window

FULL, WINDOW, SLOT = GroupName("full"), GroupName("window"), GroupName("slot")
SIZES = st.integers(1, 40)


def span(window: int, page_tokens: int) -> Span:
    groups = (
        Group(FULL, Unit.PAGE, Full()),
        Group(WINDOW, Unit.PAGE, Window(window)),
        Group(SLOT, Unit.SLOT, Whole()),
    )
    return Span(StateTable(1, 1, groups, ()), page_tokens)


def looked_at(position: int, window: int) -> range:
    """What a step at that position sees, itself included."""
    return range(max(0, position - window + 1), position + 1)


@given(SIZES, SIZES, st.integers(0, 100))
def test_what_is_gone_is_looked_at_by_no_later_step_and_the_next_page_is(
    window: int, size: int, position: int
) -> None:
    gone = span(window, size).gone(position)
    seen = {
        p // size
        for later in range(position, position + 3 * window)
        for p in looked_at(later, window)
    }
    assert gone == {FULL: 0, WINDOW: min(seen), SLOT: 0}


@given(SIZES, SIZES, st.integers(1, 100))
def test_live_pages_hold_what_the_last_of_the_positions_looks_at(
    window: int, size: int, tokens: int
) -> None:
    live = span(window, size).live(tokens)
    assert live == {
        FULL: len({p // size for p in range(tokens)}),
        WINDOW: len({p // size for p in looked_at(tokens - 1, window)}),
        SLOT: 1,
    }


@given(SIZES, SIZES, st.integers(1, 100), SIZES)
def test_a_reserve_is_enough_for_every_step_and_for_some_step_needed(
    window: int, size: int, tokens: int, step: int
) -> None:
    reserve = span(window, size).reserve(tokens, step=step)
    spans = [range(max(0, done - window + 1), min(tokens, done + step)) for done in range(tokens)]
    assert reserve[FULL] == -(-tokens // size)
    assert max(len({p // size for p in s}) for s in spans) <= reserve[WINDOW] <= reserve[FULL]
    # wherever in a page it begins
    longer = [range(at, at + window - 1 + step) for at in range(size)]
    assert reserve[WINDOW] == min(reserve[FULL], max(len({p // size for p in s}) for s in longer))


@given(SIZES, SIZES, st.integers(1, 100))
def test_a_step_moves_where_it_needs_a_page_more_or_one_less_than_the_step_before(
    window: int, size: int, position: int
) -> None:
    it = span(window, size)
    before, now = (
        (it.past(position), it.gone(position - 1)),
        (it.past(position + 1), it.gone(position)),
    )
    assert it.moves(position) == (now != before)
