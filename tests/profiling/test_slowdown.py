"""What workers cost each other counts where it stands out of the noise of the machine."""

from random import Random

import pytest

from baton.dev.profiling.measuring import slowdown


@pytest.mark.parametrize(
    ("slower", "expected"),
    [
        (27, 0.3),
        (20, 0.3),  # 0.96 % by chance, were each as likely to be the slower one
        (19, 0.0),  # 2.6 %
        (14, 0.0),
        (0, 0.0),
    ],
)
def test_it_counts_if_nearly_all_turns_are_slower(slower, expected):
    turns = [(100.0, 130.0)] * slower + [(100.0, 95.0)] * (27 - slower)
    assert slowdown(turns) == pytest.approx(expected)


def test_noise_seldom_passes_for_a_slowdown():
    chance = Random(0)
    found = [
        slowdown(
            [(chance.lognormvariate(4, 0.3), chance.lognormvariate(4, 0.3)) for _ in range(27)]
        )
        for _ in range(2_000)
    ]
    assert sum(one > 0 for one in found) <= 0.02 * len(found)


def test_a_slowdown_is_found_in_noise():
    chance = Random(0)
    turns = [
        (chance.lognormvariate(4, 0.1), 1.4 * chance.lognormvariate(4, 0.1)) for _ in range(27)
    ]
    assert slowdown(turns) == pytest.approx(0.4, abs=0.1)


def test_equal_times_are_none():
    assert slowdown([(1.0, 1.0)] * 27) == 0.0
