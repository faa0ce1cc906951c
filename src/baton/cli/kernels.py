"""`python -m baton.cli.kernels`: compiles the kernels that workers run, after an installation.

The kernels are stored beside the sources. A worker's first start loads them, which saves 20 s.
"""

import sys

from baton.cli.kernel_cache import provide_cache
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
)

BLOCKS = 2  # of each pool; the kernels run over the first blocks


def compile_kernels(dtype: DType) -> None:
    """Compile the kernels of all families for a dtype, by running them over all kinds of state."""
    import numpy as np

    from baton.adapters.memory import HostPool
    from baton.engine.attention.registry import Backends
    from baton.engine.cpu_ops import CpuOps
    from baton.engine.digest import block_sums
    from baton.engine.kernels.team import Team
    from baton.engine.models.base import KV, SLOT
    from baton.engine.models.gated_delta import delta_specs
    from baton.engine.models.qwen3_next_config import DeltaSettings

    smallest = DeltaSettings(key_heads=1, value_heads=1, key=4, value=4, taps=2)
    groups = (Group(KV, Unit.PAGE, Full()), Group(SLOT, Unit.SLOT, Whole()))
    attending = StateSpec("kv", KV, (0,), ("k", "v"), heads=1, row=16, dtype=dtype)
    table = StateTable(2, 16, groups, (attending, *delta_specs(smallest, (1,), SLOT, dtype)))
    placement = Placement(table, 1, 1, 0, 0, 1)
    pools = {
        g.name: HostPool(BLOCKS * placement.block_bytes(g.name), what=f"the pool of group {g.name}")
        for g in groups
    }
    Backends(pools, placement).warm()
    CpuOps(dtype, Team(1)).warm()
    first = np.zeros(1, dtype=np.int64)
    block_sums(pools[KV].array, placement, KV, first, first, 0)
    for pool in pools.values():
        pool.close()


def main() -> None:
    """Compile the kernels for all dtypes."""
    if (note := provide_cache()) is not None:  # before anything with a kernel is imported
        print(f"baton: warning: {note}", file=sys.stderr)
    from baton.cli.compose_rank import SERVED

    for dtype in SERVED.values():
        compile_kernels(dtype)


if __name__ == "__main__":
    main()
