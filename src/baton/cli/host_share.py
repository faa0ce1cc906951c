"""The default amount of host memory of a rank, for the state of preempted requests.

While requests grow, more and more of them are preempted. If n requests run, of which c fit into the
pools at full length, the preempted state amounts to about ln(n / c) times the pools; twice the
pools is enough up to n = 7 c. The memory is taken from the machine at its first use.
"""

POOLS = 2  # most host memory, in multiples of the rank's pools
SHARE = 0.25  # most host memory of all ranks that generate, as a share of what the pools leave free


def automatic(pools: int, *, available: int, ranks: int) -> int:
    """Return the bytes of host memory for a rank.

    Args:
        pools: bytes of the rank's pools
        available: free bytes of the machine's memory
        ranks: number of ranks that generate on this machine
    """
    return min(POOLS * pools, int(SHARE * available) // ranks)
