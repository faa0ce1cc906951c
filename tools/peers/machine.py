"""What the machine can do at this moment: the limits that every engine has."""

import time

import numpy as np
import torch

READ_BYTES = 512 << 20  # more than any cache holds
TIMES = 3


def read_rate(threads: int) -> float:
    """Return GB/s of reading memory once: a sum over float32, as a step of batch 1 reads weights."""
    torch.set_num_threads(threads)
    held = torch.ones(READ_BYTES // 4)
    return READ_BYTES / _best(lambda: held.sum()) / 1e9


def gemm_rate(rows: int, threads: int, *, wide: int = 1536, deep: int = 576) -> float:
    """Return GFLOP/s of a product [rows, deep] x [deep, wide] in bfloat16: an MLP of the trial
    model."""
    torch.set_num_threads(threads)
    one, other = (torch.randn(n, m).bfloat16() for n, m in ((rows, deep), (deep, wide)))
    return 2 * rows * deep * wide / _best(lambda: one @ other) / 1e9


def _best(work: object) -> float:
    """Seconds of the best of some runs, behind one that is not counted."""
    assert callable(work)
    found = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return float(np.min(found[1:]))
