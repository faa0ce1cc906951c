"""Three times as many requests as can be served: who is taken is served in time, everybody else is
told so at once.

How many that are follows from the load. The capacity C, requests a second, is measured just before,
with more clients than the service has places. N = 3 C T requests come in T seconds. Whoever is
served is served between the first request and the end of the slowest, so at most C (T + slowest)
are, and the rest is refused; and while the load lasts the service has always something to do, so at
least C T are. Both by MARGIN, as the speed of a machine drifts and refusals take some of it.
"""

from pathlib import Path

import pytest
from tests.e2e.service import Service, split
from tests.tiny import VOCABULARY

from baton.dev.bench.client import Target
from overload import Found, Load, measure, steady_rate

DEADLINE_S = 20.0
EDGE = ("--request-timeout", f"{DEADLINE_S:g}")
AT_ONCE_MS = 100.0
BACK_S = 5.0
MARGIN = 1.25
SECONDS = 60.0
LATE_MS = 500.0


def flooded(
    service: Service, *, seconds: float, prompt: int, answer: int, vocabulary: int = VOCABULARY
) -> Found:
    """Three times its capacity for so long."""
    load = Load(
        prompt=prompt,
        answer=answer,
        clients=8,
        factor=3.0,
        seconds=seconds,
        capacity_requests=24 if seconds < 30 else 96,
        token_ids=(0, min(250, vocabulary)),
    )
    target = Target(
        base_url=f"http://127.0.0.1:{service.port}",
        endpoint="/v1/completions",
        model="m",
        timeout_s=120.0,
    )
    return measure(target, load)


def in_proportion(capacity: float, served: int, *, slowest_s: float) -> bool:
    """Whether as many were served in a minute as could be, and the rest of a threefold load was
    sent away."""
    return capacity * SECONDS / MARGIN <= served <= MARGIN * capacity * (SECONDS + slowest_s)


@pytest.mark.parametrize(
    ("served", "slowest_s", "right"),
    [
        (600, 2.0, True),
        (700, 10.0, True),
        (1800, DEADLINE_S, False),  # nobody is refused
        (1100, DEADLINE_S, False),  # two of five are, where two of three are too many
        (0, 0.0, False),  # everybody is
        (300, 1.0, False),  # the service has nothing to do for half of the time
    ],
)
def test_who_refuses_nobody_or_too_many_is_found(
    served: int, slowest_s: float, right: bool
) -> None:
    assert in_proportion(10.0, served, slowest_s=slowest_s) == right


def test_the_capacity_is_what_ends_while_all_clients_are_at_it() -> None:
    """Four clients, 0.4 s a request; they begin together, and at the end one is left alone with a
    slow one."""
    ends = [0.1 * n for n in range(4, 24)] + [5.0]
    assert steady_rate(ends, clients=4) == pytest.approx(10.0)


def judge(found: Found, *, least: int) -> None:
    """All but times, which are the slow test's to judge on a machine of its own."""
    assert found.failed == {}, "whoever is not refused is served"
    assert min(found.served, found.refused) >= least, found
    assert found.unsaid == 0, "refusals without Retry-After"
    assert found.slowest_s <= DEADLINE_S
    assert "timeout" not in found.queue, "somebody was kept waiting in vain"
    assert found.failures == {}
    assert not found.events.keys() & {"stall", "deadline", "waited", "fetch_failed", "copy_failed"}
    assert found.clean, "a leak"
    assert found.open_requests == 0
    assert found.back_s is not None


@pytest.mark.timeout(120)
def test_three_times_the_load_for_some_seconds(tmp_path: Path, tiny: Path) -> None:
    """Pools hold about four requests at their full length, and states of those that give way go to
    host memory."""
    decode = (
        "--kv-pages",
        "40",
        "--page-size",
        "16",
        "--max-num-seqs",
        "6",
        "--host-kv-memory",
        "16MiB",
    )
    prefill = ("--kv-pages", "64", "--page-size", "16")
    with split(tmp_path, tiny, prefill=prefill, decode=decode, gateway=EDGE, warm=True) as service:
        judge(flooded(service, seconds=4.0, prompt=32, answer=100), least=5)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("model", ["tiny", "trial"])
def test_three_times_the_load_for_a_minute(
    tmp_path: Path, tiny: Path, trial: Path, model: str
) -> None:
    path, answer = (tiny, 150) if model == "tiny" else (trial, 48)
    decode = (
        "--kv-pages",
        "48",
        "--page-size",
        "16",
        "--max-num-seqs",
        "6",
        "--host-kv-memory",
        "256MiB",
    )
    prefill = ("--kv-pages", "64", "--page-size", "16")
    with split(
        tmp_path, path, dtype="auto", prefill=prefill, decode=decode, gateway=EDGE, warm=True
    ) as service:
        found = flooded(service, seconds=SECONDS, prompt=48, answer=answer)
    judge(found, least=30)
    assert in_proportion(found.capacity, found.served, slowest_s=found.slowest_s), found
    assert found.late_ms.p99 <= LATE_MS, f"{found}: the client was the bottleneck"
    # Of a hundred refusals one may take longer: client and gateway are two of five processes on
    # what may be two cores.
    assert found.refused_ms.p99 <= AT_ONCE_MS, found
    assert found.back_s is not None
    assert found.back_s <= BACK_S, found
