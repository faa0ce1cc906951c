"""Whose turn it is to be read: a fabric has a few reads from each source, in their order, each with
time for those before it."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.build import key

from baton.core.ids import Boot, Rank, RankId
from baton.core.rank.rank_effects import Read
from baton.core.rank.read_queue import READS, WINDOW_BYTES, ReadQueue
from baton.core.work import Handle

DEADLINE_MS = 100
MIB = 1 << 20


def peer(number: int) -> RankId:
    return RankId(Boot(number), Boot(number), Rank(0))


def read(handle: int, *, source: int = 1, room: int = 1, nbytes: int = 100) -> Read:
    return Read(key(room), Handle(handle), peer(source), "shm", (), nbytes, DEADLINE_MS)


def handles(reads: list[Read]) -> list[int]:
    return [int(r.handle) for r in reads]


def test_a_fabric_has_a_few_reads_and_the_next_one_when_one_has_ended():
    queue = ReadQueue()
    turns = [handles(queue.add(read(n))) for n in range(READS + 2)]
    assert turns == [*([n] for n in range(READS)), [], []]
    assert handles(queue.ended(Handle(1))) == [READS]
    assert handles(queue.ended(Handle(0))) == [READS + 1]
    assert queue.ended(Handle(2)) == []


def test_one_source_does_not_keep_the_reads_from_another_waiting():
    queue = ReadQueue()
    for n in range(READS + 1):
        queue.add(read(n, source=1))
    assert handles(queue.add(read(10, source=2))) == [10]


def test_large_reads_go_one_by_one_and_have_time_for_all_their_bytes():
    queue = ReadQueue()
    (first,) = queue.add(read(1, nbytes=3 * WINDOW_BYTES))
    assert first.deadline_ms == 3 * DEADLINE_MS
    assert queue.add(read(2, nbytes=1)) == []
    (second,) = queue.ended(Handle(1))
    assert (int(second.handle), second.deadline_ms) == (2, DEADLINE_MS)


def test_a_read_behind_others_has_time_for_those_too_within_one_window():
    queue = ReadQueue()
    queue.add(read(1, nbytes=WINDOW_BYTES - MIB))
    (second,) = queue.add(read(2, nbytes=MIB))
    assert second.deadline_ms == DEADLINE_MS
    assert queue.add(read(3, nbytes=1)) == []


def test_a_room_that_ends_takes_back_what_the_fabric_never_had():
    queue = ReadQueue()
    for n in range(READS):
        queue.add(read(n, room=1))
    queue.add(read(10, room=1))
    queue.add(read(11, room=2))
    queue.add(read(12, room=1))
    assert queue.drop(key(1)) == [10, 12]
    assert handles(queue.ended(Handle(0))) == [11]


def test_a_source_that_is_disconnected_takes_its_waiting_reads_along():
    queue = ReadQueue()
    for n in range(READS + 2):
        queue.add(read(n, source=1))
    assert queue.disconnect(peer(2)) == []
    assert queue.disconnect(peer(1)) == [READS, READS + 1]
    for n in range(READS):
        assert queue.ended(Handle(n)) == []
    assert len(queue) == 0


def test_what_the_queue_does_not_know_has_no_turn():
    """A read that the fabric had refused before it was submitted was given to it nevertheless; one
    that is unknown was not."""
    queue = ReadQueue()
    assert queue.ended(Handle(5)) == []


ACTION = st.one_of(
    st.tuples(
        st.just("add"),
        st.integers(1, 2),
        st.integers(1, 3),
        st.sampled_from([1, MIB, 40 * MIB, 200 * MIB]),
    ),
    st.tuples(st.just("end"), st.integers(0, 10), st.just(0), st.just(0)),
    st.tuples(st.just("drop"), st.integers(1, 3), st.just(0), st.just(0)),
)


@given(st.lists(ACTION, max_size=60))
def test_nobody_is_lost_or_overtaken_and_the_bounds_hold(actions):
    """Against plain lists: what was ordered is given once, in its order by source, or taken
    back."""
    queue, number = ReadQueue(), 0
    waiting: list[Read] = []
    given_: list[Read] = []
    dropped = False  # then who waited behind has its turn when the next read ends

    def take(turns: list[Read]) -> None:
        for turn in turns:
            mine = [r for r in waiting if r.peer == turn.peer]
            assert mine[0] == replace(turn, deadline_ms=DEADLINE_MS), (
                "first come, first read, and each once"
            )
            waiting.remove(mine[0])
            given_.append(turn)

    for what, a, b, nbytes in actions:
        if what == "add":
            number += 1
            ordered = read(number, source=a, room=b, nbytes=nbytes)
            waiting.append(ordered)
            take(queue.add(ordered))
        elif what == "end" and given_:
            take(queue.ended(given_.pop(a % len(given_)).handle))
        elif what == "drop":
            gone = queue.drop(key(a))
            assert len(gone) == len(set(gone))
            assert set(gone) == {r.handle for r in waiting if r.key == key(a)}
            waiting[:] = [r for r in waiting if r.key != key(a)]
            dropped = True
        for source in (1, 2):
            mine = [r for r in given_ if r.peer == peer(source)]
            assert len(mine) <= READS
            assert len(mine) <= 1 or sum(r.nbytes for r in mine) <= WINDOW_BYTES
            behind = [r for r in waiting if r.peer == peer(source)]
            if what != "drop" and behind and mine and not dropped:
                full = (
                    len(mine) == READS
                    or sum(r.nbytes for r in mine) + behind[0].nbytes > WINDOW_BYTES
                )
                assert full, "a read waits though there is space for it"
            assert mine or not behind
    assert len(queue) == len(waiting) + len(given_)
