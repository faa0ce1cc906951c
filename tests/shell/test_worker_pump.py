"""A worker's pump over a leader, a rank and lines that a test scripts."""

import pytest
from tests.shell.gateways import Gateways

from baton.core.agreement import Report, StepPlan
from baton.core.effects import Dial, Effect, GiveUp, HangUp, Issue, Publish, Send
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
        self.dialled: list[str] = []

    def receive(self) -> list[SessionEvent]:
        found, self.events = self.events, []
        return found

    def dial(self, address: str, expect: Boot | None) -> Link:
        self.dialled.append(address)
        return Link(6 + len(self.dialled))

    def hang_up(self, link: Link) -> None:
        self.hung_up.append(link)


class Publisher:
    """Remembers what it is to publish."""

    def __init__(self) -> None:
        self.published: list[Publish] = []

    def publish(self, changes: Publish) -> None:
        self.published.append(changes)

    def close(self) -> None:
        pass


def turn(leader: Leader, publisher: Publisher | None = None) -> Lines:
    lines = Lines()
    pump = WorkerPump(
        leader=leader,
        rank=Host(),
        others=(),
        absent=(),
        lines=lines,
        clock=Clock(),
        gateways=Gateways(),
        narration=Narration(),
        publisher=publisher,
    )
    pump.turn()
    pump.turn()
    return lines


def test_what_a_plan_does_to_our_rank_is_known_to_the_leader_in_the_same_turn() -> None:
    leader = Leader(Issue(StepPlan(Seq(1))))
    turn(leader)
    assert leader.heard == [1]


def test_what_the_leader_publishes_goes_to_the_publisher_in_order() -> None:
    publisher, all_of_it = Publisher(), [Publish((), afresh=True), Publish((), afresh=False)]
    turn(Leader(*all_of_it), publisher)
    assert publisher.published == all_of_it


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
        gateways=Gateways(),
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
        gateways=Gateways(),
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
        gateways=Gateways("tcp://gateway:1"),
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


class Dialling:
    """A worker's pump whose gateways come and go; its links count from 7."""

    def __init__(self, *known: str, absent: tuple[Boot, ...] = ()) -> None:
        self.lines, self.gateways = Elsewhere(), Gateways(*known)
        self.pump = WorkerPump(
            leader=Leader(),
            rank=Host(),
            others=absent,
            absent=absent,
            lines=self.lines,
            clock=Clock(),
            gateways=self.gateways,
            narration=Narration(),
        )

    def now(self, *known: str) -> None:
        self.gateways.known = known
        self.pump.turn()

    def hear(self, *events: SessionEvent) -> None:
        self.lines.events += events
        self.pump.turn()


def test_gateways_that_come_are_dialled_once_each() -> None:
    worker = Dialling("a")
    worker.now("a", "b")
    worker.now("a", "b", "c")
    assert worker.lines.dialled == ["a", "b", "c"]
    assert worker.lines.hung_up == []


def test_a_gateway_that_never_answered_is_given_up_when_it_is_not_named_any_more() -> None:
    worker = Dialling("a", "b")
    worker.now("b")
    assert worker.lines.hung_up == [7]
    worker.now("a", "b")
    assert worker.lines.dialled == ["a", "b", "a"]


def test_a_gateway_that_answers_stays_until_it_is_lost() -> None:
    """It may drain after its name has gone."""
    worker = Dialling("a")
    worker.hear(session.PeerUp(GATEWAY, Link(7)))
    worker.now("b")
    assert worker.lines.hung_up == []
    assert worker.pump.why_not_ready is None
    worker.hear(session.PeerLost(GATEWAY, "it ended"))
    assert worker.lines.hung_up == [7]
    assert worker.pump.why_not_ready == "no gateway has answered at b"


def test_a_gateway_at_another_address_is_another_link() -> None:
    worker = Dialling("a")
    worker.hear(session.PeerUp(GATEWAY, Link(7)))
    worker.now("b")
    worker.hear(session.PeerUp(OURS, Link(8)))
    worker.hear(session.PeerLost(GATEWAY, "it ended"))
    assert (worker.lines.hung_up, worker.pump.why_not_ready) == ([7], None)


def test_none_is_dialled_before_all_ranks_are_here() -> None:
    worker = Dialling("a", absent=(PREFILL,))
    worker.now("a", "b")
    assert worker.lines.dialled == []
    worker.hear(session.PeerUp(PREFILL, Link(9)))
    assert worker.lines.dialled == ["a", "b"]


def test_an_address_that_must_not_be_dialled_ends_a_worker_only_if_it_has_no_other() -> None:
    worker = Dialling("a")
    worker.lines.dial = Lines().dial  # type: ignore[assignment]
    worker.now("a", "b")
    assert worker.lines.hung_up == []
    alone = Dialling()
    alone.lines.dial = Lines().dial  # type: ignore[assignment]
    with pytest.raises(ConfigError):
        alone.now("b")
