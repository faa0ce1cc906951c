"""How fast a worker generates, how long answers are, and which of them may begin therefore."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.build import drawn, limits, manifest
from tests.core.gateway.test_credits import Edge, credits, waiting
from tests.core.gateway.test_front import D, P, heard

from baton.core.errors import Overloaded
from baton.core.events import TimerDue
from baton.core.gateway.registered_worker import FIRST, RegisteredWorker
from baton.core.gateway.throughput import AnswerLengths, Throughput
from baton.core.ids import Epoch, Key, Micros, Room, Stamp, TokenIndex
from baton.core.messages import Ended, FailCode, Recompute, Register, Tokens

SECOND = 1_000_000


def key(number: int) -> Key:
    return Key(Room(f"{number:032x}"), Epoch(1))


def steady(rows: int, *, step_us: int, steps: int) -> tuple[Throughput, Micros]:
    """So many answers under way, each with a token a step; and when it is."""
    found, now = Throughput(), 0
    for now in range(0, steps * step_us, step_us):
        for row in range(rows):
            found.made(key(row), 1, Micros(now))
    return found, Micros(now)


def test_tokens_that_come_after_the_end_of_their_room_leave_nothing_behind():
    """The answer of an engine over HTTP may be slower than the end that its leader reports."""
    worker = RegisteredWorker(Register("d", "tcp://d", manifest("decode", 3), Stamp(0)))
    worker.ended(key(1), Micros(0))
    worker.made(key(1), 5, Micros(1))
    assert worker._throughput.of(key(1)) == 0


# ---- pace ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "step_us"), [(1, 10_000), (8, 25_000), (40, 300_000)])
def test_as_many_answers_get_their_tokens_as_they_did_and_twice_as_many_take_twice_as_long_at_most(
    rows, step_us
):
    found, now = steady(rows, step_us=step_us, steps=300)
    assert found.pace(rows + 1, now) == pytest.approx(step_us)
    assert found.pace(2 * (rows + 1), now) == pytest.approx(2 * step_us)


def test_nothing_is_known_before_some_tokens_have_come():
    found, now = steady(3, step_us=1_000, steps=5)
    assert found.pace(4, now) is None, "fifteen"
    found.made(key(0), 1, Micros(now + 1_000))
    assert found.pace(4, Micros(now + 1_000)) is not None


def test_time_in_which_no_answer_was_under_way_does_not_count():
    found, now = steady(4, step_us=10_000, steps=200)
    before = found.pace(4, now)
    for row in range(4):
        found.ended(key(row), now)
    assert found.pace(4, Micros(now + 3600 * SECOND)) == before


def test_a_standstill_counts_while_it_lasts():
    found, now = steady(4, step_us=10_000, steps=250)
    assert found.pace(5, Micros(now + 10 * SECOND)) > 2 * found.pace(5, now)


def test_what_was_long_ago_is_forgotten():
    """Two seconds at a tenth of the pace: nothing is left of what was before."""
    found, now = steady(4, step_us=10_000, steps=1000)
    for later in range(now + 100_000, now + 4 * SECOND, 100_000):
        for row in range(4):
            found.made(key(row), 1, Micros(later))
        now = Micros(later)
    assert found.pace(5, now) == pytest.approx(100_000)


@given(
    st.lists(
        st.tuples(st.integers(1, 400_000), st.integers(0, 5), st.integers(0, 3)),
        min_size=1,
        max_size=80,
    )
)
# two windows of a second and 16 tokens to the point,
@example([(1, 0, 4), *[(250_000, 0, 3)] * 4, *[(250_000, 0, 4)] * 4])
# and one that begins
@example([(1, 0, 4), *[(250_000, 0, 3)] * 4, *[(250_000, 0, 4)] * 4, (1, 0, 1)])
@settings(max_examples=200, deadline=None)
def test_the_pace_is_that_of_the_last_two_windows_by_hand(steps):
    """Each step: so long after the last, of this answer so many tokens; none: it ends."""
    found, now = Throughput(), 0
    # windows of (time, answers under way, tokens)
    stretches: list[list[tuple[int, int, int]]] = [[]]
    rows: set[int] = set()
    full = False  # the present window ends with the next step, as time passes before it
    for gap, row, tokens in steps:
        now += gap
        if full:
            stretches.append([])
        if tokens or row in rows:
            stretches[-1].append((gap if rows else 0, len(rows), tokens))
        elif rows:
            # nobody notices until the next look, which is below
            stretches[-1].append((gap, len(rows), 0))
        if tokens:
            found.made(key(row), tokens, Micros(now))
            rows.add(row)
        else:
            found.pace(1, Micros(now))
            found.ended(key(row), Micros(now))
            rows.discard(row)
        enough = (
            sum(t for t, _, _ in stretches[-1]) >= SECOND
            and sum(n for _, _, n in stretches[-1]) >= 16
        )
        full = bool(tokens) and enough
    last = [step for window in stretches[-2:] for step in window]
    busy, made = sum(t for t, _, _ in last), sum(n for _, _, n in last)
    answer_time = sum(t * n for t, n, _ in last)
    if made < 16 or not busy:
        assert found.pace(3, Micros(now)) is None
    else:
        assert found.pace(3, Micros(now)) == pytest.approx(
            answer_time / made * 3 / (answer_time / busy + 1)
        )


# ---- lengths -------------------------------------------------------------------------------------


def test_an_answer_that_only_its_limit_ends_is_as_long_as_that():
    lengths = AnswerLengths()
    for _ in range(50):
        lengths.add(3)
    assert lengths.expected(limits(max_tokens=1000)) == 1000


def test_any_other_is_as_long_as_nineteen_of_twenty_were():
    lengths = AnswerLengths()
    assert lengths.expected(limits(max_tokens=8000, eos=(0,))) == lengths.GUESS
    for n in range(1, 21):
        lengths.add(10 * n)
    assert lengths.expected(limits(max_tokens=8000, eos=(0,))) == 200
    assert lengths.expected(limits(max_tokens=150, eos=(0,))) == 150
    assert lengths.expected(replace(limits(max_tokens=8000), stop_token_ids=(5,))) == 200
    for _ in range(128):
        lengths.add(7)
    assert lengths.expected(limits(max_tokens=8000, eos=(0,))) == 7, "old ones are forgotten"


# ---- at the gateway ------------------------------------------------------------------------------


class Hurried(Edge):
    """A front whose decode worker gives each answer a token every `step_us`."""

    def __init__(self, *, answers: int, step_us: int = 100_000, tokens: int = 100) -> None:
        super().__init__()
        roomy = {"free": 1 << 20, "free_rooms": 1 << 20}
        self.hear(P, replace(credits(1, **roomy), total_pages={}))
        self.hear(D, replace(credits(1, **roomy), total_pages={}))
        self.said: dict[int, int] = {}
        self.step_us = step_us
        for n in range(1, answers + 1):
            assert self.ask(n, limits=limits(max_tokens=tokens, deadline_ms=600_000)) == [n]
            self.said[n] = 0
        self.steps(40)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.now += self.step_us
            for n in self.said:
                self.hear(D, Tokens(self.key(n), TokenIndex(self.said[n]), (drawn(7),), None))
                self.said[n] += 1

    def ends(self, number: int) -> list[int]:
        del self.said[number]
        return self.hear(D, Ended(self.key(number)))


def test_an_answer_begins_if_it_ends_in_time_with_something_to_spare():
    """Four answers: a token of each in 100 ms, of five in as much at least; so 20 tokens take two
    seconds, or three."""
    edge = Hurried(answers=4)
    assert edge.ask(5, limits=limits(max_tokens=20, deadline_ms=3_100)) == [5]


def test_an_answer_waits_that_would_end_too_late_and_begins_when_another_has_ended():
    edge = Hurried(answers=4)
    assert edge.ask(5, limits=limits(max_tokens=20, deadline_ms=2_500)) == []
    assert waiting(edge, edge.now)[0] == 1
    assert edge.ends(1) == [5], "the four that are then under way need as long as those four did"


def test_an_answer_is_refused_at_once_that_would_end_too_late_whatever_happens():
    edge = Hurried(answers=4)
    with pytest.raises(
        Overloaded, match=r"takes 2000 ms beside .* 1500 ms are left " r".*--request-timeout"
    ) as raised:
        edge.ask(5, limits=limits(max_tokens=20, deadline_ms=1_500))
    assert raised.value.retry_after_s == 1
    assert edge.front.queue(Micros(edge.now)).refused == {"late": 1}


def test_who_has_waited_until_it_is_too_late_is_told_so_and_the_next_one_has_its_turn():
    edge = Hurried(answers=4)
    assert edge.ask(5, limits=limits(max_tokens=20, deadline_ms=2_500)) == []
    assert edge.ask(6, limits=limits(max_tokens=20, deadline_ms=60_000)) == [], "nobody overtakes"
    edge.steps(7)
    edge.front.step(TimerDue(), Micros(edge.now))
    assert edge.begun() == [6]
    (fail,) = heard(edge.done)
    assert (fail.request, fail.code) == (5, FailCode.QUEUE_TIMEOUT)
    assert "ms are left for it" in fail.detail


def test_whoever_waits_for_time_is_looked_at_again_although_no_worker_says_anything():
    edge = Hurried(answers=4)
    assert edge.ask(5, limits=limits(max_tokens=20, deadline_ms=2_500)) == []
    assert edge.now < edge.front.next_wake() <= edge.now + 50_000


def test_no_answer_begins_that_would_keep_another_from_ending_in_time():
    """The fifth has 20 tokens to come and three seconds; with five beside it they would take 2.4,
    and a quarter more is 3."""
    edge = Hurried(answers=4)
    assert edge.ask(5, limits=limits(max_tokens=20, deadline_ms=3_005)) == [5]
    assert edge.ask(6, limits=limits(max_tokens=20, deadline_ms=60_000)) == [6]
    assert edge.ask(7, limits=limits(max_tokens=20, deadline_ms=60_000)) == []


def test_a_worker_of_which_nothing_is_known_is_given_a_few_answers():
    edge = Edge()
    roomy = {"free": 1 << 20, "free_rooms": 1 << 20}
    edge.hear(P, replace(credits(1, **roomy), total_pages={}))
    edge.hear(D, replace(credits(1, **roomy), total_pages={}))
    begun = [edge.ask(n) for n in range(1, FIRST + 3)]
    assert begun == [[n] for n in range(1, FIRST + 1)] + [[], []]


def test_an_idle_worker_takes_any_answer():
    edge = Hurried(answers=1)
    edge.ends(1)
    assert edge.ask(2, limits=limits(max_tokens=1000, deadline_ms=1_000)) == [2]


def test_who_has_heard_something_of_its_answer_goes_on_whatever_time_is_left():
    edge = Hurried(answers=4)
    assert edge.ask(5, limits=limits(max_tokens=20, deadline_ms=3_100)) == [5]
    edge.said[5] = 0
    edge.steps(1)
    assert edge.hear(D, Recompute(edge.key(5))) == [5]


def test_of_an_answer_that_goes_on_elsewhere_only_the_rest_is_still_to_come():
    """Two tokens, which end in time beside another answer. All of it again, or more than that,
    would not."""
    edge = Hurried(answers=4)
    assert edge.ask(5, limits=limits(max_tokens=20, deadline_ms=5_800)) == [5]
    edge.said[5] = 0
    edge.steps(18)
    before = edge.key(5)
    assert edge.hear(D, Recompute(before)) == [5]
    edge.hear(D, Ended(before))
    assert edge.ask(6, limits=limits(max_tokens=20, deadline_ms=60_000)) == [6]
