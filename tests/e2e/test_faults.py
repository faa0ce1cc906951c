"""A fabric that lies, between real processes: every fault detected, the answer right, nothing left
behind."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest
from tests.e2e.faulty_worker import FETCH_MS
from tests.e2e.reference import Reference
from tests.e2e.service import Service, split, wait_for
from tests.faults import Fault, Faults, Rule

PROMPT = [(7 * i) % 250 + 1 for i in range(150)]
TOKENS = 12
pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def expected(tiny: Path) -> list[int]:
    """What the model says."""
    return Reference(tiny).answer(PROMPT, TOKENS)


@pytest.fixture(scope="module")
def liars(
    tmp_path_factory: pytest.TempPathFactory, tiny: Path
) -> Iterator[Callable[[str], Service]]:
    """A service for each fabric, whose decode worker has the faults that it is told to have."""
    # every prompt in as many offers
    pools = ("--kv-pages", "40", "--page-size", "16", "--no-enable-prefix-caching")
    with ExitStack() as stack:

        @cache
        def of(fabric: str) -> Service:
            service = split(
                tmp_path_factory.mktemp(fabric),
                tiny,
                fabric=fabric,
                prefill=pools,
                decode=pools,
                faults=Faults(()),
            )
            return stack.enter_context(service)

        yield of


@pytest.fixture
def liar(liars: Callable[[str], Service], request: pytest.FixtureRequest) -> Iterator[Service]:
    """The service, its decode worker with the faults of the test's parameter."""
    fabric, *rules = request.param
    service = liars(fabric)
    service.order("decode", Faults(tuple(rules)))
    yield service
    service.order("decode", Faults(()))


def both(*rules: Rule) -> list[tuple]:
    return [("shm", *rules), ("nixl", *rules)]


PASSING = [
    Rule(Fault.FLIP, count=2),
    Rule(Fault.SWAP, count=2),
    Rule(Fault.ELSEWHERE, count=2),
    Rule(Fault.SHORT, count=2),
    Rule(Fault.PARTIAL, count=2),
    Rule(Fault.FAIL, count=2),
    Rule(Fault.FLIP, count=3),
    Rule(Fault.DELAY, count=1, delay_ms=FETCH_MS // 2),
]


@pytest.mark.parametrize(
    "liar",
    [case for rule in PASSING for case in both(rule)],
    indirect=True,
    ids=lambda c: f"{c[0]}-{c[1].fault.value}-{c[1].count}",
)
def test_a_passing_fault_costs_time_and_nothing_else(liar: Service, expected: list[int]) -> None:
    assert liar.ids(PROMPT, max_tokens=TOKENS, ignore_eos=True) == expected
    liar.wait_clean()
    assert liar.ids(PROMPT, max_tokens=TOKENS, ignore_eos=True) == expected


@pytest.mark.parametrize("liar", both(Rule(Fault.FLIP)), indirect=True, ids=lambda c: c[0])
def test_damage_that_persists_is_a_typed_error_and_leaves_nothing(liar: Service) -> None:
    answer = liar.complete(PROMPT, max_tokens=TOKENS)
    assert answer.status_code >= 500
    assert answer.json()["error"]["code"] == "handoff_failed"
    liar.wait_clean()


@pytest.mark.parametrize("liar", both(Rule(Fault.HANG, count=1)), indirect=True, ids=lambda c: c[0])
def test_a_read_that_never_ends_is_cancelled_at_its_deadline_and_read_again(
    liar: Service, expected: list[int]
) -> None:
    assert liar.ids(PROMPT, max_tokens=TOKENS, ignore_eos=True) == expected
    liar.wait_clean()


@pytest.mark.parametrize("liar", [("shm", Rule(Fault.HANG))], indirect=True, ids=["shm"])
def test_a_client_that_goes_while_a_read_hangs_leaves_nothing(liar: Service) -> None:
    asked = {
        "model": "m",
        "prompt": PROMPT,
        "max_tokens": TOKENS,
        "ignore_eos": True,
    }  # else nothing may be read: it ends at once
    body = json.dumps(asked).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: b\r\nContent-Type: "
        f"application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", liar.port)) as client:
        client.sendall(head.encode() + body)
        wait_for(
            lambda: any(w["reads"] for w in liar.ledger()["workers"]),
            seconds=10,
            why="a read is under way",
        )
    liar.wait_clean()


def test_no_seal_no_detection(tmp_path: Path, tiny: Path, expected: list[int]) -> None:
    """The faults are real: without the seal they come through as wrong tokens."""
    flags = ("--kv-pages", "40", "--seal", "off")
    faults = Faults((Rule(Fault.SWAP),))
    with split(tmp_path, tiny, prefill=flags, decode=flags, faults=faults) as s:
        assert s.ids(PROMPT, max_tokens=TOKENS, ignore_eos=True) != expected
        s.wait_clean()
