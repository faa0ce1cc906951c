"""How long the thread of a transfer engine sleeps between two looks."""

from itertools import pairwise

from baton.adapters.pace import (
    ASLEEP_WAIT_US,
    AWAKE_US,
    AWAKE_WAIT_US,
    BUSY_US,
    MOVING_WAIT_US,
    Pace,
)
from baton.core.ids import Micros

COLD, WARM, MOVES = 2 * BUSY_US, BUSY_US / 10, 10 * BUSY_US  # processor time of looks


class Looking:
    """A thread that looks, under a clock of our own. A look after a pause finds cold caches."""

    def __init__(self) -> None:
        self.pace, self.now, self.wait = Pace(), Micros(0), 1

    def look(self, *, moves: bool = False, moved: bool = False, reading: bool = False) -> int:
        spent = MOVES if moves else COLD if self.wait else WARM
        self.wait = self.pace.after(self.now, moved=moved, spent_us=spent, reading=reading)
        self.now = Micros(self.now + self.wait + 1)
        return self.wait

    def during(self, us: int, *, reading: bool = False) -> list[int]:
        end, waits = self.now + us, []
        while self.now < end:
            waits.append(self.look(reading=reading))
        return waits


def test_an_idle_engine_falls_asleep_although_every_look_after_a_pause_is_slow() -> None:
    thread = Looking()
    waits = thread.during(1_000_000)
    pauses = [wait for wait in waits if wait]
    assert all(after <= max(20, 2 * before) for before, after in pairwise(pauses))
    assert pauses[-1] == ASLEEP_WAIT_US
    assert len(waits) <= 2 * (1_000_000 // ASLEEP_WAIT_US + 12)


def test_bytes_that_move_are_followed_without_a_pause() -> None:
    thread = Looking()
    thread.during(1_000_000)
    assert [thread.look(moves=True) for _ in range(5)] == [0] * 5
    assert max(thread.during(AWAKE_US - 2_000)) == AWAKE_WAIT_US
    assert max(thread.during(500_000)) == ASLEEP_WAIT_US


def test_a_rank_that_may_be_read_is_looked_at_often_for_a_while() -> None:
    thread = Looking()
    thread.during(1_000_000)
    thread.pace.attend(thread.now)
    assert thread.pace.awake(thread.now)
    assert max(thread.during(AWAKE_US - AWAKE_WAIT_US)) == AWAKE_WAIT_US
    assert not thread.pace.awake(Micros(thread.now + AWAKE_WAIT_US))


def test_reads_of_ours_are_looked_at_most_often() -> None:
    thread = Looking()
    thread.during(1_000_000)
    assert thread.look(moved=True, reading=True) == 0
    assert max(thread.during(1_000_000, reading=True)) == MOVING_WAIT_US
