"""Writes down what enters the core objects of a process, and what comes of it.

pump ──call──▶ RecordedLeader ──entry──▶ Leader            the same interface, so nobody else knows
                    └──Step──▶ Recorder ──bytes──▶ Sink     written before the effects of the turn are handed out
"""

from collections.abc import Callable
from typing import cast

from baton.core.agreement import Report, StepPlan, Wedged
from baton.core.cores import AnyFront, AnyLeader, AnyRank, Cores, FrontParts, LeaderParts, RankParts
from baton.core.door import Cancel, QueueView, RequestId, Submit
from baton.core.frames import Said
from baton.core.ids import Boot, Key, Micros, RankId
from baton.core.marks import Marks
from baton.core.messages import Credits, LedgerView, Register
from baton.core.rank_effects import RankEffect
from baton.core.request import Bits, Say
from baton.core.room import Effect, Send
from baton.core.work import BatchDone, Copied, DigestDone, Ended, Handle, Released
from baton.journal import entries as e
from baton.journal.playing import play_front, play_leader, play_rank
from baton.journal.recorder import Recorder


class RecordedLeader:
    """Implements AnyLeader around another."""

    def __init__(self, leader: AnyLeader, recorder: Recorder) -> None:
        self._leader, self._recorder = leader, recorder
        self._effects: list[e.Out] = []

    def _do(self, entry: e.AnyEntry, now: Micros) -> None:
        self._effects += self._recorder.step(e.Kind.LEADER, entry, now, lambda: play_leader(self._leader, entry, now))

    def gateway_up(self, boot: Boot, now: Micros) -> None:
        """See Leader."""
        self._do(e.GatewayUp(boot), now)

    def peer_up(self, boot: Boot, now: Micros) -> None:
        """See Leader."""
        self._do(e.PeerUp(boot), now)

    def peer_lost(self, boot: Boot, why: str, now: Micros) -> None:
        """See Leader."""
        self._do(e.PeerLost(boot, why), now)

    def receive(self, sender: Boot, message: Said, now: Micros) -> None:
        """See Leader."""
        self._do(e.Heard(sender, message), now)

    def reported(self, report: Report, now: Micros) -> None:
        """See Leader."""
        self._do(e.Reported(report), now)

    def on_timer(self, now: Micros) -> None:
        """See Leader."""
        self._do(e.Timer(), now)

    def timer(self) -> Micros | None:
        """See Leader."""
        return self._leader.timer()

    def effects(self) -> list[Effect]:
        """See Leader."""
        self._recorder.flush()
        effects, self._effects = self._effects, []
        return cast(list[Effect], effects)


class RecordedRank:
    """Implements AnyRank around another. A rank has no clock, so its steps get the time from `now`."""

    def __init__(self, rank: AnyRank, recorder: Recorder, now: Callable[[], Micros]) -> None:
        self._rank, self._recorder, self._now = rank, recorder, now

    def _do(self, entry: e.AnyEntry) -> list[RankEffect]:
        outs = self._recorder.step(e.Kind.RANK, entry, self._now(), lambda: play_rank(self._rank, entry))
        return cast(list[RankEffect], outs)

    def apply(self, plan: StepPlan) -> list[RankEffect]:
        """See RankCore."""
        return self._do(e.Applied(plan))

    def connected(self, peer: RankId, why: str) -> None:
        """See RankCore."""
        self._do(e.Connected(peer, why))

    def refused(self, handle: Handle, why: str) -> list[RankEffect]:
        """See RankCore."""
        return self._do(e.ReadRefused(handle, why))

    def ended(self, end: Ended) -> list[RankEffect]:
        """See RankCore."""
        return self._do(e.ReadEnded(end))

    def released(self, end: Released) -> list[RankEffect]:
        """See RankCore."""
        return self._do(e.ReadReleased(end))

    def computed(self, done: BatchDone) -> list[RankEffect]:
        """See RankCore."""
        return self._do(e.Computed(done))

    def hashed(self, done: DigestDone) -> list[RankEffect]:
        """See RankCore."""
        return self._do(e.Hashed(done))

    def copied(self, done: Copied) -> list[RankEffect]:
        """See RankCore."""
        return self._do(e.HostCopied(done))

    def wedged(self, found: Wedged) -> None:
        """See RankCore."""
        self._do(e.FoundWedged(found))

    def report(self) -> Report | None:
        """See RankCore."""
        report = self._rank.report()
        if report is not None:
            self._recorder.step(e.Kind.RANK, e.ReportTaken(), self._now(), lambda: [report])
        self._recorder.flush()
        return report


