"""What a history of clients may hold, and what not."""

import msgspec
import pytest

from baton.dev.chaos.history import LEFT, ProcessFault, Seen, complaints, figures

RIGHT = (5, 6, 7, 8)
WHOLE = Seen(0, 1.0, 2.0, (1.1, 1.2, 1.9), RIGHT, "")
CUT = msgspec.structs.replace(WHOLE, tokens=RIGHT[:2], failure="connection lost")
OF_GATEWAY = ProcessFault("kill", "gateway", 1.5, 4.0)
OF_DECODE = ProcessFault("kill", "decode-1", 1.5, 4.0)


def of(seen: Seen, *faults: ProcessFault) -> list[str]:
    return [text.split(":")[0] for text in complaints([seen], [RIGHT], faults, limit_s=10)]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tokens": RIGHT[:2], "failure": "error in the stream: worker_lost"},
        {"tokens": (), "failure": "HTTP 503: worker_lost"},
        {"tokens": RIGHT[:2], "failure": LEFT},
        {"tokens": (), "times": (), "failure": LEFT},
    ],
)
def test_a_whole_answer_and_a_stated_error_are_fine(changes: dict[str, object]) -> None:
    assert of(msgspec.structs.replace(WHOLE, **changes)) == []


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"tokens": (5, 6, 9, 8)}, "wrong"),
        ({"tokens": (5, 6, 6, 7, 8)}, "wrong"),
        ({"tokens": (5, 7, 8)}, "wrong"),
        ({"tokens": RIGHT[:3]}, "wrong"),  # it says that this is all
        ({"tokens": (*RIGHT, 9)}, "wrong"),
        ({"tokens": (5, 9), "failure": "error in the stream: worker_lost"}, "wrong"),
        ({"tokens": (5, 9), "failure": LEFT}, "wrong"),
        ({"tokens": (*RIGHT, 9), "failure": LEFT}, "wrong"),
        ({"tokens": RIGHT[:2], "failure": "the stream ended early"}, "unstated"),
        ({"tokens": (), "failure": "HTTP 500"}, "unstated"),
        ({"tokens": (), "failure": "no end"}, "unstated"),
        ({"ended": 11.1}, "hung"),
    ],
)
def test_all_else_is_a_complaint(changes: dict[str, object], kind: str) -> None:
    assert of(msgspec.structs.replace(WHOLE, **changes), OF_DECODE) == [kind]


def test_who_asked_a_gateway_that_was_killed_has_lost_the_connection() -> None:
    assert of(CUT, OF_GATEWAY) == []
    assert of(CUT, OF_DECODE) == ["unstated"]
    before = ProcessFault("kill", "gateway", 0.2, 0.9)
    later = ProcessFault("kill", "gateway", 2.1, 4.0)
    assert of(CUT, before, later) == ["unstated"]
    assert of(msgspec.structs.replace(CUT, tokens=(5, 7)), OF_GATEWAY) == ["wrong"]


def test_figures_of_a_fault() -> None:
    """A gap counts if it overlaps the fault, in a stream that had begun before."""
    after = Seen(0, 1.6, 3.0, (2.2, 2.9), RIGHT, "")
    found = figures([WHOLE, after, CUT], [OF_DECODE])
    assert (found.requests, found.whole, found.failures) == (3, 2, {"connection lost": 1})
    fault = found.faults["kill decode"]
    assert (fault.count, fault.answered_s, fault.whole_s) == (1, (0.7,), (2.5,))
    assert fault.gap_s == (0.7,)


def test_figures_count_who_left_and_who_read_slowly() -> None:
    """A gap that a client has made itself is none of the service's."""
    left = msgspec.structs.replace(CUT, failure=LEFT)
    slow = msgspec.structs.replace(WHOLE, asleep=0.6)
    found = figures([left, slow], [OF_DECODE])
    assert (found.requests, found.whole, found.left, found.slow) == (2, 1, 1, 1)
    assert found.failures == {}
    assert figures([slow], [OF_DECODE]).faults["kill decode"].gap_s == (0.0,)
