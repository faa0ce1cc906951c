"""How long a room may wait for somebody: as long as that one goes on with its work, and not much
longer."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.build import key, manifest, settings, ticket
from tests.core.driven import Driven

from baton.core.agreement import Ballot, ConnectResult, Fetch, Report, Vote
from baton.core.effects import Issue, Send
from baton.core.events import (
    GatewayConnected,
    MessageReceived,
    PeerConnected,
    RankReported,
    TimerDue,
)
from baton.core.handoff.progress import SHARE, ProgressTracker
from baton.core.ids import Boot, Micros, Rank
from baton.core.messages import (
    Admitted,
    BlockRun,
    Failed,
    Hello,
    HelloBack,
    Introduce,
    LegSums,
    Offer,
    Progress,
)
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import RoomState

US, OTHER, PATIENCE_MS = Boot(3), Boot(2), 1_000
PATIENCE = PATIENCE_MS * 1000


def tracker() -> ProgressTracker:
    return ProgressTracker(US, PATIENCE_MS)


def test_who_has_heard_nothing_waits_for_its_own_time_alone():
    assert tracker().patience_ends(OTHER, Micros(50)) == 50 + PATIENCE


def test_a_wait_lasts_as_long_as_the_other_one_goes_on():
    waits = tracker()
    for n in range(1, 6):
        waits.heard(OTHER, n, Micros(n * PATIENCE))
        assert waits.patience_ends(OTHER, Micros(0)) == (n + 1) * PATIENCE


@pytest.mark.parametrize("said", [7, 6, 0])
def test_a_number_that_does_not_grow_is_a_standstill(said):
    waits = tracker()
    waits.heard(OTHER, 7, Micros(0))
    waits.heard(OTHER, said, Micros(900_000))
    assert waits.patience_ends(OTHER, Micros(0)) == PATIENCE


def test_a_room_that_moves_itself_waits_from_then_on():
    waits = tracker()
    waits.heard(OTHER, 1, Micros(0))
    assert waits.patience_ends(OTHER, Micros(500)) == 500 + PATIENCE


def test_who_is_lost_is_forgotten():
    waits = tracker()
    waits.heard(OTHER, 1, Micros(PATIENCE))
    waits.lost(OTHER)
    assert len(waits) == 0
    assert waits.patience_ends(OTHER, Micros(0)) == PATIENCE


def test_what_we_do_ourselves_counts_for_rooms_that_wait_for_us():
    waits = tracker()
    waits.did(Micros(PATIENCE))
    assert waits.patience_ends(US, Micros(0)) == 2 * PATIENCE


def test_news_are_stated_soon_and_not_more_often_than_a_share_of_the_patience():
    waits = tracker()
    assert waits.timer() is None
    assert not waits.due(Micros(PATIENCE))
    waits.did(Micros(PATIENCE))
    assert waits.due(Micros(PATIENCE))
    assert not waits.due(Micros(PATIENCE)), "once"
    waits.did(Micros(PATIENCE + 1))
    assert not waits.due(Micros(PATIENCE + 1))
    assert waits.timer() == PATIENCE + PATIENCE // SHARE
    assert waits.due(waits.timer())


# ---- leaders ------------------------------------------------------------------------------------


class Bench:
    """One leader whose peers and ranks are the test."""

    def __init__(self, leader: Any) -> None:
        self.leader = leader
        self.sent: list[Send] = []
        self.plans: list[Any] = []
        leader.step(GatewayConnected(Boot(1)), Micros(0))
        self.drain()

    def drain(self) -> None:
        for effect in self.leader.effects():
            if isinstance(effect, Send):
                self.sent.append(effect)
            elif isinstance(effect, Issue):
                self.plans.append(effect.plan)

    def hear(self, message: Any, now: int, sender: int = 2) -> None:
        self.leader.step(MessageReceived(Boot(sender), message), Micros(now))
        self.drain()

    def report(self, now: int, **changes: Any) -> None:
        boot, chain = self.leader.worker.manifest.boot, self.leader.worker.agreement.chain
        report = Report(Rank(0), boot, chain.seq, chain.value, (), (), (), (), (), 0)
        self.leader.step(RankReported(replace(report, **changes)), Micros(now))
        self.drain()

    def said(self, kind: type) -> list[Any]:
        return [s.message for s in self.sent if isinstance(s.message, kind)]

    def wait_until(self, now: int) -> None:
        """All that is due until then."""
        while (due := self.leader.next_wake()) is not None and due <= now:
            self.leader.step(TimerDue(), due)
            self.drain()


def decode() -> Bench:
    """A decode worker that is paired with prefill worker 2 and has admitted a room of five
    tokens."""
    bench = Bench(
        Driven(Leader(manifest("decode", 3), settings(stall_ms=PATIENCE_MS), {"full": 16}))
    )
    bench.hear(Introduce(Boot(2), "inproc://p", manifest("prefill", 2)), 0, sender=1)
    bench.leader.step(PeerConnected(Boot(2)), Micros(0))
    bench.drain()
    bench.report(0, connected=(ConnectResult(Boot(2), ""),))
    (hello,) = bench.said(Hello)
    bench.hear(HelloBack(hello.plan), 0)
    bench.hear(ticket(1), 0, sender=1)
    bench.hear(Offer(key(1), 0, {}, (), None), 0)
    assert bench.said(Admitted)
    return bench


def offer(number: int, start: int, end: int) -> Offer:
    runs = {"full": BlockRun(start, end, tuple(range(start, end)))}
    sums = (LegSums(0, "full", tuple(range(start, end)), tuple(range(end - start))),)
    return Offer(key(1), number, runs, sums, None)


def test_a_room_that_waits_for_prefill_fails_when_prefill_stands_still():
    bench = decode()
    bench.wait_until(PATIENCE)
    (failed,) = bench.said(Failed)
    assert "no progress for 1000 ms" in failed.detail
    assert "--handoff-timeout" in failed.detail
    assert failed.retry


def test_a_room_waits_for_as_long_as_prefill_works_on_those_before_it():
    bench = decode()
    for n in range(1, 30):
        bench.wait_until(n * PATIENCE // 2)
        bench.hear(Progress(Boot(2), n), n * PATIENCE // 2)
    assert bench.said(Failed) == []
    bench.wait_until(29 * PATIENCE // 2 + PATIENCE - 1)
    assert bench.said(Failed) == []
    bench.wait_until(29 * PATIENCE // 2 + PATIENCE)
    assert len(bench.said(Failed)) == 1


def test_progress_of_somebody_else_changes_nothing():
    bench = decode()
    bench.hear(Progress(Boot(9), 1), PATIENCE // 2, sender=9)
    bench.wait_until(PATIENCE)
    assert len(bench.said(Failed)) == 1
    assert len(bench.leader.worker.progress) == 0


def test_what_is_said_in_anothers_name_changes_nothing():
    bench = decode()
    bench.hear(Progress(Boot(8), 50), PATIENCE // 2)
    bench.wait_until(PATIENCE)
    assert len(bench.said(Failed)) == 1


def test_a_room_whose_reads_wait_for_others_does_not_wait_for_prefill():
    """Prefill is done and says nothing more; our ranks settle one order after the other, and this
    room's is the last."""
    bench = decode()
    bench.hear(offer(1, 0, 1), 0)
    bench.hear(ticket(2), 0, sender=1)
    bench.hear(replace(offer(1, 0, 1), key=key(2)), 0)
    mine = [f for plan in bench.plans for f in plan.fetch]
    assert [f.key for f in mine] == [key(1)], (
        "the second room is not admitted yet: it has no Offer 0"
    )
    bench.hear(Offer(key(2), 0, {}, (), None), 0)
    orders: list[Fetch] = [f for plan in bench.plans for f in plan.fetch]
    assert len(orders) == 2
    bench.wait_until(PATIENCE - 1)
    bench.report(PATIENCE - 1, ballots=(Ballot(orders[1].order, Vote.ARRIVED, "", ()),))
    bench.wait_until(2 * PATIENCE - 2)
    assert [f.key for f in bench.said(Failed)] == []
    bench.wait_until(2 * PATIENCE)
    assert {f.key for f in bench.said(Failed)} == {key(1), key(2)}


