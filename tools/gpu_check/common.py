"""What all checks need: a result, a rate, and pools of random bytes."""

import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from tools.compile_gpu_kernels import PAGED

from baton.core.memory.state import Placement

IDENTITY = 0x0123456789ABCDEF
TIMES, BATCHES = 10, 5
ANSWER_S = 120.0
STEP_CYCLES = 500_000_000  # of the device's clock: a third of a second
BE_SLOW: Mapping[str, Callable[[], None]] = MappingProxyType(
    {
        "cuda": lambda: torch.cuda._sleep(STEP_CYCLES),
        "cpu": lambda: None,
    }
)
SYNCHRONISE: Mapping[str, Callable[[], None]] = MappingProxyType(
    {"cuda": torch.cuda.synchronize, "cpu": lambda: None}
)


class Result(NamedTuple):
    """What a check found. `passed`: None = it states figures, and nothing is judged."""

    passed: bool | None
    said: str
    figures: Mapping[str, float]


def rate(work: Callable[[], object], nbytes: int, device: torch.device) -> float:
    """Return GB/s: the best of BATCHES batches of `work` done TIMES times, after a first one."""
    wait, found = SYNCHRONISE[device.type], []
    work()
    wait()
    for _ in range(BATCHES):
        begun = time.perf_counter()
        for _ in range(TIMES):
            work()
        wait()
        found.append((time.perf_counter() - begun) / TIMES)
    return nbytes / min(found) / 1e9


def random_pool(placement: Placement, nbytes: int, device: torch.device) -> torch.Tensor:
    """Return whole blocks, at most `nbytes` of them."""
    block = placement.block_bytes(PAGED)
    chance = torch.Generator(device=device).manual_seed(1)
    size = max(1, nbytes // block) * block
    return torch.randint(0, 256, (size,), dtype=torch.uint8, device=device, generator=chance)


def scattered(pool: torch.Tensor, placement: Placement) -> tuple[Any, Any]:
    """Return all slots of the pool in random order, and numbers of blocks for them."""
    count = pool.numel() // placement.block_bytes(PAGED)
    return torch.randperm(count).numpy(), np.arange(count, dtype=np.int64)
