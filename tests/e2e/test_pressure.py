"""Pools so small that requests give way all the time, and clients that leave at any moment: nothing
is left of anybody."""

import json
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.service import Service, split, wait_for

PAGES = 24  # of 16 tokens: two requests at their full length
AT_ONCE = 8
LONGEST = 160


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Service]:
    pools = ("--kv-pages", str(PAGES), "--page-size", "16")
    decode = (*pools, "--host-kv-memory", "16MiB", "--max-num-seqs", str(AT_ONCE))
    with split(tmp_path_factory.mktemp("pressure"), tiny, prefill=pools, decode=decode) as s:
        yield s


def events(service: Service) -> Counter[str]:
    """Rare branches that the decode worker has taken."""
    found = Counter[str]()
    for line in service.http.get("/metrics").text.splitlines():
        if line.startswith("baton:events_total{") and 'role="decode"' in line:
            found[line.split('event="')[1].split('"')[0]] = int(float(line.split()[-1]))
    return found


def body(chance: random.Random, number: int) -> dict[str, Any]:
    prompt = [chance.randint(1, 250) for _ in range(chance.randint(1, 40))]
    length = chance.choice([LONGEST, LONGEST, 30])
    fields = {
        "temperature": 0,
        "ignore_eos": True,
        "priority": chance.randint(-1, 1),
        "seed": number,
    }
    return {
        "model": "m",
        "prompt": prompt,
        "max_tokens": length,
        "stream": True,
        "return_token_ids": True,
    } | fields


