"""Three times as many requests as can be served: who is taken is served in time, everybody else is told so at once."""

from pathlib import Path

import pytest
from tests.e2e.service import Service, split
from tests.tiny import VOCABULARY

from baton.bench.client import Target
from overload import Found, Load, measure

DEADLINE_S = 20.0
EDGE = ("--request-timeout", f"{DEADLINE_S:g}")
AT_ONCE_MS = 100.0


def flooded(service: Service, *, seconds: float, prompt: int, answer: int, vocabulary: int = VOCABULARY) -> Found:
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
    target = Target(base_url=f"http://127.0.0.1:{service.port}", endpoint="/v1/completions", model="m", timeout_s=120.0)
    return measure(target, load)


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
    """Pools hold about four requests at their full length, and states of those that give way go to host memory."""
    decode = ("--kv-pages", "40", "--page-size", "16", "--max-num-seqs", "6", "--host-kv-memory", "16MiB")
    prefill = ("--kv-pages", "64", "--page-size", "16")
    with split(tmp_path, tiny, prefill=prefill, decode=decode, gateway=EDGE, warm=True) as service:
        judge(flooded(service, seconds=4.0, prompt=32, answer=100), least=5)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("model", ["tiny", "trial"])
def test_three_times_the_load_for_a_minute(tmp_path: Path, tiny: Path, trial: Path, model: str) -> None:
    path, answer = (tiny, 150) if model == "tiny" else (trial, 48)
    decode = ("--kv-pages", "48", "--page-size", "16", "--max-num-seqs", "6", "--host-kv-memory", "256MiB")
    prefill = ("--kv-pages", "64", "--page-size", "16")
    with split(tmp_path, path, dtype="auto", prefill=prefill, decode=decode, gateway=EDGE, warm=True) as service:
        found = flooded(service, seconds=60.0, prompt=48, answer=answer)
    judge(found, least=30)
    assert found.refused >= found.served / 3, "this was no overload"
    assert found.refused_ms.p99 <= AT_ONCE_MS, found
    assert found.back_s is not None
    assert found.back_s <= 5.0, found
