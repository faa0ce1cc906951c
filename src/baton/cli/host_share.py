"""Which ranks use host memory, and how much of it by default: where tokens are generated, for the
state of preempted requests; where prompts are computed, for checkpoints.

While requests grow, more and more of them are preempted. If n requests run, of which c fit into the
pools at full length, the preempted state amounts to about ln(n / c) times the pools; twice the
pools is enough up to n = 7 c. A prefill rank keeps checkpoints for the prompts in its cache, each
of them a small part of the prompt's state, so no more is needed there. The memory is taken from the
machine at its first use.
"""

from baton.core.memory.state import StateTable
from baton.shell.settings import Role, WorkerSettings

POOLS = 2  # most host memory, in multiples of the rank's pools
# most host memory of all ranks that generate, and likewise of those that only compute prompts, as a
# share of what the pools leave free
SHARE = 0.25


def uses_host_memory(settings: WorkerSettings, table: StateTable) -> bool:
    """Whether ranks with these settings use host memory: on prefill, where prompts cannot be
    computed on from cached pages alone."""
    if settings.role is not Role.PREFILL:
        return True
    return settings.prefix_caching and settings.seal and not table.cacheable and bool(table.lasting)


def automatic(pools: int, *, available: int, ranks: int) -> int:
    """Return the bytes of host memory for a rank.

    Args:
        pools: bytes of the rank's pools
        available: free bytes of the machine's memory
        ranks: number of ranks on this machine that share it
    """
    return min(POOLS * pools, int(SHARE * available) // ranks)
