"""Checks on a machine with a GPU what machines without one cannot check: `make gpu-check`.

    seal: bits       the kernel against numpy, on the golden cases and on random pools
    seal: rate       bytes sealed a second, beside a copy of the same bytes within the device
    device read      another process maps the pool, copies it, and finds the same sums; memory
                     that no other process could map is refused
    vLLM's step      a KV cache is sealed behind the fence of a step that takes long
    nixl, mooncake   if they are there and reach devices: reads between host and device, the
                     contract of a fabric on the device, and a KV cache that is sealed, read by
                     another process and verified
    vllm             if it is installed: two of its engines on the device hand prompts over

`--only TEXT` runs the checks whose names contain it.
The last line is JSON. Exit codes: 0 = all checks passed, 1 = one failed, 2 = there is no CUDA
device. Rates are stated, not judged. A copy reads and writes its bytes, which are counted once.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product

import torch
from tests.core.handoff.seal_cases import cases
from tools.compile_gpu_kernels import MODELS
from tools.gpu_check import engines, reads
from tools.gpu_check.common import Result
from tools.gpu_check.seals import behind_a_step, golden, random_bits, seal_rate

from baton.core.memory.kinds import HOST, CudaMemory
from baton.engine.cuda.seal import triton

RATED = ("SmolLM2-135M", "Llama-8B")
RATE_BYTES = 4 << 30  # far more than the caches of a device hold
READ_BYTES = 1 << 30
COMPARED_BYTES = 64 << 20  # numpy takes a tenth of a second for them


def checks(
    device: torch.device, *, rated: int, read: int, compared: int
) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Yield all checks, those of correctness first; the sizes are bytes."""
    yield "seal: bits, golden cases", partial(golden, device, cases())
    for name in MODELS:
        yield f"seal: bits, {name}", partial(random_bits, name, device, compared)
    yield "vLLM's step, Llama-8B", partial(behind_a_step, "Llama-8B", device, compared)
    yield "device read, Llama-8B", partial(reads.device_read, "Llama-8B", device, read)
    yield "expandable segments are refused", reads.segments_refused
    for fabric in reads.reaching_devices():
        yield from over_a_fabric(fabric, device, read)
    for name in RATED:
        yield f"seal: rate, {name}", partial(seal_rate, name, device, rated)
    if (command := engines.vllm_command()) is not None:
        yield from engines.checks(command)


def over_a_fabric(
    fabric: str, device: torch.device, nbytes: int
) -> Iterator[tuple[str, Callable[[], Result]]]:
    """Yield the checks of reads over a fabric; `nbytes`: of the cache that is handed over."""
    here = CudaMemory(device.index)
    for source, target in product((here, HOST), repeat=2):
        yield f"{fabric}: {source} to {target}", partial(reads.pair, fabric, source, target)
    for name in RATED:
        yield (
            f"{fabric}: handed over, {name}",
            partial(reads.handed_over, fabric, name, device, nbytes),
        )
    yield f"{fabric}: contract", partial(reads.contract, fabric, here)
    yield f"{fabric}: rates", partial(reads.rates, fabric, here)


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
    return f"{verdict}  {name:<34}{result.said}"


def main() -> int:
    """Print the table and the line of JSON."""
    if not torch.cuda.is_available():
        print(f"no CUDA device: PyTorch {torch.__version__} sees none", file=sys.stderr)
        return 2
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", metavar="TEXT", help="checks whose names contain it")
    only = parser.parse_args().only
    device = torch.device("cuda", 0)
    here = machine(device)
    print(", ".join(f"{name} {value}" for name, value in here.items()))
    room = torch.cuda.mem_get_info(device)[0] // 4
    sizes = {"rated": RATE_BYTES, "read": READ_BYTES, "compared": COMPARED_BYTES}
    found = {}
    for name, check in checks(device, **{name: min(room, size) for name, size in sizes.items()}):
        if only not in name:
            continue
        found[name] = outcome(check)
        print(shown(name, found[name]), flush=True)
    failed = [name for name, result in found.items() if result.passed is False]
    print("FAIL" if failed else "PASS")
    results = {name: result._asdict() for name, result in found.items()}
    print(json.dumps(here | {"failed": failed, "checks": results}))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
