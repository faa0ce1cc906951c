"""Journals of whole runs are played again: the same effects, or the first difference by its
entry."""

from collections.abc import Callable

import msgspec
import pytest
from tests.core.build import KV, manifest, settings, submit
from tests.core.driven import T0, report_of
from tests.trace.plants import EagerFront, HastyDecode, KeepingPrefill, LoudRank, Planted
from tests.trace.rig import Bytes, RecordedWorld, read, replayed, steps_of
from tests.trace.scenarios import SCENARIOS, journals

from baton.core.agreement import ConnectOrder, StepPlan
from baton.core.effects import Publish, Send
from baton.core.errors import Overloaded
from baton.core.events import (
    AskWorkers,
    ForgetQuestion,
    GatewayConnected,
    MessageReceived,
    ReadRefused,
    ReportDue,
    Submitted,
)
from baton.core.handoff.plans import Plans
from baton.core.ids import Boot, Micros, Rank, RankId, Seq
from baton.core.messages import FirstToken, Received
from baton.core.parts import LeaderParts, RankParts
from baton.core.protocol import PROTOCOL
from baton.core.work import Connected
from baton.trace.coding import Damaged, encode
from baton.trace.examine import examine
from baton.trace.log import FORMAT, CoreKind, Header, Raised, Record, Step
from baton.trace.recorder import Recorder, recorded


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_recorded_run_gives_the_same_effects(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = journals(name, monkeypatch)
    assert len(logs) >= 2
    for process, data in logs.items():
        steps, difference = replayed(data)
        assert difference is None, f"{process}: {difference}"
        assert steps == len(steps_of(data)) > 0, process


def test_together_the_scenarios_hold_every_kind_of_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody ever plays proves nothing."""
    seen = {
        type(s.event)
        for name in SCENARIOS
        for data in journals(name, monkeypatch).values()
        for s in steps_of(data)
    }
    names = {kind.__name__ for kind in seen}
    assert names >= {
        "GatewayConnected",
        "PeerConnected",
        "PeerLost",
        "MessageReceived",
        "RankReported",
        "TimerDue",
    }
    assert names >= {"Submitted", "Cancel", "StepPlan", "BatchDone", "DigestDone", "ReportDue"}
    assert names >= {"Connected", "ReadRefused", "ReadEnded", "Released"}


def test_what_a_leader_publishes_is_in_its_journal_and_comes_again() -> None:
    world = RecordedWorld()
    world.add("prefill", 2, prefix_cache=True, publish_cache=True)
    world.add("decode", 3)
    world.submit(submit(1, tuple(range(14)), max_tokens=2))
    world.run()
    journal = next(data for name, data in world.finished().items() if name.startswith("prefill"))
    said = [e for s in steps_of(journal) for e in s.effects if isinstance(e, Publish)]
    texts = [c.text.tokens for e in said for c in e.changes if c.text is not None]
    assert texts == [(0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11)]
    assert replayed(journal) == (len(steps_of(journal)), None)


# ---- one changed decision -----------------------------------------------------------------------


def first(data: bytes, wanted: Callable[[Step], bool]) -> int:
    """The number of the first step like that."""
    return next(n for n, step in enumerate(steps_of(data), 1) if wanted(step))


def hears(kind: type) -> Callable[[Step], bool]:
    return lambda s: isinstance(s.event, MessageReceived) and isinstance(s.event.message, kind)


def committed_late(step: Step) -> bool:
    """The last offer came while blocks were still under way: where a hasty leader commits at
    once."""
    return (
        isinstance(step.event, MessageReceived)
        and getattr(step.event.message, "record", None) is not None
    )


def reports_after_drop() -> Callable[[Step], bool]:
    """The first report after a room was dropped."""
    dropped: list[Step] = []

    def wanted(step: Step) -> bool:
        if isinstance(step.event, StepPlan) and step.event.drop:
            dropped.append(step)
        return bool(dropped) and isinstance(step.event, ReportDue) and bool(step.effects)

    return wanted


PLANTS = {
    "a first token before Admitted": (
        EagerFront,
        "gateway",
        "late admitted",
        hears(FirstToken),
        "nothing",
    ),
    "Received is not heard": (
        KeepingPrefill,
        "prefill-2.0",
        "eight requests",
        hears(Received),
        "drop",
    ),
    "a commit before arrival": (
        HastyDecode,
        "decode-3.1",
        "eight requests",
        committed_late,
        "commit",
    ),
    "quiet too early": (LoudRank, "prefill-2.0", "slow engine", reports_after_drop(), "quiet"),
}


@pytest.mark.parametrize("name", PLANTS)
def test_a_changed_decision_is_found_at_its_step(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, process, scenario, where, said = PLANTS[name]
    data = journals(scenario, monkeypatch)[f"0.{process}"]
    assert replayed(data)[1] is None
    number, difference = replayed(data, Planted(kind))
    assert difference is not None
    assert difference.number == number == first(data, where)
    assert said in f"{difference.where} {difference.expected}"
    assert difference.at == steps_of(data)[number - 1].at
    assert difference.expected != difference.came
    assert f"step {number} at" in str(difference)


def test_a_changed_byte_of_an_effect_is_named_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = journals("late admitted", monkeypatch)["0.gateway"]
    records = list(read(data))
    at = next(
        i for i, r in enumerate(records) if isinstance(r, Step) and isinstance(r.event, Submitted)
    )
    step = records[at]
    assert isinstance(step, Step)
    send = step.effects[0]
    assert isinstance(send, Send)
    records[at] = msgspec.structs.replace(
        step, effects=(msgspec.structs.replace(send, to=Boot(77)), *step.effects[1:])
    )
    _, difference = replayed(b"".join(map(encode, records)))
    assert difference is not None
    assert (difference.where, difference.expected, difference.came) == (
        "effect 1, send.to",
        "77",
        "2",
    )


# ---- exceptions, questions about books ----------------------------------------------------------


def test_a_refused_request_is_an_outcome_too() -> None:
    world = RecordedWorld(max_requests=1)
    world.submit(submit(1))
    with pytest.raises(Overloaded):
        world.submit(submit(2))
    data = world.finished()["gateway"]
    raised = steps_of(data)[-1].effects[0]
    assert isinstance(raised, Raised)
    assert raised.kind == "Overloaded"
    assert replayed(data) == (2, None)


def test_what_ends_a_worker_is_in_its_journal_at_once() -> None:
    world = RecordedWorld()
    node = world.add("unified", 2)
    with pytest.raises(Exception, match="ended twice"):
        node.rank.step(ReadRefused(7, "never begun"), T0)
    data = world.logs["unified-2.0"].data  # nobody has flushed it
    assert isinstance(steps_of(data)[-1].effects[0], Raised)
    assert replayed(data)[1] is None


def test_questions_about_books_are_played_too() -> None:
    world = RecordedWorld()
    world.add("prefill", 2)
    world.add("decode", 3)
    world.run()
    question = world.front.ask_ledger()
    world.hold = lambda source, target, message: source == Boot(3)
    world.run()
    assert world.front.forget_ledger(question) == ["decode-3"]
    assert world.front.ask_ledger() == question + 1
    data = world.finished()["gateway"]
    kinds = [type(s.event) for s in steps_of(data)]
    assert kinds.count(AskWorkers) == 2
    assert kinds.count(ForgetQuestion) == 1
    assert replayed(data)[1] is None


def test_a_rank_in_a_process_of_its_own_writes_a_log_of_its_own() -> None:
    sink = Bytes()
    parts = RankParts(Rank(0), Boot(3), (manifest("decode", 3).placement(0),), True)
    rank = recorded(parts.make(Plans()), parts, Recorder(sink))
    rank.step(StepPlan(Seq(1), connect=(ConnectOrder(manifest("prefill", 2), "shm"),)), T0)
    rank.step(Connected(RankId(Boot(2), Boot(2), Rank(0)), ""), T0)
    assert report_of(rank) is not None
    assert [type(s.event).__name__ for s in steps_of(sink.data)] == [
        "StepPlan",
        "Connected",
        "ReportDue",
    ]
    assert replayed(sink.data) == (3, None)
    found = examine([sink.data], until=None, watch=lambda at, record: None)
    assert found.whose == "rank 0 (boot 3)"
    assert (found.same, found.violations) == (3, [])


# ---- what a journal must hold -------------------------------------------------------------------

HEAD = Header(FORMAT, PROTOCOL, "0")
PARTS = LeaderParts(manifest("unified", 2), settings(), {KV: 4})
UP = Step(Micros(1), CoreKind.LEADER, GatewayConnected(Boot(1)), ())


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([PARTS], "begin with the header"),
        ([msgspec.structs.replace(HEAD, format=1)], "format 1"),
        ([msgspec.structs.replace(HEAD, protocol=9)], "protocol 9"),
        ([HEAD, HEAD], "second header"),
        ([HEAD, UP], "whose parts"),
        (
            [HEAD, PARTS, msgspec.structs.replace(UP, core=CoreKind.FRONT)],
            "nothing that enters a front",
        ),
        ([HEAD, msgspec.structs.replace(PARTS, manifest=manifest("juggler", 2))], "role 'juggler'"),
        ([HEAD, RankParts(Rank(5), Boot(2), (), True)], "RankParts"),
    ],
)
def test_what_cannot_be_played_is_a_typed_error(records: list[Record], why: str) -> None:
    with pytest.raises(Damaged, match=why):
        replayed(b"".join(map(encode, records)))
