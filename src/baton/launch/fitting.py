"""How many CPUs each rank can have, when the user has not said it."""

from collections.abc import Sequence


def fitting_cpus(free: Sequence[int], ranks: Sequence[int]) -> int:
    """Return the most CPUs for each rank with which all workers fit onto the nodes, at least 1.

    Args:
        free: CPUs of each node
        ranks: ranks of each worker, which must be on one node
    """

    def fit(cpus: int) -> bool:
        left = list(free)
        for count in sorted(ranks, reverse=True):
            left.sort()
            if not left or left[-1] < count * cpus:
                return False
            left[-1] -= count * cpus
        return True

    return next((cpus for cpus in range(max(free, default=1), 1, -1) if fit(cpus)), 1)
