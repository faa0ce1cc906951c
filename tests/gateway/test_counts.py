"""The gateways behind one port: each tells what all of them count."""

import asyncio
import functools

import pytest

from baton.core.door import QueueView
from baton.core.ids import Boot, GroupName
from baton.core.messages import Credits
from baton.gateway.counts import GatewayCounts, Siblings, joined
from baton.gateway.door import LedgerReport
from baton.gateway.tally import RequestTally
from baton.gateway.timeline import Timeline

from .fake_door import FakeDoor
from .rig import request
from .test_metrics import metrics, parse


def counts(name: str, *, open_requests: int = 0, **tally: int) -> GatewayCounts:
    stated = Credits(1, Boot((1 << 64) - 1), {GroupName("full"): 3}, {GroupName("full"): 9}, 0, 1)
    report = LedgerReport(
        *((), (), open_requests),
        pairs=4,
        events={"new_epoch": 2},
        credits={"decode-0": stated},
        known_pages=9,
    )
    return GatewayCounts(name, RequestTally(**tally), report)


def nothing(name: str) -> Timeline | None:
    return None


def test_each_hears_what_the_others_count(tmp_path):
    async def scenario():
        names = ("a", "b", "c")
        gateways = {name: Siblings(tmp_path, name) for name in names}
        told = {name: counts(name, generated_tokens=ord(name)) for name in names}
        told["b"].tally.first.add(0.3)
        told["b"].tally.failed["timeout"] += 1
        for name, gateway in gateways.items():
            await gateway.open(functools.partial(told.get, name), nothing)
        for name, gateway in gateways.items():
            assert await gateway.others() == [told[n] for n in names if n != name]
        for gateway in gateways.values():
            gateway.close()
        assert not list(tmp_path.iterdir())

    asyncio.run(scenario())


def test_a_gateway_that_was_killed_is_left_out_until_it_is_back(tmp_path):
    async def scenario():
        gateway, killed = Siblings(tmp_path, "a"), Siblings(tmp_path, "b")
        await gateway.open(lambda: counts("a"), nothing)
        await killed.open(lambda: counts("b"), nothing)
        killed._server.close()  # and its path stays
        await killed._server.wait_closed()
        (tmp_path / "b").exists() or (tmp_path / "b").touch()
        assert await gateway.others() == []
        again = Siblings(tmp_path, "b")
        await again.open(lambda: counts("b", prompt_tokens=1), nothing)
        assert await gateway.others() == [counts("b", prompt_tokens=1)]
        again.close()
        gateway.close()

    asyncio.run(scenario())


def test_requests_of_all_are_counted_together():
    queue = QueueView(2, 30, {"queue_full": 1})
    report = LedgerReport((), (), 3, queue=queue)
    other = GatewayCounts(
        "b", RequestTally(), LedgerReport((), (), 4, queue=QueueView(5, 70, {"queue_full": 2}))
    )
    whole = joined(report, [other])
    assert whole.open_requests == 7
    assert (whole.queue.length, whole.queue.oldest_ms) == (7, 70)
    assert whole.queue.refused == {"queue_full": 3}


def test_the_page_has_a_series_for_each_gateway():
    own, other = RequestTally(prompt_tokens=5), counts("gateway-1", open_requests=7)
    other.tally.between.add(0.1, 3)
    page = metrics(own, several=True).scrape(LedgerReport((), (), 1), [other])
    found = parse(page)

    def of(name: str, gateway: str, **more: str) -> float:
        labels = {"gateway": gateway, **more}
        return found[name, tuple(sorted(labels.items()))]

    assert of("vllm:prompt_tokens_total", "gateway-0", model_name="m") == 5
    assert of("vllm:prompt_tokens_total", "gateway-1", model_name="m") == 0
    assert of("vllm:inter_token_latency_seconds_count", "gateway-1", model_name="m") == 3
    assert of("baton:open_requests", "gateway-0") == 1
    assert of("baton:open_requests", "gateway-1") == 7
    assert of("baton:known_cached_pages", "gateway-0") == 0
    assert of("baton:known_cached_pages", "gateway-1") == 9
    assert not any(name.startswith("process_") for name, _ in found), "of one process among several"


def test_one_of_several_does_not_go_to_sleep_alone(tmp_path):
    siblings = Siblings(tmp_path, "gateway-0")
    answer = request(FakeDoor(), "POST", "/sleep", siblings=siblings)
    assert answer.status_code == 409
    assert "--gateways 1" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/metrics", "/debug/ledger"])
def test_it_answers_although_no_other_does(tmp_path, path):
    (tmp_path / "gateway-1").touch()
    siblings = Siblings(tmp_path, "gateway-0")
    assert request(FakeDoor(), "GET", path, siblings=siblings).status_code == 200
