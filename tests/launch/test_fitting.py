"""CPUs of a rank, by the nodes of the cluster."""

import pytest

from baton.launch.fitting import fitting_cpus


@pytest.mark.parametrize(
    ("free", "ranks", "each"),
    [
        ([8, 8], [1, 1], 8),
        ([8, 8], [1, 1, 1], 4),  # two of them share a node
        ([8, 8], [2, 2], 4),
        ([16, 8], [2, 1], 8),  # the ranks of a worker stay together
        ([1], [1, 1], 1),  # too few: the placement will say so
        ([0, 2], [1], 2),
    ],
)
def test_all_workers_fit(free: list[int], ranks: list[int], each: int) -> None:
    assert fitting_cpus(free, ranks) == each