def prefill() -> Bench:
    bench = Bench(
        Driven(Leader(manifest("prefill", 2), settings(stall_ms=PATIENCE_MS), {"full": 16}))
    )
    plan = bench.leader.worker.plans.pair(
        bench.leader.worker.placements, [manifest("decode", 3).placement(0)]
    )
    bench.hear(Hello(manifest("decode", 3), plan.digest), 0, sender=3)
    bench.hear(ticket(1), 0, sender=1)
    return bench


def test_prefill_says_that_it_goes_on_to_those_who_may_wait_for_it():
    bench = prefill()
    assert bench.leader.worker.rooms[key(1)].state is RoomState.COMPUTING
    bench.leader.worker.progress.did(Micros(PATIENCE))
    bench.wait_until(2 * PATIENCE)
    assert [(s.to, s.message) for s in bench.sent if isinstance(s.message, Progress)] == [
        (Boot(3), Progress(Boot(2), 1))
    ]


def test_whoever_shares_no_room_with_us_is_told_nothing_and_believed_nothing():
    bench = Bench(
        Driven(Leader(manifest("prefill", 2), settings(stall_ms=PATIENCE_MS), {"full": 16}))
    )
    bench.leader.worker.progress.did(Micros(PATIENCE))
    bench.wait_until(3 * PATIENCE)
    bench.hear(Progress(Boot(3), 5), 3 * PATIENCE, sender=3)
    assert bench.said(Progress) == []
    assert Boot(3) not in bench.leader.worker.progress
    assert bench.leader.next_wake() is None
