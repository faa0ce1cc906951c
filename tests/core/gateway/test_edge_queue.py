"""Whose turn is next at the edge, how long anybody can be passed over, and what wait is
foretold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.gateway.edge_queue import OLDEST_EVERY, EdgeQueue
from baton.core.ids import Arrival, Micros

T0 = Micros(0)


def queue(*waiting: tuple[int, int]) -> EdgeQueue:
    """(arrival, priority) of fresh requests."""
    found = EdgeQueue()
    for arrival, priority in waiting:
        found.add(Arrival(arrival), priority=priority, begun=False, now=T0)
    return found


def drain(q: EdgeQueue) -> list[int]:
    left = []
    while (arrival := q.next()) is not None:
        q.leave(arrival, T0)
        left.append(int(arrival))
    return left


@pytest.mark.parametrize(
    ("waiting", "order"),
    [
        ([(1, 0), (2, 0), (3, 0)], [1, 2, 3]),
        ([(1, 5), (2, 0), (3, -1)], [3, 2, 1]),
        # the fourth to leave is the oldest
        ([(1, 9), (2, 0), (3, 0), (4, 0), (5, 0), (6, 0)], [2, 3, 4, 1, 5, 6]),
    ],
)
def test_the_lower_priority_value_first_then_who_came_first_and_sometimes_the_oldest(
    waiting, order
):
    assert drain(queue(*waiting)) == order


def test_what_workers_had_already_goes_first_whatever_its_priority():
    q = queue((1, 0), (2, -5))
    q.add(Arrival(3), priority=9, begun=True, now=T0)
    assert drain(q) == [3, 2, 1]


@given(
    st.lists(
        st.one_of(st.tuples(st.integers(-3, 3), st.booleans()), st.just("turn"), st.just("goes")),
        max_size=60,
    )
)
@settings(max_examples=300, deadline=None)
def test_nobody_is_passed_over_for_ever(steps):
    """Every departure is of the right request, and each within the bound that the module states."""
    q, waiting, came = EdgeQueue(), {}, 0
    passed: dict[int, list[int]] = {}  # waiting arrival -> arrivals that left after it came
    for step in [*steps, *["turn"] * 60]:
        if step == "goes" and waiting:
            gone = min(waiting)
            q.discard(Arrival(gone))
            del waiting[gone], passed[gone]
        elif step == "turn":
            arrival = q.next()
            assert (arrival is None) == (not waiting)
            if arrival is None:
                continue
            q.leave(arrival, T0)
            older = sum(s < arrival for s in passed[arrival])
            assert len(passed[arrival]) + 1 <= OLDEST_EVERY * (older + 1), (
                f"{arrival} was passed by {passed[arrival]}"
            )
            assert arrival == min(waiting) or waiting[arrival] == min(waiting.values())
            del waiting[arrival], passed[arrival]
            for left in passed.values():
                left.append(arrival)
        elif step != "goes":
            came += 1
            priority, begun = step
            q.add(Arrival(came), priority=priority, begun=begun, now=T0)
            waiting[came], passed[came] = (not begun, priority), []
        assert len(q) == len(waiting)
        assert q.oldest == min(waiting, default=None)
    assert not waiting


def test_the_wait_is_foretold_from_the_pace_and_from_who_goes_first():
    q = queue(*((n, n % 2) for n in range(1, 21)))  # ten of priority 0, ten of 1
    assert q.wait(0, Micros(500)) == 0, "nobody has left yet"
    for n in (2, 4, 6):
        q.leave(Arrival(n), Micros(n * 100))
    assert q.wait(0, Micros(600)) == 0, "three departures are no pace"
    q.leave(Arrival(1), Micros(800))
    assert q.wait(0, Micros(800)) == (7 + 1) * 200
    assert q.wait(1, Micros(800)) == (16 + 1) * 200
    assert q.wait(1, Micros(800), before=3) == (16 + 1 + 3) * 200
    assert q.wait(-1, Micros(800)) == 200
    assert q.wait(-1, Micros(2_000)) == 500, "a standstill counts"


def test_a_burst_at_first_does_not_hide_how_slow_the_queue_moves_now():
    q = queue(*((n, 0) for n in range(1, 61)))
    for n in range(1, 41):
        q.leave(Arrival(n), Micros(n))
    assert q.wait(0, Micros(40)) == 21
    for n in range(41, 57):
        q.leave(Arrival(n), Micros(40 + 1_000 * (n - 40)))
    assert q.wait(0, Micros(16_040)) == 5 * 1_000
    assert q.pace.gap(Micros(16_040)) == 1_000


def test_an_empty_queue_forgets_its_pace():
    q = queue(*((n, 0) for n in range(1, 6)))
    for n in range(1, 6):
        q.leave(Arrival(n), Micros(n * 1_000_000))
    assert q.wait(0, Micros(9_000_000)) == 0
    q.add(Arrival(9), priority=0, begun=False, now=Micros(9_000_000))
    assert q.wait(0, Micros(9_000_000)) == 0
