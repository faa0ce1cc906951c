"""A worker's pump over a leader, a rank and lines that a test scripts."""

import pytest

from baton.core.agreement import Report, StepPlan
from baton.core.effects import Dial, Effect, GiveUp, HangUp, Issue, Send
from baton.core.errors import ConfigError, GivenUp
from baton.core.events import LeaderEvent, PeerLost, RankReported
from baton.core.ids import Boot, Link, Micros, Rank, Seq
from baton.core.messages import Paired
from baton.core.session import session
from baton.core.session.session import SessionEvent, WrongPeer
from baton.shell.narration import Narration
from baton.shell.worker import WorkerPump

GATEWAY, PREFILL, OURS = Boot(1), Boot(2), Boot(3)


class Clock:
    def now(self) -> Micros:
        return Micros(0)


class Leader:
    """Has these effects at first, and is told the rest."""

    def __init__(self, *effects: Effect) -> None:
        self.due: list[Effect] = list(effects)
        self.heard: list[object] = []

    def step(self, event: LeaderEvent, now: Micros) -> list[Effect]:
        match event:
            case RankReported(report=report):
                self.heard.append(report.applied)
            case PeerLost(boot=boot, why=why):
                self.heard.append(why)
                self.due.append(Send(GATEWAY, Paired(boot, "tcp")))
            case _:
                pass
        found, self.due = self.due, []
        return found

    def next_wake(self) -> Micros | None:
        """It has something to do as long as it has effects that nobody asked for."""
        return Micros(0) if self.due else None


class Host:
    """A rank that reports what it has applied."""

    def __init__(self) -> None:
        self.applied: list[Seq] = []

    def poll(self) -> bool:
        return False

    def timer(self) -> None:
        return None

    def apply(self, plan: StepPlan) -> None:
        self.applied.append(plan.seq)

    def report(self) -> Report | None:
        if not self.applied:
            return None
        return Report(
            Rank(0),
            OURS,
            self.applied.pop(),
            b"",
            ballots=(),
            quiet=(),
            steps=(),
            connected=(),
            rehashed=(),
            reads=0,
        )


class Lines:
    """Dials nobody."""

    def __init__(self) -> None:
        self.said: list[object] = []
        self.flushed: list[object] = []

    def receive(self) -> list[object]:
        return []

    def dial(self, address: str, expect: Boot | None) -> int:
        raise ConfigError(f"{address} must not be dialled from here")

    def send(self, boot: Boot, message: object) -> bool:
        self.said.append(message)
        return True

    def flush(self) -> None:
        self.flushed = list(self.said)

    def timer(self) -> None:
        return None


class Elsewhere(Lines):
    """Dials, and somebody else answers."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[SessionEvent] = []
        self.hung_up: list[Link] = []

    def receive(self) -> list[SessionEvent]:
        found, self.events = self.events, []
        return found

    def dial(self, address: str, expect: Boot | None) -> Link:
        return Link(7)

    def hang_up(self, link: Link) -> None:
        self.hung_up.append(link)


def turn(leader: Leader) -> Lines:
    lines = Lines()
    pump = WorkerPump(
        leader=leader,
        rank=Host(),
        others=(),
        absent=(),
        lines=lines,
        clock=Clock(),
        gateways=(),
        narration=Narration(),
    )
    pump.turn()
    pump.turn()
    return lines


def test_what_a_plan_does_to_our_rank_is_known_to_the_leader_in_the_same_turn() -> None:
    leader = Leader(Issue(StepPlan(Seq(1))))
    turn(leader)
    assert leader.heard == [1]


def test_what_the_leader_says_of_an_address_that_is_refused_goes_out_in_the_same_turn() -> None:
    leader = Leader(Dial("tcp://10.0.0.1:1", PREFILL))
    assert turn(leader).said == [Paired(PREFILL, "tcp")]
    assert leader.heard == ["tcp://10.0.0.1:1 must not be dialled from here"]


def test_a_worker_is_lost_where_another_process_answers_for_it() -> None:
    leader, lines = Leader(Dial("tcp://10.0.0.1:1", PREFILL)), Elsewhere()
    pump = WorkerPump(
        leader=leader,
        rank=Host(),
        others=(),
        absent=(OURS,),
        lines=lines,
        clock=Clock(),
        gateways=(),
        narration=Narration(),
    )
    pump.turn()
    pump.turn()
    lines.events = [
        WrongPeer(Link(8), "of a gateway, which is dialled on"),
        WrongPeer(Link(7), "boot 9 answered"),
    ]
    pump.turn()
    assert leader.heard == ["boot 9 answered"]
    leader.due = [HangUp(PREFILL)]
    pump.turn()
    pump.turn()
    assert lines.hung_up == [7]


def test_a_worker_that_is_given_up_ends_when_its_last_words_are_on_their_way() -> None:
    leader, lines = (
        Leader(Send(GATEWAY, Paired(PREFILL, "tcp")), GiveUp("a step does not end")),
        Lines(),
    )
    pump = WorkerPump(
        leader=leader,
        rank=Host(),
        others=(),
        absent=(),
        lines=lines,
        clock=Clock(),
        gateways=(),
        narration=Narration(),
    )
    pump.turn()
    with pytest.raises(GivenUp, match="a step does not end"):
        pump.turn()
    assert lines.flushed == [Paired(PREFILL, "tcp")]


def test_a_worker_is_ready_for_as_long_as_some_gateway_is_up() -> None:
    lines = Elsewhere()
    pump = WorkerPump(
        leader=Leader(),
        rank=Host(),
        others=(),
        absent=(),
        lines=lines,
        clock=Clock(),
        gateways=("tcp://gateway:1",),
        narration=Narration(),
    )

    def after(*events: SessionEvent) -> str | None:
        lines.events += events
        pump.turn()
        return pump.why_not_ready

    assert after() == "no gateway has answered at tcp://gateway:1"
    assert after(session.PeerUp(PREFILL, Link(8))) is not None
    assert after(session.PeerUp(GATEWAY, Link(7))) is None
    assert after(session.PeerLost(PREFILL, "gone")) is None
    assert after(session.PeerUp(OURS, Link(7)), session.PeerLost(GATEWAY, "gone")) is None
    assert after(session.PeerLost(OURS, "gone")) == "no gateway has answered at tcp://gateway:1"
