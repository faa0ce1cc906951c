"""Scrapes parse, and agree with a little history that is known."""

import functools
import json
import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from baton.core.door import Cancel, QueueView, RequestId, Submit
from baton.core.errors import Overloaded
from baton.core.ids import Boot, TokenId
from baton.core.messages import Credits, FailCode, FinishReason
from baton.core.statistics import BOUNDS_US, CacheTally, Counters, Durations, RankTally
from baton.gateway.counts import GatewayCounts
from baton.gateway.door import STOP_STRING, LedgerReport
from baton.gateway.live_times import LiveTimes
from baton.gateway.metrics import Metrics
from baton.gateway.scaling_watch import Autoscaling
from baton.gateway.tally import RequestTally, TallyingDoor

from .fake_door import FakeDoor, view
from .models import ids
from .rig import MODEL, post, request

DOCS = Path(__file__).parents[2] / "docs"


def parse(page: bytes) -> dict[tuple, float]:
    """(sample name, its labels) -> value."""
    families = text_string_to_metric_families(page.decode())
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for f in families for s in f.samples}


def metrics(tally: RequestTally, **more: bool) -> Metrics:
    own = functools.partial(GatewayCounts, "gateway-0", tally)
    return Metrics(own, more.pop("scaling", Autoscaling), model="m", **more)


@functools.cache
def any_submit() -> Submit:
    door = FakeDoor()
    door.script = [ids("x"), FinishReason.STOP]
    post(door, "/v1/completions", {"prompt": "zz"})
    return door.submitted[0]


class History:
    """Requests over a fake door, by a clock that is set by hand."""

    def __init__(self) -> None:
        self.now, self.fake, self.tally = 100.0, FakeDoor(), RequestTally()
        self.door = TallyingDoor(self.fake, self.tally, LiveTimes(), lambda: self.now)

    def begin(self, number: int, prompt: int) -> RequestId:
        ask = msgspec.structs.replace(
            any_submit(), request=RequestId(number), prompt=tuple(TokenId(7) for _ in range(prompt))
        )
        self.door.submit(ask, lambda heard: None)
        return RequestId(number)

    def after(self, seconds: float) -> None:
        self.now += seconds

    def scrape(self, report: LedgerReport | None = None) -> dict[tuple, float]:
        found = parse(metrics(self.tally).scrape(report or LedgerReport((), (), 0)))
        return {
            (name, tuple(v for k, v in labels if k != "model_name")): value
            for (name, labels), value in found.items()
        }


def test_a_history_of_requests():
    h = History()
    whole = h.begin(1, prompt=10)
    h.after(0.3)
    h.fake.say(whole, [1])
    h.after(0.06)
    h.fake.say(whole, [2])
    h.after(0.18)
    h.fake.say(whole, [3, 4])  # two at once: 90 ms each
    h.fake.finish(whole, FinishReason.LENGTH)
    stopped = h.begin(2, prompt=5)
    h.after(0.03)
    h.fake.say(stopped, [1])
    h.door.cancel(Cancel(stopped, STOP_STRING))
    h.door.cancel(Cancel(h.begin(3, prompt=1000), "client disconnected"))
    h.fake.fail(h.begin(4, prompt=1), FailCode.WORKER_LOST)
    h.fake.room = len(h.fake.submitted)
    with pytest.raises(Overloaded):
        h.begin(5, prompt=1)
    m = h.scrape()
    # the request that left before its first token was not computed
    assert m["vllm:prompt_tokens_total", ()] == 15
    assert m["vllm:generation_tokens_total", ()] == 5
    assert [
        m["vllm:request_success_total", (reason,)] for reason in ("length", "stop", "abort")
    ] == [1, 1, 1]
    assert (
        m["baton:request_failures_total", ("worker_lost",)]
        == m["baton:request_failures_total", ("overloaded",)]
        == 1
    )
    first, between = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"
    assert (m[first + "_count", ()], m[first + "_sum", ()]) == (2, pytest.approx(0.33))
    assert [m[first + "_bucket", (le,)] for le in ("0.02", "0.04", "0.25", "0.5", "+Inf")] == [
        0,
        1,
        1,
        2,
        2,
    ]
    assert (m[between + "_count", ()], m[between + "_sum", ()]) == (3, pytest.approx(0.24))
    assert [m[between + "_bucket", (le,)] for le in ("0.05", "0.075", "0.1")] == [0, 1, 3]
    assert m["vllm:request_time_per_output_token_seconds_sum", ()] == pytest.approx(0.08)
    assert m["vllm:e2e_request_latency_seconds_sum", ()] == pytest.approx(0.54 + 0.03)
    assert m["vllm:request_prompt_tokens_sum", ()] == 1015
    assert m["vllm:request_generation_tokens_sum", ()] == 5


