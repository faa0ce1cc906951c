"""Work that does not end on a rank: when the worker is given up, and what is said before."""

from typing import Any

import msgspec
from tests.core.build import drawn, manifest, settings, ticket
from tests.core.driven import Driven

from baton.core.agreement import RowResult, StepResult, Wedged
from baton.core.effects import Effect, GiveUp, Issue, Send
from baton.core.events import GatewayConnected, MessageReceived, RankReported
from baton.core.ids import Boot, Micros, Rank, Seq
from baton.core.messages import FailCode, Failed, Trial
from baton.core.scheduler.leader import Leader

GATEWAY, U = Boot(1), Boot(2)


class Ranks:
    """A unified leader of several ranks that a test plays."""

    def __init__(self, ranks: int, *rooms: int, alone_until: int = 0) -> None:
        whole = manifest("unified", U)
        (one,) = whole.ranks
        more = tuple(
            msgspec.structs.replace(one, boot=Boot(U + r), rank=r, tp_rank=r) for r in range(ranks)
        )
        whole = msgspec.structs.replace(whole, tp=ranks, ranks=more)
        self.leader: Any = Driven(Leader(whole, settings(), {"full": 16}))  # type: ignore[dict-item]
        self.leader.step(GatewayConnected(GATEWAY), Micros(0))
        self.said: list[Effect] = []
        for number in rooms:
            own = msgspec.structs.replace(
                ticket(number, prefill=U, decode=U), alone_until=alone_until
            )
            self.leader.step(MessageReceived(GATEWAY, own), Micros(0))
        self.take()
        self.ranks = ranks
        (self.seq,) = self.leader.worker.batches._flight

    def take(self) -> list[Effect]:
        found = self.leader.effects()
        self.said += found
        return found

    def report(
        self, rank: int, *, wedged: Wedged | None = None, ended: bool = False
    ) -> list[Effect]:
        from baton.core.agreement import Report

        agreement = self.leader.worker.agreement
        rows = tuple(
            RowResult(row.key, drawn(7), {})
            for _, row in self.leader.worker.batches._flight.get(self.seq, [])
        )
        report = Report(
            Rank(rank),
            Boot(U + rank),
            agreement.chain.seq,
            agreement.chain.value,
            ballots=(),
            quiet=(),
            steps=(StepResult(self.seq, rows),) if ended else (),
            connected=(),
            rehashed=(),
            reads=0,
            wedged=(wedged,) if wedged is not None else (),
        )
        self.leader.step(RankReported(report), Micros(1))
        return self.take()

    def stuck(self, rank: int) -> list[Effect]:
        return self.report(rank, wedged=Wedged(self.seq, "a step hangs"))


def gave_up(effects: list[Effect]) -> bool:
    return bool(effects) and isinstance(effects[-1], GiveUp)


def failures(effects: list[Effect]) -> list[tuple[int, FailCode, bool]]:
    said = [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, Failed)]
    return [(int(m.key.room, 16), m.code, m.retry) for m in said]


def test_rooms_go_on_elsewhere_and_giving_up_is_the_last_effect() -> None:
    done = Ranks(1, 1, 2).stuck(0)
    assert gave_up(done)
    assert failures(done) == [(1, FailCode.WORKER_LOST, True), (2, FailCode.WORKER_LOST, True)]
    assert not any(isinstance(e, Issue) for e in done)


def test_a_step_is_given_up_when_no_rank_will_end_it() -> None:
    """A rank that says nothing may have been stopped: the others wait for it, and its session is
    given up in time."""
    ranks = Ranks(2, 1)
    assert not gave_up(ranks.stuck(0))
    assert gave_up(ranks.stuck(1))


def test_a_rank_that_has_ended_its_part_does_not_wait() -> None:
    ranks = Ranks(2, 1)
    assert not gave_up(ranks.stuck(0))
    assert gave_up(ranks.report(1, ended=True))


def test_a_step_that_ends_after_all_is_forgotten() -> None:
    ranks = Ranks(2, 1)
    ranks.stuck(0)
    ranks.report(0, ended=True)
    assert not gave_up(ranks.report(1, ended=True))
    assert not ranks.leader.worker.batches.wedges


def test_other_work_waits_for_no_other_rank() -> None:
    assert gave_up(Ranks(2, 1).report(1, wedged=Wedged(None, "a digest hangs")))


def test_word_of_a_step_that_has_ended_meanwhile_changes_nothing() -> None:
    assert not gave_up(Ranks(1, 1).report(0, wedged=Wedged(Seq(99), "late")))


def test_who_was_alone_in_the_step_is_refused() -> None:
    ranks = Ranks(1, 1, alone_until=16)
    assert any(isinstance(e, Send) and isinstance(e.message, Trial) for e in ranks.said)
    assert failures(ranks.stuck(0)) == [(1, FailCode.POISON, False)]


def test_who_was_alone_in_the_step_is_refused_before_the_others_are_told() -> None:
    """So the gateway knows that they are innocent."""
    ranks = Ranks(1, 1)
    suspect = msgspec.structs.replace(ticket(2, prefill=U, decode=U), alone_until=16)
    ranks.leader.step(MessageReceived(GATEWAY, suspect), Micros(1))
    ranks.report(0, ended=True)
    (ranks.seq,) = ranks.leader.worker.batches._flight
    found = [(room, code) for room, code, _ in failures(ranks.stuck(0))]
    assert found == [(2, FailCode.POISON), (1, FailCode.WORKER_LOST)]
