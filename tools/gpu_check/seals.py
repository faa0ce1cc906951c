"""The seal's kernel: its bits, its rate, and its place behind a step."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from tests.core.handoff.seal_cases import Case
from tools.compile_gpu_kernels import MODELS, PAGED
from tools.gpu_check.common import ANSWER_S, BE_SLOW, IDENTITY, Result, random_pool, rate, scattered

from baton.core.handoff import seal
from baton.engine.cuda.seal import block_sums
from baton.vllm.memory import memory_of


def golden(device: torch.device, tried: Iterable[Case]) -> Result:
    """Compare the kernel with numpy on the cases that fix the seal's values."""
    tried, differ = list(tried), []
    for case in tried:
        held = torch.from_numpy(case.pool()).to(device)
        found = case.sums(lambda pool, *rest, held=held: block_sums(held, *rest).cpu().numpy())
        if not np.array_equal(found, case.sums(seal.block_sums)):
            differ.append(case.name)
    said = f"{len(tried)} cases" + (f"; differ: {', '.join(differ)}" if differ else "")
    return Result(not differ, said, {"cases": len(tried)})


def random_bits(name: str, device: torch.device, nbytes: int) -> Result:
    """Compare the kernel with numpy on a random pool of a model."""
    placement = MODELS[name]
    pool = random_pool(placement, nbytes, device)
    case = (placement, PAGED, *scattered(pool, placement), IDENTITY)
    found = block_sums(pool, *case).cpu().numpy()
    wrong = int((found != seal.block_sums(pool.cpu().numpy(), *case)).sum())
    said = f"{wrong} of {found.size:,} sums differ"
    return Result(not wrong, said, {"sums": found.size, "wrong": wrong})


def seal_rate(name: str, device: torch.device, nbytes: int) -> Result:
    """Time the seal of a whole pool and a copy of it."""
    placement = MODELS[name]
    pool = random_pool(placement, nbytes, device)
    case = (placement, PAGED, *scattered(pool, placement), IDENTITY)
    target = torch.empty_like(pool)
    copied = rate(lambda: target.copy_(pool), pool.numel(), device)
    sealed = rate(lambda: block_sums(pool, *case), pool.numel(), device)
    said = f"{sealed:,.0f} GB/s sealed, {copied:,.0f} GB/s copied: x{sealed / copied:.2f}"
    return Result(None, said, {"seal_gb_s": sealed, "copy_gb_s": copied})


def behind_a_step(name: str, device: torch.device, nbytes: int) -> Result:
    """Seal a cache that a step is still writing, as the connector of vLLM does: on another thread,
    behind the step's fence."""
    placement = MODELS[name]
    cache, written = (random_pool(placement, nbytes, device) for _ in range(2))
    cache.zero_()
    case = scattered(cache, placement)
    memory = memory_of(cache)
    sums = memory.sums(placement, PAGED, IDENTITY)
    BE_SLOW[device.type]()
    cache.copy_(written)
    fence = memory.fence()

    def sealed() -> Any:
        fence()
        return sums(*case)

    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(sealed).result(ANSWER_S)
    right = seal.block_sums(written.cpu().numpy(), placement, PAGED, *case, IDENTITY)
    wrong = int((found != right).sum())
    return Result(not wrong, f"{wrong} of {right.size:,} sums differ", {"wrong": wrong})
