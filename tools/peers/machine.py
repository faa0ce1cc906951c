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
    """Return GFLOP/s of a product [rows, deep] x [deep, wide], an MLP of the trial model: in bfloat16
    or float32, whichever is faster here. A processor without instructions for bfloat16 is slow in
    it."""
    torch.set_num_threads(threads)
    one, other = torch.randn(rows, deep), torch.randn(deep, wide)
    pairs = [(one.to(dtype), other.to(dtype)) for dtype in (torch.bfloat16, torch.float32)]
    best = min(_best(lambda a=a, b=b: a @ b) for a, b in pairs)  # type: ignore[misc]
    return 2 * rows * deep * wide / best / 1e9


def _best(work: object) -> float:
    """Seconds of the best of some runs, behind one that is not counted."""
    assert callable(work)
    found = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return float(np.min(found[1:]))
