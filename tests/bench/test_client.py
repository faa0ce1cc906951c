"""Answers of all kinds: what counts as a success, and what each failure is called."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.service import DONE, USAGE, Script, event, serving, token

from baton.core.errors import BatonError, ConfigError
from baton.dev.bench.client import Events, Target
from baton.dev.bench.load import SendSchedule, drive
from baton.dev.bench.workload import Item

GOOD = [token("a"), token("b"), token("c"), USAGE, DONE]
ERROR = (
    '{"error": {"message": "m", "type": "invalid_request_error", "code": '
    '"context_length_exceeded"}}'
)


def ask(url, *items, concurrency=None, warm_up=(), **fields):
    target = Target(base_url=url, endpoint="/v1/completions", model="m", **fields)
    told = []
    found = drive(
        target,
        items,
        SendSchedule((0.0,) * len(items), concurrency),
        warm_up=warm_up,
        tell=told.append,
    )
    assert sorted(told, key=id) == sorted(found, key=id)
    return found


def item(n):
    return Item((1, 2), n)


@given(st.lists(st.text().map(json.dumps), max_size=5), st.data())
def test_events_are_the_same_however_they_arrive(texts, data):
    raw = b"".join(f": a comment\n\nevent: x\ndata: {t}\n\n".encode() for t in texts)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    events = Events()
    assert [e for piece in pieces for e in events.feed(piece)] == [t.encode() for t in texts]


@pytest.mark.parametrize(
    ("pieces", "failure"),
    [
        (GOOD, ""),
        ([b"".join(GOOD)], ""),
        ([token("a"), USAGE], "the stream ended early"),
        ([token("a"), b"cut"], "connection lost"),
        (
            [token("a"), event(error={"message": "m", "code": "worker_lost"}), DONE],
            "error in the stream: worker_lost",
        ),
        ([token(""), DONE], "no tokens"),
        ([b"data: {nonsense\n\n"], "not OpenAI's schema"),
        ([b"hang"], "timeout"),
        ((400, ERROR), "HTTP 400: context_length_exceeded"),
        ((503, "busy"), "HTTP 503"),
        ((429, '{"error": {"type": "overloaded", "code": 429}}'), "HTTP 429"),
    ],
)
def test_each_end_has_its_kind(pieces, failure):
    with serving(Script({3: pieces})) as url:
        (outcome,) = ask(url, item(3), timeout_s=0.5)
    assert outcome.failure == failure
    assert (outcome.detail != "") == (failure not in ("", "the stream ended early", "no tokens"))
    if not failure:
        assert (outcome.prompt_tokens, outcome.output_tokens) == (7, 3)
        assert outcome.sent <= outcome.times[0] <= outcome.times[-1] <= outcome.ended


@pytest.mark.parametrize(
    ("status", "headers", "refused", "after"),
    [
        (429, {"Retry-After": "7"}, True, 7.0),
        (503, {"Retry-After": "1"}, True, 1.0),
        (429, {}, True, None),
        (503, {"Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT"}, True, None),
        (504, {}, False, None),
        (400, {}, False, None),
    ],
)
def test_a_refusal_says_when_to_come_again(status, headers, refused, after):
    with serving(Script({3: (status, ERROR, headers)})) as url:
        (outcome,) = ask(url, item(3))
    assert (outcome.refused, outcome.retry_after_s) == (refused, after)


def test_nobody_there():
    (outcome,) = ask("http://127.0.0.1:1", item(3))
    assert outcome.failure == "no connection"


def test_what_is_asked():
    script = Script({3: GOOD})
    with serving(script) as url:
        ask(url, item(3), ignore_eos=False)
        target = Target(base_url=url + "/", endpoint="/v1/chat/completions", model="m", chat=True)
        drive(target, [Item("hello", 3)], SendSchedule((0.0,)), warm_up=(), tell=lambda _: None)
    common = {
        "model": "m",
        "max_tokens": 3,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    assert script.asked[0] == {"prompt": [1, 2], **common}
    assert script.asked[1] == {
        "messages": [{"role": "user", "content": "hello"}],
        "ignore_eos": True,
        **common,
    }


def test_a_closed_loop_keeps_its_bound_and_uses_it():
    script = Script({3: GOOD * 4})
    with serving(script) as url:
        found = ask(url, *[item(3)] * 12, concurrency=3)
    assert script.most == 3
    assert all(o.sent - o.due < 0.1 for o in found)  # waiting for one's turn is not lateness


def test_an_open_loop_sends_whether_or_not_answers_have_come():
    script = Script({3: [token("a"), b"hang"]})
    with serving(script) as url:
        target = Target(base_url=url, endpoint="/v1/completions", model="m", timeout_s=0.5)
        found = drive(
            target,
            [item(3)] * 5,
            SendSchedule((0.0, 0.01, 0.02, 0.03, 0.04)),
            warm_up=(),
            tell=lambda _: None,
        )
    assert script.most == 5
    due = [o.due - found[0].due for o in found]
    assert due == pytest.approx([0.0, 0.01, 0.02, 0.03, 0.04])


def test_warm_up_requests_come_first_and_are_not_counted():
    script = Script({3: GOOD, 1: GOOD})
    with serving(script) as url:
        assert len(ask(url, item(3), warm_up=[item(1), item(1)])) == 1
    assert [a["max_tokens"] for a in script.asked] == [1, 1, 3]


def test_a_failed_warm_up_ends_the_run_with_its_reason():
    with (
        serving(Script({3: (400, ERROR)})) as url,
        pytest.raises(BatonError, match="HTTP 400: context_length_exceeded"),
    ):
        ask(url, item(3), warm_up=[item(3)])


def test_no_room_for_any_request_is_refused():
    with pytest.raises(ConfigError, match="--max-concurrency 0"):
        SendSchedule((0.0,), 0)
