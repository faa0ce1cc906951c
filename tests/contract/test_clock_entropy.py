"""The sentences of ports/clock.py (K1, K2) and ports/entropy.py (N1, N2)."""

import itertools
import time
from collections import Counter

import pytest

from baton.adapters.clock import MonotonicClock
from baton.adapters.entropy import SystemEntropy


def test_k1_it_never_goes_back() -> None:
    clock = MonotonicClock()
    times = [clock.now() for _ in range(10_000)]
    assert all(a <= b for a, b in itertools.pairwise(times))
    assert MonotonicClock().now() >= times[-1], "all clocks of a process are one"


def test_k2_it_is_in_whole_microseconds() -> None:
    clock = MonotonicClock()
    before, now, after = time.monotonic_ns(), clock.now(), time.monotonic_ns()
    assert isinstance(now, int)
    assert before // 1000 <= now <= after // 1000


def test_n1_every_call_draws_afresh() -> None:
    one, other = SystemEntropy(), SystemEntropy()
    assert len({source.bits(64) for source in (one, other) for _ in range(1000)}) == 2000


@pytest.mark.parametrize("n", [1, 3, 64, 128])
def test_n2_draws_are_uniform(n: int) -> None:
    source = SystemEntropy()
    draws = [source.bits(n) for _ in range(4000)]
    assert all(0 <= draw < 2**n for draw in draws)
    for bit in range(n):  # 10 standard deviations
        assert abs(sum(draw >> bit & 1 for draw in draws) - 2000) < 320, f"bit {bit}"
    if n == 3:
        counts = Counter(draws)
        assert set(counts) == set(range(8))
        assert all(abs(count - 500) < 210 for count in counts.values())