class RecordedFront:
    """Implements AnyFront around another."""

    def __init__(self, front: AnyFront, recorder: Recorder, now: Callable[[], Micros]) -> None:
        self._front, self._recorder, self._now = front, recorder, now
        self._effects: list[e.Out] = []

    def _do(self, entry: e.AnyEntry, now: Micros) -> None:
        self._effects += self._recorder.step(e.Kind.FRONT, entry, now, lambda: play_front(self._front, entry, now))

    def submit(self, submit: Submit, now: Micros) -> None:
        """See Front."""
        self._do(e.Submitted(submit), now)

    def cancel(self, cancel: Cancel, now: Micros) -> None:
        """See Front."""
        self._do(e.Cancelled(cancel), now)

    def receive(self, sender: Boot, message: Said, now: Micros) -> None:
        """See Front."""
        self._do(e.Heard(sender, message), now)

    def peer_lost(self, boot: Boot, why: str, now: Micros) -> None:
        """See Front."""
        self._do(e.PeerLost(boot, why), now)

    def on_timer(self, now: Micros) -> None:
        """See Front."""
        self._do(e.Timer(), now)

    def timer(self) -> Micros | None:
        """See Front."""
        return self._front.timer()

    def effects(self) -> list[Send | Say]:
        """See Front."""
        self._recorder.flush()
        effects, self._effects = self._effects, []
        return cast(list[Send | Say], effects)

    @property
    def open_requests(self) -> int:
        """See Front."""
        return self._front.open_requests

    def usable_pairs(self) -> list[tuple[Boot, Boot]]:
        """See Front."""
        return self._front.usable_pairs()

    def key_of(self, request: RequestId) -> Key | None:
        """See Front."""
        return self._front.key_of(request)

    def workers(self) -> list[Register]:
        """See Front."""
        return self._front.workers()

    def refusals(self) -> list[str]:
        """See Front."""
        return self._front.refusals()

    def credits(self) -> dict[str, Credits]:
        """See Front."""
        return self._front.credits()

    def queue(self, now: Micros) -> QueueView:
        """See Front."""
        return self._front.queue(now)

    @property
    def marks(self) -> Marks:
        """See Front."""
        return self._front.marks

    def ask_ledger(self, *, audit: bool = True) -> int:
        """See Front."""
        return self._ask(e.LedgerAsked(audit))

    def ask_clear(self) -> int:
        """See Front."""
        return self._ask(e.ClearAsked())

    def ask_reset_cache(self, worker: str | None = None) -> int:
        """See Front."""
        return self._ask(e.ResetCacheAsked(worker))

    def _ask(self, entry: e.LedgerAsked | e.ClearAsked | e.ResetCacheAsked) -> int:
        now = self._now()
        asked, *effects = self._recorder.step(e.Kind.FRONT, entry, now, lambda: play_front(self._front, entry, now))
        self._effects += effects
        assert isinstance(asked, e.Asked)
        return asked.question

    def ledger(self, question: int) -> list[LedgerView] | None:
        """See Front."""
        return self._front.ledger(question)

    def answers(self, question: int) -> list[LedgerView]:
        """See Front."""
        return self._front.answers(question)

    def forget_ledger(self, question: int) -> list[str]:
        """See Front."""
        entry, now = e.LedgerForgotten(question), self._now()
        left, *effects = self._recorder.step(e.Kind.FRONT, entry, now, lambda: play_front(self._front, entry, now))
        self._effects += effects
        assert isinstance(left, e.Unanswered)
        return list(left.names)


class RecordedCores:
    """Implements Cores: what `cores` makes, with a journal around it."""

    def __init__(self, cores: Cores, recorder: Recorder, now: Callable[[], Micros]) -> None:
        self._cores, self._recorder, self._now = cores, recorder, now

    def leader(self, parts: LeaderParts) -> AnyLeader:
        """See Cores."""
        self._recorder.write(parts)
        return RecordedLeader(self._cores.leader(parts), self._recorder)

    def rank(self, parts: RankParts) -> AnyRank:
        """See Cores."""
        self._recorder.write(parts)
        return RecordedRank(self._cores.rank(parts), self._recorder, self._now)

    def front(self, parts: FrontParts, bits: Bits) -> AnyFront:
        """See Cores."""

        def draw(n: int) -> int:
            value = bits(n)
            self._recorder.answered(e.DrewBits(n, f"{value:x}"))
            return value

        self._recorder.write(parts)
        return RecordedFront(self._cores.front(parts, draw), self._recorder, self._now)
