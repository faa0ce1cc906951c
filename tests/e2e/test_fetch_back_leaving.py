"""Clients leave at any moment while their conversations come back from decode: nothing is left of
anybody on either side."""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.e2e.service import Service
from tests.faults import Fault, Faults, Rule

PAGES = 240  # of 16 tokens
TALKS = 6  # as many as ask at once: each client has one to itself
LONG, ANSWER = 400, 17
LENT, BORROWED = (f"baton:prefix_cache_{what}_tokens_total" for what in ("lent", "borrowed"))
# every read of prefill: time enough to leave in the middle of one
SLOW = Faults((Rule(Fault.DELAY, delay_ms=25),))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Service]:
    pools = ("--kv-pages", str(PAGES), "--page-size", "16")
    service = Service(tmp_path_factory.mktemp("leaving"), tiny)
    try:
        service.start_gateway()
        service.start_worker("prefill", *pools, "--fetch-back", "always", faults=SLOW)
        service.start_worker("decode", *pools)
        service.wait_ready()
        yield service
    finally:
        service.close()


def counted(service: Service) -> Counter[str]:
    """Tokens lent by decode and borrowed by prefill, and what prefill has met, by name."""
    found = Counter[str]()
    for line in service.http.get("/metrics").text.splitlines():
        name, _, labels = line.partition("{")
        if name in (LENT, BORROWED):
            found[name] += int(float(line.split()[-1]))
        elif name == "baton:events_total" and 'role="prefill"' in labels:
            found[labels.split('event="')[1].split('"')[0]] += int(float(line.split()[-1]))
    return found


def talks(service: Service) -> list[list[int]]:
    """Conversations that decode has, answers included."""
    prompts = [[1 + (7 * i + 13 * talk) % 250 for i in range(LONG)] for talk in range(TALKS)]
    return [prompt + service.ids(prompt, max_tokens=ANSWER, ignore_eos=True) for prompt in prompts]


def ask(service: Service, talk: list[int], number: int) -> tuple[list[int], list[int] | None]:
    """The next turn of a talk that prefill has forgotten: its prompt, and its answer unless the
    client left before it."""
    chance = random.Random(number)
    prompt = talk + [1 + (number * 31 + i) % 250 for i in range(chance.randint(1, 30))]
    patience = chance.choice([30.0, *(chance.uniform(0.001, 0.08) for _ in range(4))])
    body: dict[str, Any] = {
        "model": "m",
        "prompt": prompt,
        "max_tokens": 4,
        "temperature": 0,
        "return_token_ids": True,
    }
    with httpx.Client(base_url=str(service.http.base_url)) as http:
        assert (
            http.post("/reset_prefix_cache", params={"worker": "prefill"}, timeout=30).status_code
            == 200
        )
        try:
            answer = http.post(
                "/v1/completions", json=body | {"ignore_eos": True}, timeout=patience
            )
        except httpx.TimeoutException:
            return prompt, None
    assert answer.status_code == 200, answer.text
    return prompt, answer.json()["choices"][0]["token_ids"]


def left_by(service: Service, clients: int) -> None:
    """So many clients, most of whom leave."""
    known, before = talks(service), counted(service)

    def one(which: int) -> list[tuple[list[int], list[int] | None]]:
        return [ask(service, known[which], number) for number in range(which, clients, TALKS)]

    with ThreadPoolExecutor(TALKS) as pool:
        ended = list(chain.from_iterable(pool.map(one, range(TALKS))))
    service.wait_clean(5.0)
    left = sum(answer is None for _, answer in ended)
    assert clients / 3 < left < clients, "some left, and some did not"
    taken = counted(service) - before
    assert taken["borrowed"] >= clients / 8, taken
    assert (
        taken["baton:prefix_cache_lent_tokens_total"]
        >= taken["baton:prefix_cache_borrowed_tokens_total"] + LONG * clients / 10
    ), "left while it came"
    assert not taken.keys() & {"borrowed_in_vain", "stall", "recompute"}
    for number, (prompt, answer) in enumerate(ended):
        if answer is not None:
            alone = service.ids(
                prompt, max_tokens=4, ignore_eos=True, cache_salt=f"{clients}.{number}"
            )
            assert answer == alone, "what came back is what was computed"
    whole = [1 + i % 250 for i in range(PAGES * 16 - 20)]
    assert len(service.ids(whole, max_tokens=20, ignore_eos=True)) == 20, (
        "every page is there for one request"
    )
    service.wait_clean()


@pytest.mark.timeout(120)
def test_30_clients_leave_while_their_conversations_come_back(service: Service) -> None:
    left_by(service, 30)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_200_clients_leave_while_their_conversations_come_back(service: Service) -> None:
    left_by(service, 200)