def leave(service: Service, number: int) -> str:
    """A request whose client leaves after a drawn number of parts of its answer, or after a drawn
    time."""
    chance = random.Random(number)
    parts, patience = (
        chance.randint(0, 5 * LONGEST // 4),
        chance.choice([0.01, 0.1, 30.0, 30.0, 30.0, 30.0]),
    )
    try:
        asked = body(chance, number)
        with httpx.stream(
            "POST", f"http://127.0.0.1:{service.port}/v1/completions", json=asked, timeout=patience
        ) as answer:
            assert answer.status_code == 200, answer.read()
            for line in answer.iter_lines():
                parts -= line.startswith("data: ")
                if parts < 0:
                    return "left"
    except httpx.TimeoutException:
        return "left before it heard anything"
    return "done"


def left_by(service: Service, clients: range) -> None:
    """All of them, as many at once as make pages short."""
    before = events(service)
    with ThreadPoolExecutor(AT_ONCE + 4) as pool:
        outcomes = Counter(pool.map(lambda n: leave(service, n), clients))
    assert len(clients) - outcomes["done"] >= 0.5 * len(clients), outcomes
    service.wait_clean(5.0)  # the host store of every rank among it
    taken = events(service) - before
    assert taken["offloaded"] >= len(clients) / 10, taken
    assert not taken.keys() & {"recompute", "copy_failed", "store_full", "stall"}
    whole = [1 + i % 250 for i in range(PAGES * 16 - 20)]
    assert len(service.ids(whole, max_tokens=20, ignore_eos=True)) == 20, (
        "every page is there for one request"
    )
    service.wait_clean()


@pytest.mark.timeout(120)
def test_40_clients_leave_while_pages_are_short(service: Service) -> None:
    left_by(service, range(40))


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_200_clients_leave_while_pages_are_short(service: Service) -> None:
    before = events(service)
    left_by(service, range(1_000, 1_200))
    taken = events(service) - before
    assert taken["resumed"] < taken["offloaded"], "nobody left while it was away"


def stream(
    service: Service, begun: threading.Event, prompt: list[int], **fields: Any
) -> tuple[float, list[int]]:
    """When a request had its last token, and its tokens; `begun` is set when it has some."""
    asked = {
        "model": "m",
        "prompt": prompt,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "return_token_ids": True,
    }
    said: list[int] = []
    with httpx.stream(
        "POST", f"http://127.0.0.1:{service.port}/v1/completions", json=asked | fields, timeout=60
    ) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                said += json.loads(line[6:])["choices"][0].get("token_ids") or ()
                if len(said) >= 8:
                    begun.set()
    return time.monotonic(), said


@pytest.mark.timeout(120)
def test_an_urgent_request_does_not_wait_for_a_less_urgent_one(service: Service) -> None:
    """Smaller is more urgent, as in vLLM. One that is not urgent grows to all 24 pages; the urgent
    one needs 22, and is first."""
    patient, urgent = [1 + i % 250 for i in range(40)], [7] * 340
    alone = service.ids(patient, max_tokens=330, ignore_eos=True)
    # on a busy machine the patient one may be done before the urgent one's prompt is
    for _ in range(5):
        before, begun = events(service), threading.Event()
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(stream, service, begun, patient, max_tokens=330, priority=10)
            assert begun.wait(30)
            assert len(service.ids(urgent, max_tokens=4, ignore_eos=True, priority=-1)) == 4
            ended = time.monotonic()
            at, said = running.result()
        assert said == alone
        if at > ended:
            break
    assert at > ended
    assert (events(service) - before)["preempted"] == 1
    service.wait_clean()


def ask(service: Service, number: int) -> tuple[int, float, list[int]]:
    """One whole request: priority, seconds, token ids."""
    asked = body(random.Random(number), number) | {"stream": False}
    began = time.monotonic()
    answer = service.http.post("/v1/completions", json=asked)
    assert answer.status_code == 200, answer.text
    return (
        int(asked["priority"]),
        time.monotonic() - began,
        list(answer.json()["choices"][0]["token_ids"]),
    )


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_long_and_short_urgent_and_not_all_end_in_a_minute_of_pressure(service: Service) -> None:
    """Twelve clients ask without a break, so that four or more wait at any time; each says what it
    says alone."""
    until, before = time.monotonic() + 60.0, events(service)

    def client(which: int) -> list[tuple[int, tuple[int, float, list[int]]]]:
        found = []
        for number in range(which * 10_000, which * 10_000 + 10_000):
            if time.monotonic() > until:
                return found
            found.append((number, ask(service, number)))
        raise AssertionError("too fast for this test")

    with ThreadPoolExecutor(12) as pool:
        answers = [answer for found in pool.map(client, range(12)) for answer in found]
    service.wait_clean(5.0)
    assert (events(service) - before)["offloaded"] >= 50
    for number, (_, _, said) in random.Random(1).sample(answers, 20):
        assert ask(service, number)[2] == said
    slowest = {p: max(seconds for _, (q, seconds, _) in answers if q == p) for p in (-1, 0, 1)}
    assert max(slowest.values()) < 30.0, slowest


@pytest.mark.timeout(120)
def test_every_pair_is_tried_however_small_pools_and_queue_are(tmp_path: Path, tiny: Path) -> None:
    """Each worker has pages for one of the requests that make a service ready, and the queue has a
    place for one."""
    pools = ("--kv-pages", "4", "--page-size", "16")
    service = Service(tmp_path, tiny)
    try:
        service.start_gateway("--max-queued-requests", "1", "--queue-timeout", "5", warm=True)
        for role in ("prefill", "decode"):
            for n in (0, 1):
                service.start_worker(role, *pools, name=f"{role}-{n}")
        service.wait_ready()
        wait_for(
            lambda: service.log("gateway").count("warmed_up") == 4,
            seconds=30,
            why="all four pairs are warm",
        )
        tried = set(
            re.findall(r"event=warmed_up prefill=(\w+) decode=(\w+)", service.log("gateway"))
        )
        assert len(tried) == 4
        assert "warm_up_failed" not in service.log("gateway")
        assert len(service.ids([1, 2, 3], max_tokens=5, ignore_eos=True)) == 5
        service.wait_clean()
    finally:
        service.close()
