"""The open rooms of a worker, against a list that is looked through."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from baton.core.scheduler.room import RoomState
from baton.core.scheduler.rooms import Rooms

STATES = list(RoomState)[:3]
STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "move", "drop"]), st.integers(0, 9), st.sampled_from(STATES)),
    max_size=60,
)


def room(n: int, stamp: int) -> SimpleNamespace:
    return SimpleNamespace(
        key=n, state=RoomState.QUEUED, ticket=SimpleNamespace(came=(stamp, 1)), number=0
    )


@given(STEPS, st.sets(st.sampled_from(STATES)))
def test_rooms_are_found_by_state_in_the_order_of_their_stamps_then_of_their_coming(steps, asked):
    rooms, every = Rooms(), []
    for n, (what, which, state) in enumerate(steps):
        if what == "add" or not every:
            every.append(room(n, which % 3))
            rooms.add(every[-1])
        elif what == "move":
            rooms.move(every[which % len(every)], state)
        else:
            rooms.drop(every.pop(which % len(every)))
    found = [r for r in every if r.state in asked]
    # a stable sort: who came first is first
    assert rooms.in_state(*asked) == sorted(found, key=lambda r: r.ticket.came)
    assert [rooms.count(state) for state in STATES] == [
        sum(r.state is state for r in every) for state in STATES
    ]
    assert list(rooms.items()) == [(r.key, r) for r in every]
