"""Where the time of a request went, as a gateway's core is watched."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from baton.core.door import Cancel, Emit, Fail, Finish, RequestId, Submit
from baton.core.effects import Send
from baton.core.events import FrontEvent, MessageReceived, PeerLost, Submitted, TimerDue
from baton.core.gateway.request import Say
from baton.core.ids import Boot, Epoch, Key, Micros, Room, Stamp, TokenId, TokenIndex
from baton.core.messages import (
    Abort,
    Admitted,
    Drawn,
    Ended,
    FailCode,
    FinishReason,
    FirstToken,
    Limits,
    Recompute,
    RoomPhase,
    Sampling,
    Ticket,
    Tokens,
)
from baton.gateway.timeline import Timeline
from baton.gateway.timelines import KEPT, Timelines

P, D, U, GATEWAY = Boot(2), Boot(3), Boot(4), Boot(1)
NAMES = {P: "prefill-0", D: "decode-0", U: "unified-0"}
LIMITS = Limits(9, (), (), 60_000)
SAMPLING = Sampling(0, 1, 0, 0, None)
ONE = Drawn(TokenId(7), None, ())
ROOM, REQUEST = Room("ab" * 16), RequestId(1)


def key(epoch: int = 1, room: Room = ROOM) -> Key:
    return Key(room, Epoch(epoch))


def ticket(epoch: int = 1, prefill: Boot = P, decode: Boot = D) -> Ticket:
    return Ticket(
        key(epoch), Stamp(1), GATEWAY, prefill, decode, (TokenId(1),) * 5, (), SAMPLING, LIMITS
    )


def phases(**us: int) -> tuple[RoomPhase, ...]:
    return tuple(RoomPhase(state, n) for state, n in us.items())


class Watched:
    """Timelines, and a gateway whose steps a test writes down."""

    def __init__(self) -> None:
        self.owing: set[Room] = set()
        self.wall = 1_000.0
        self.timelines = Timelines(
            name_of=NAMES.__getitem__, held=self.owing.__contains__, wall=lambda: self.wall
        )

    def at(self, us: int, event: FrontEvent, *effects: Send | Say) -> None:
        self.timelines.stepped(event, effects, Micros(us))

    def arrives(self, us: int, *effects: Send | Say, request: int = 1, room: Room = ROOM) -> None:
        submit = Submit(
            RequestId(request), (TokenId(1),) * 5, SAMPLING, LIMITS, id=f"cmpl-{request}"
        )
        self.at(us, Submitted(submit, room), *effects)

    def begins(self, us: int, what: Ticket, event: FrontEvent | None = None) -> None:
        self.owing.add(what.key.room)
        sends = [Send(boot, what) for boot in dict.fromkeys((what.prefill, what.decode))]
        self.at(us, event or TimerDue(), *sends)

    def closes(self, *ends: tuple[int, Boot, Ended]) -> None:
        """Workers end what they have, the last of them everything."""
        for i, (us, boot, ended) in enumerate(ends):
            if i == len(ends) - 1:
                self.owing.clear()
            self.at(us, MessageReceived(boot, ended))

    @property
    def found(self) -> Timeline:
        found = self.timelines.find(ROOM)
        assert found is not None
        return found


def told(timeline: Timeline) -> list[tuple[str, str, int, int]]:
    return [(p.where, p.name, p.start_us, p.end_us) for p in timeline.path]


def ordinary(watched: Watched) -> None:
    """A request that is split, and of which nothing goes wrong."""
    watched.arrives(1_000)
    watched.begins(3_000, ticket())
    watched.at(4_000, MessageReceived(D, Admitted(key())))
    emit = Say(Emit(REQUEST, TokenIndex(0), (ONE,), cached=4))
    watched.at(9_000, MessageReceived(P, FirstToken(key(), TokenIndex(0), ONE, None)), emit)
    watched.at(12_000, MessageReceived(D, Tokens(key(), TokenIndex(0), (ONE, ONE), None)))
    watched.at(
        20_000,
        MessageReceived(D, Tokens(key(), TokenIndex(2), (ONE,), FinishReason.LENGTH)),
        Say(Emit(REQUEST, TokenIndex(2), (ONE,))),
        Say(Finish(REQUEST, FinishReason.LENGTH)),
        *(Send(boot, Abort(key(), "finished")) for boot in (P, D)),
    )
    watched.closes(
        (21_000, P, Ended(key(), phases(queued=1_500, computing=4_000, offered=3_000, ending=200))),
        (
            22_000,
            D,
            Ended(key(), phases(queued=900, fetching=5_600, committing=900, running=9_000)),
        ),
    )


def test_a_request_of_which_nothing_goes_wrong() -> None:
    watched = Watched()
    ordinary(watched)
    timeline = watched.found
    assert told(timeline) == [
        ("gateway", "queued", 0, 2_000),
        ("gateway", "messages", 2_000, 2_500),
        ("prefill-0", "queued", 2_500, 4_000),
        ("prefill-0", "computing", 4_000, 8_000),
        ("decode-0", "fetching", 8_000, 9_100),
        ("decode-0", "committing", 9_100, 10_000),
        ("decode-0", "running", 10_000, 19_000),
    ]
    assert (timeline.first_us, timeline.total_us, timeline.end) == (8_000, 19_000, "length")
    tokens = timeline.prompt_tokens, timeline.cached_tokens, timeline.generated_tokens
    assert tokens == (5, 4, 3)
    assert timeline.arrived == 1_000.0
    offered = [p for p in timeline.workers if p.name == "offered"]
    assert [(p.where, p.start_us, p.end_us) for p in offered] == [("prefill-0", 8_000, 11_000)]


def test_three_parts_as_vllm_counts_them() -> None:
    watched, ended = Watched(), []
    watched.timelines.on_end.append(ended.append)
    ordinary(watched)
    assert ended[0].spent == (3_500, 4_500, 11_000)
    assert len(watched.timelines) == 0


def test_a_first_token_that_waits_for_decode() -> None:
    watched = Watched()
    watched.arrives(0)
    watched.begins(0, ticket())
    watched.at(500, MessageReceived(P, FirstToken(key(), TokenIndex(0), ONE, None)))
    watched.at(800, MessageReceived(D, Admitted(key())), Say(Emit(REQUEST, TokenIndex(0), (ONE,))))
    watched.at(900, Cancel(REQUEST, "left"), Send(D, Abort(key(), "left")))
    watched.closes(
        (950, D, Ended(key(), phases(queued=700, fetching=150))),
        (960, P, Ended(key(), phases(computing=400))),
    )
    assert told(watched.found) == [
        ("gateway", "messages", 0, 100),
        ("prefill-0", "computing", 100, 500),
        ("gateway", "awaits_decode", 500, 800),
        ("decode-0", "fetching", 800, 900),
    ]
    assert watched.found.end == "cancelled"


def test_a_worker_that_computes_and_generates() -> None:
    watched = Watched()
    watched.arrives(0)
    watched.begins(100, ticket(prefill=U, decode=U))
    emit = Say(Emit(REQUEST, TokenIndex(0), (ONE,)))
    watched.at(600, MessageReceived(U, Tokens(key(), TokenIndex(0), (ONE,), None)), emit)
    done = Say(Finish(REQUEST, FinishReason.STOP))
    last = Tokens(key(), TokenIndex(1), (ONE,), FinishReason.STOP)
    watched.at(900, MessageReceived(U, last), done)
    watched.closes((950, U, Ended(key(), phases(queued=50, computing=430, running=300))))
    assert told(watched.found) == [
        ("gateway", "queued", 0, 100),
        ("gateway", "messages", 100, 120),
        ("unified-0", "queued", 120, 170),
        ("unified-0", "computing", 170, 600),
        ("unified-0", "running", 600, 900),
    ]


def test_a_second_attempt_after_a_worker_was_lost() -> None:
    watched = Watched()
    watched.arrives(0)
    watched.begins(0, ticket())
    emit = Say(Emit(REQUEST, TokenIndex(0), (ONE,)))
    watched.at(100, MessageReceived(P, FirstToken(key(), TokenIndex(0), ONE, None)), emit)
    watched.at(300, PeerLost(D, "killed"), Send(P, Abort(key(), "lost")))
    watched.begins(700, ticket(2, U, U), MessageReceived(P, Ended(key(), phases(computing=90))))
    done = Say(Finish(REQUEST, FinishReason.STOP))
    last = Tokens(key(2), TokenIndex(1), (ONE,), FinishReason.STOP)
    watched.at(1_000, MessageReceived(U, last), done)
    watched.closes((1_100, U, Ended(key(2), phases(computing=200, running=80))))
    assert told(watched.found) == [
        ("gateway", "messages", 0, 10),
        ("prefill-0", "computing", 10, 100),
        ("decode-0", "unknown", 100, 300),
        ("gateway", "queued", 300, 700),
        ("gateway", "messages", 700, 720),
        ("unified-0", "computing", 720, 920),
        ("unified-0", "running", 920, 1_000),
    ]
    assert {p.epoch for p in watched.found.path} == {1, 2}


def test_a_request_that_no_worker_has_heard_of() -> None:
    watched = Watched()
    watched.arrives(0)
    watched.at(5_000, TimerDue(), Say(Fail(REQUEST, FailCode.QUEUE_TIMEOUT, "too long")))
    assert told(watched.found) == [("gateway", "queued", 0, 5_000)]
    assert (watched.found.first_us, watched.found.end) == (None, "queue_timeout")
    assert len(watched.timelines) == 0


def test_nothing_is_kept_open_of_a_request_whose_workers_are_all_lost() -> None:
    watched = Watched()
    watched.arrives(0)
    watched.begins(0, ticket())
    watched.at(100, Cancel(REQUEST, "left"), Send(P, Abort(key(), "left")))
    assert len(watched.timelines) == 1
    watched.at(200, PeerLost(P, "killed"))
    watched.owing.clear()
    watched.at(300, PeerLost(D, "killed"))
    assert len(watched.timelines) == 0
    assert {name for _, name, *_ in told(watched.found)} == {"unknown"}


def test_it_is_found_by_the_id_of_the_answer_and_forgotten_in_time() -> None:
    watched = Watched()
    for n in range(KEPT + 1):
        watched.arrives(0, request=n, room=Room(f"{n:032x}"))
        watched.at(10, Cancel(RequestId(n), "left"))
    assert watched.timelines.find("cmpl-0") is None
    found = watched.timelines.find("cmpl-1")
    assert found is not None
    assert found.room == Room(f"{1:032x}")
    assert watched.timelines.find("nobody") is None
    assert [t.id for t in watched.timelines.latest(2)] == [f"cmpl-{KEPT}", f"cmpl-{KEPT - 1}"]


# ---- whatever happens ----------------------------------------------------------------------------

STATES = ("queued", "computing", "fetching", "running", "offloaded", "offered", "ending")
PHASES = st.lists(st.builds(RoomPhase, st.sampled_from(STATES), st.integers(0, 400)), max_size=6)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.booleans(), PHASES, PHASES), max_size=4),
    st.integers(0, 1_200),
    st.integers(0, 300),
)
def test_the_path_has_no_gap_and_no_overlap(
    attempts: Sequence[tuple[int, bool, list[RoomPhase], list[RoomPhase]]], first: int, rest: int
) -> None:
    """Whatever workers say, and in whatever order the first token comes."""
    watched, now, emitted = Watched(), 0, False
    watched.arrives(0)
    for number, (gap, alone, there, here) in enumerate(attempts, 1):
        now += gap
        watched.begins(now, ticket(number, U if alone else P, U if alone else D))
        if not emitted and first <= now:
            emitted = True
            emit = Say(Emit(REQUEST, TokenIndex(0), (ONE,)))
            watched.at(
                now, MessageReceived(P, FirstToken(key(number), TokenIndex(0), ONE, None)), emit
            )
        for boot, said in ((U if alone else P, there), (U if alone else D, here)):
            watched.at(now, MessageReceived(boot, Ended(key(number), tuple(said))))
        if number % 2:
            now += gap // 2
            watched.at(
                now, MessageReceived(D, Recompute(key(number))), Send(P, Abort(key(number), ""))
            )
    now += rest
    watched.owing.clear()
    watched.at(now, Cancel(REQUEST, "left"))
    timeline = watched.found
    edges = [(p.start_us, p.end_us) for p in timeline.path]
    assert all(start < end for start, end in edges)
    assert all(before[1] == after[0] for before, after in pairwise(edges))
    assert sum(end - start for start, end in edges) == timeline.total_us == now
    if timeline.first_us:
        assert timeline.first_us in {end for _, end in edges}, "the first token ends a phase"