def test_what_workers_answer():
    spent = Durations()
    for us in (100, 250, 251, 400_000_000):
        spent.add(us)
    counters = Counters(
        epochs=7,
        failures={"handoff_failed": 2},
        events={"doubt": 3},
        spent={"fetching": spent.view()},
        ranks=RankTally(11, 4096, 1, 90, 2),
        cache=CacheTally(50, 30, 6, 4096, 16, 512, 32),
    )
    decode = msgspec.structs.replace(
        view("d", clean=False),
        pages={"full": {"free": 1, "committed": 3, "cached": 4, "total": 8}},
        counters=counters,
        copies=3,
    )
    credits = {"d": Credits(4, Boot(3), {"full": 5}, {"full": 6}, 1, 2, free_rooms=3)}
    queue = QueueView(5, 1_250, {"slow": 2, "timeout": 1}, spent.view())
    m = History().scrape(
        LedgerReport(
            (decode,), ("lost",), 3, pairs=2, events={"new_epoch": 9}, credits=credits, queue=queue
        )
    )
    who = ("decode", "d")  # labels come in the order of their names: role, worker
    assert m["vllm:kv_cache_usage_perc", ("d",)] == 0.375, (
        "what is cached and used by nobody is as good as free"
    )
    assert (
        m["vllm:prefix_cache_queries_total", ("d",)],
        m["vllm:prefix_cache_hits_total", ("d",)],
    ) == (50, 30)
    assert (m["baton:prefix_cache_evictions_total", who], m["baton:prefix_cache_pins", who]) == (
        6,
        3,
    )
    assert m["baton:prefix_cache_saved_bytes_total", who] == 4096
    assert m["baton:prefix_cache_borrowed_tokens_total", who] == 16
    assert m["baton:prefix_cache_borrowed_bytes_total", who] == 512
    assert m["baton:prefix_cache_lent_tokens_total", who] == 32
    assert m["baton:pages", ("full", "decode", "cached", "d")] == 4
    assert (m["vllm:num_requests_running", ()], m["vllm:num_requests_waiting", ()]) == (1, 5)
    assert m["baton:pages", ("full", "decode", "committed", "d")] == 3
    assert ("baton:pages", ("full", "decode", "total", "d")) not in m
    assert m["baton:rooms", ("decode", "running", "d")] == 1
    assert m["baton:epochs_total", who] == 7
    assert m["baton:host_copies", who] == 3
    assert m["baton:epoch_failures_total", ("handoff_failed", *who)] == 2
    assert m["baton:events_total", ("doubt", *who)] == 3
    assert [
        m[f"baton:{f}_total", who]
        for f in ("reads", "read_bytes", "reads_failed", "blocks_right", "blocks_wrong")
    ] == [*(11, 4096, 1, 90, 2)]
    phase = [
        m["baton:phase_seconds_bucket", (le, "decode", "fetching", "d")]
        for le in ("0.00025", "0.0005", "300.0", "+Inf")
    ]
    assert phase == [2, 3, 3, 4]
    assert m["baton:phase_seconds_sum", ("decode", "fetching", "d")] == pytest.approx(400.000601)
    assert (m["baton:worker_up", who], m["baton:worker_up", ("", "lost")]) == (1, 0)
    assert (m["baton:open_requests", ()], m["baton:pairs", ()]) == (3, 2)
    assert m["baton:gateway_events_total", ("new_epoch",)] == 9
    assert (m["baton:credit_free_pages", ("full", "d")], m["baton:credit_waiting", ("d",)]) == (
        5,
        1,
    )
    assert (m["baton:credit_running", ("d",)], m["baton:credit_free_rooms", ("d",)]) == (2, 3)
    assert (m["baton:queue_length", ()], m["baton:queue_oldest_seconds", ()]) == (5, 1.25)
    assert (m["baton:queue_seconds_count", ()], m["baton:queue_seconds_sum", ()]) == (
        4,
        pytest.approx(400.000601),
    )
    assert [m["baton:refusals_total", (reason,)] for reason in ("slow", "timeout")] == [2, 1]


def test_a_room_waits_until_a_worker_holds_memory_for_it_and_begins():
    states = {
        "p": ["queued", "queued", "computing", "ending", "awaits_turn", "awaits_turn"],
        "d": ["queued", "fetching", "queued", "ending", "queued", "fetching"],
    }
    views = []
    for name, found in states.items():
        (room,) = view(name, clean=False).rooms
        rooms = tuple(
            msgspec.structs.replace(room, room=str(i), state=s) for i, s in enumerate(found)
        )
        views.append(msgspec.structs.replace(view(name, clean=False), rooms=rooms))
    m = History().scrape(LedgerReport(tuple(views), (), 0))
    assert (m["vllm:num_requests_running", ()], m["vllm:num_requests_waiting", ()]) == (2, 3)


def test_the_page_is_served_without_a_key():
    door = FakeDoor()
    door.script = [ids("x"), FinishReason.STOP]
    answer = request(door, "GET", "/metrics", settings={"api_keys": ("k",)})
    assert answer.headers["content-type"].startswith("text/plain")
    assert parse(answer.content)["vllm:prompt_tokens_total", (("model_name", MODEL),)] == 0
    assert post(door, "/v1/completions", {"prompt": "zz"}).status_code == 200


def test_the_classes_of_durations_ascend():
    assert list(BOUNDS_US) == sorted(set(BOUNDS_US))


def test_every_metric_is_documented():

    text = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text()
    decode = msgspec.structs.replace(
        view("d", clean=False), counters=Counters(spent={"running": Durations().view()})
    )
    page = metrics(RequestTally()).scrape(LedgerReport((decode,), (), 0)).decode()
    names = {
        f.name for f in text_string_to_metric_families(page) if not f.name.startswith("process_")
    }
    assert [n for n in sorted(names) if f"`{n}" not in text] == []


def test_the_board_names_metrics_that_there_are():
    board = json.loads((DOCS / "grafana" / "baton.json").read_text())
    page = (DOCS / "metrics.md").read_text()
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\b(?:vllm|baton):\w+", target["expr"])
    }
    assert len(asked) > 20
    for name in asked:
        documented = re.sub(r"_(bucket|sum|count)$", "", name)
        assert f"`{documented}`" in page, name
