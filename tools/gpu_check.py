"""Checks on a machine with a GPU what machines without one cannot check: `make gpu-check`.

    seal: bits       the kernel against numpy, on the golden cases and on random pools
    seal: rate       bytes sealed a second, beside a copy of the same bytes within the device
    device read      another process maps the pool, copies it, and finds the same sums
    vLLM's step      a KV cache is sealed behind the fence of a step that takes long

The last line is JSON. Exit codes: 0 = all checks passed, 1 = one failed, 2 = there is no CUDA
device. Rates are stated, not judged. A copy reads and writes its bytes, which are counted once.
"""

import json
import queue
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from tests.core.handoff.seal_cases import Case, cases  # noqa: E402

from baton.core.handoff import seal  # noqa: E402
from baton.core.memory.state import Placement  # noqa: E402
from baton.engine.cuda.seal import block_sums, triton  # noqa: E402
from baton.vllm.memory import memory_of  # noqa: E402
from compile_gpu_kernels import MODELS, PAGED  # noqa: E402

IDENTITY = 0x0123456789ABCDEF
RATED = ("SmolLM2-135M", "Llama-8B")
RATE_BYTES = 4 << 30  # far more than the caches of a device hold
READ_BYTES = 1 << 30
COMPARED_BYTES = 64 << 20  # numpy takes a tenth of a second for them
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


def read_as_peer(asks: Any, answers: Any) -> None:
    """Be the reading process: map the pool that is sent, copy it, seal the copy, time both."""
    pool, name, case = asks.get()
    device = pool.device
    target, again = torch.empty_like(pool), torch.empty_like(pool)
    read = rate(lambda: target.copy_(pool), pool.numel(), device)
    copied = rate(lambda: again.copy_(target), pool.numel(), device)
    sums = block_sums(target, MODELS[name], PAGED, *case, IDENTITY).cpu().numpy()
    answers.put((read, copied, sums))


def device_read(name: str, device: torch.device, nbytes: int) -> Result:
    """Let another process read the pool through a mapping (CUDA IPC) and compare its sums."""
    placement = MODELS[name]
    pool = random_pool(placement, nbytes, device)
    case = scattered(pool, placement)
    context = torch.multiprocessing.get_context("spawn")
    asks, answers = context.SimpleQueue(), context.Queue()
    peer = context.Process(target=read_as_peer, args=(asks, answers), daemon=True)
    peer.start()
    asks.put((pool, name, case))
    try:
        read, copied, theirs = answers.get(timeout=ANSWER_S)
    except queue.Empty:
        return Result(False, f"the peer says nothing: {peer}", {})
    peer.join(ANSWER_S)  # it unmaps the pool before the pool goes
    ours = block_sums(pool, placement, PAGED, *case, IDENTITY).cpu().numpy()
    same = np.array_equal(ours, theirs)
    said = f"{read:,.0f} GB/s read from a peer, {copied:,.0f} GB/s copied: x{read / copied:.2f}"
    figures = {"read_gb_s": read, "copy_gb_s": copied}
    return Result(same, said + ("" if same else "; sums differ"), figures)


def behind_a_step(name: str, device: torch.device, nbytes: int) -> Result:
    """Seal a cache that a step is still writing, as the connector of vLLM does: on another thread,
    behind the step's fence."""
    placement = MODELS[name]
    cache, written = (random_pool(placement, nbytes, device) for _ in range(2))
    cache.zero_()
    case = scattered(cache, placement)
    memory = memory_of(cache)
    sums = memory.sums(placement, PAGED, IDENTITY)
    sums(*case)  # compiles, so that it does not take as long as the step
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


def checks(
    device: torch.device, *, rated: int, read: int, compared: int
) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Yield all checks, those of correctness first; the sizes are bytes."""
    yield "seal: bits, golden cases", partial(golden, device, cases())
    for name in MODELS:
        yield f"seal: bits, {name}", partial(random_bits, name, device, compared)
    yield "vLLM's step, Llama-8B", partial(behind_a_step, "Llama-8B", device, compared)
    yield "device read, Llama-8B", partial(device_read, "Llama-8B", device, read)
    for name in RATED:
        yield f"seal: rate, {name}", partial(seal_rate, name, device, rated)


def outcome(check: Callable[[], Result]) -> Result:
    """Run a check; whatever it raises is its result, and the others go on."""
    try:
        return check()
    except Exception as error:  # noqa: BLE001 - the loop of a tool, which reports everything
        return Result(False, f"{type(error).__name__}: {error}", {})


def machine(device: torch.device) -> dict[str, str]:
    """Return what the figures belong to."""
    tool = shutil.which("nvidia-smi")
    asked = [tool or "false", "--query-gpu=driver_version", "--format=csv,noheader"]
    said = subprocess.run(asked, capture_output=True, text=True).stdout.split()
    major, minor = torch.cuda.get_device_capability(device)
    return {
        "device": f"{torch.cuda.get_device_name(device)} (sm_{major}{minor})",
        "driver": said[0] if said else "unknown",
        "torch": str(torch.__version__),
        "triton": triton.__version__,
    }


def shown(name: str, result: Result) -> str:
    """Return the line of a check in the table."""
    verdict = {True: "PASS", False: "FAIL", None: "    "}[result.passed]
    return f"{verdict}  {name:<32}{result.said}"


def main() -> int:
    """Print the table and the line of JSON."""
    if not torch.cuda.is_available():
        print(f"no CUDA device: PyTorch {torch.__version__} sees none", file=sys.stderr)
        return 2
    device = torch.device("cuda", 0)
    here = machine(device)
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    room = torch.cuda.mem_get_info(device)[0] // 4
    sizes = {"rated": RATE_BYTES, "read": READ_BYTES, "compared": COMPARED_BYTES}
    found = {}
    for name, check in checks(device, **{name: min(room, size) for name, size in sizes.items()}):
        found[name] = outcome(check)
        print(shown(name, found[name]), flush=True)
    failed = [name for name, result in found.items() if result.passed is False]
    print("FAIL" if failed else "PASS")
    results = {name: result._asdict() for name, result in found.items()}
    print(json.dumps(here | {"failed": failed, "checks": results}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
