"""Which work never ends: the bound, the time that counts, and that each piece is said once."""

import pytest

from baton.core.ids import Micros
from baton.core.rank.watchdog import (
    FACTOR,
    FORGETS,
    UsualDuration,
    Watchdog,
    WatchdogSettings,
    WorkKind,
)

FLOOR_MS, FIRST_MS = 4_000, 60_000
TICK_MS = FLOOR_MS // 8


class Dog:
    """A watchdog that is looked at once a tick, as a pump does that asks for its timer."""

    def __init__(self, floor_ms: int = FLOOR_MS, first_ms: int = FIRST_MS) -> None:
        self.dog = Watchdog(WatchdogSettings(floor_ms, first_ms))
        self.now, self.job = Micros(1_000_000_000), 0  # a clock's zero means nothing

    def begins(self, size: int = 1, task: WorkKind = WorkKind.STEP) -> None:
        self.job += 1
        self.dog.begins(task, self.job, size, self.now)

    def ends(self, job: int | None = None, task: WorkKind = WorkKind.STEP) -> None:
        self.dog.ends(task, job or self.job, self.now)

    def passes(self, ms: int) -> list[WorkKind]:
        """So much time in ticks; what is found."""
        found = []
        for step in [TICK_MS] * (ms // TICK_MS) + [ms % TICK_MS] * bool(ms % TICK_MS):
            self.now = Micros(self.now + step * 1000)
            found += [stuck.task for stuck in self.dog.look(self.now)]
        return found

    def stops(self, ms: int) -> list[WorkKind]:
        """The process is not turned for so long."""
        self.now = Micros(self.now + ms * 1000)
        return [stuck.task for stuck in self.dog.look(self.now)]

    def warm(self, size: int = 1, ms: int = 10, task: WorkKind = WorkKind.STEP) -> None:
        self.begins(size, task)
        assert not self.passes(ms)
        self.ends(task=task)


@pytest.mark.parametrize("task", WorkKind)
def test_work_without_progress_is_found_at_the_floor_and_said_once(task: WorkKind) -> None:
    dog = Dog()
    dog.warm(task=task)
    dog.begins(task=task)
    assert not dog.passes(FLOOR_MS)
    assert dog.passes(TICK_MS) == [task]
    assert not dog.passes(10 * FLOOR_MS)
    assert dog.dog.timer() is None, "nothing is left to be looked at"


def test_before_the_first_of_its_kind_has_ended_it_may_take_longer() -> None:
    dog = Dog()
    dog.warm(task=WorkKind.DIGEST)
    dog.begins()
    assert not dog.passes(FIRST_MS)
    assert dog.passes(TICK_MS) == [WorkKind.STEP]


def test_what_took_long_before_may_take_ten_times_as_long() -> None:
    dog = Dog()
    dog.warm(size=512, ms=1_000)
    dog.begins(size=512)
    assert not dog.passes(int(FACTOR) * 1_000)
    assert dog.passes(TICK_MS)


def test_after_a_quick_one_a_slow_one_may_take_nearly_as_long_as_before() -> None:
    dog = Dog()
    dog.warm(size=512, ms=1_000)
    dog.warm(size=512, ms=TICK_MS)
    dog.begins(size=512)
    assert not dog.passes(int(FACTOR * FORGETS) * 1_000)
    assert dog.passes(2 * TICK_MS)


def test_a_small_piece_that_took_long_gives_a_large_one_no_more_time_than_the_first_had() -> None:
    """It compiled, or waited for another rank: ten times that, for each token, would be hours."""
    dog = Dog()
    dog.begins(size=1)
    assert not dog.passes(30_000)
    dog.ends()
    dog.begins(size=4_096)
    assert not dog.passes(FIRST_MS)
    assert dog.passes(TICK_MS) == [WorkKind.STEP]


def test_without_a_bound_for_the_first_what_took_long_may_take_ten_times_as_long() -> None:
    dog = Dog(first_ms=0)
    dog.warm(ms=FLOOR_MS)
    dog.begins()
    assert not dog.passes(int(FACTOR) * FLOOR_MS)
    assert dog.passes(TICK_MS)


def test_a_sign_of_progress_begins_the_wait_anew() -> None:
    dog = Dog()
    dog.warm()
    dog.begins()
    for count in range(1, 30):
        assert not dog.passes(FLOOR_MS)
        dog.dog.progressed(WorkKind.STEP, count)
    assert not dog.passes(FLOOR_MS)
    assert dog.passes(TICK_MS)


def test_time_in_which_the_process_stands_still_counts_for_a_tick() -> None:
    """SIGSTOP, a machine that moves, a pump that is starved."""
    dog = Dog()
    dog.warm()
    dog.begins()
    assert not [task for _ in range(8) for task in dog.stops(3_600_000)]
    assert dog.stops(3_600_000) == [WorkKind.STEP], "but it counts"


def test_each_piece_has_its_own_time_and_only_the_oldest_is_looked_at() -> None:
    dog = Dog()
    dog.warm()
    dog.begins()
    dog.begins()  # behind it, in a pipeline
    assert not dog.passes(FLOOR_MS - TICK_MS)
    dog.ends(2)
    usual_ms = FLOOR_MS - TICK_MS  # by what the first one took
    assert not dog.passes(int(FACTOR) * usual_ms), (
        "the second one's time began when the first had ended"
    )
    assert dog.passes(TICK_MS)


def test_nothing_is_to_be_looked_at_while_nothing_is_under_way() -> None:
    dog = Dog()
    assert dog.dog.timer() is None
    dog.begins()
    assert dog.dog.timer() == dog.now + TICK_MS * 1000
    dog.ends()
    assert dog.dog.timer() is None


def test_off_is_off() -> None:
    dog = Dog(floor_ms=0)
    dog.begins()
    assert dog.dog.timer() is None
    assert not dog.passes(10 * FIRST_MS)
    dog.ends()


def test_a_size_that_was_not_seen_is_judged_by_those_that_were() -> None:
    pace = UsualDuration()
    assert pace.expected(8) is None
    pace.saw(8, 1_000)
    assert pace.expected(8) == 1_000
    assert pace.expected(3) == 1_000, "no longer than more of it"
    assert pace.expected(64) == 8_000, "no longer than so many of them"
    pace.saw(512, 2_000)
    assert pace.expected(64) == 2_000
    for _ in range(60):
        pace.saw(8, 10)
    assert pace.expected(8) == pytest.approx(10, rel=0.2), "what was slow once is forgotten"
