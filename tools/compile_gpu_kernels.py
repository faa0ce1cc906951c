"""Compiles the GPU kernels for several generations of devices; none of them needs to be here.

    python tools/compile_gpu_kernels.py          # a table, as in docs/benchmarks.md

Needs Triton, which brings the assembler and `cuobjdump`. Registers and spilled bytes are those that
the compiled file states, not Triton's estimate; a register that does not fit lies on the stack.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from baton.core.ids import GroupName
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Placement,
    StateSpec,
    StateTable,
    Unit,
)
from baton.engine.cuda.seal import WARPS, fixed, shape_of, sums_kernel

TARGETS: Mapping[int, str] = MappingProxyType({80: "A100", 90: "H100", 100: "B200"})
PAGED = GroupName("full")
BLOCK_TOKENS = 16


def state(layers: int, heads: int, row: int, dtype: DType, parts: str = "kv") -> Placement:
    """Return the placement of a model with one kind of row, on one rank."""
    spec = StateSpec("kv", PAGED, tuple(range(layers)), tuple(parts), heads, row, dtype)
    groups = (Group(PAGED, Unit.PAGE, Full()),)
    return Placement(StateTable(layers, BLOCK_TOKENS, groups, (spec,)), 1, 1, 0, 0, 1)


MODELS: Mapping[str, Placement] = MappingProxyType(
    {
        "SmolLM2-135M": state(30, 3, 64, DType.BF16),
        "Llama-8B": state(32, 8, 128, DType.BF16),
        "a latent of 576": state(61, 1, 576, DType.BF16, "c"),
        "rows of 33 bytes": state(32, 8, 33, DType.FP8),
    }
)
POINTERS: Mapping[str, str] = MappingProxyType(
    {
        "pool": "*u8",
        "constants": "*u64",
        "keys": "*u64",
        "slots": "*i64",
        "firsts": "*i64",
        "out": "*u64",
    }
)
COUNTS = ("out_stride", "total", "offset", "block_stride", "head_stride", "layer_stride")
# The others are multiples of 16, and the compiler may use that.
UNKNOWN = ("slots", "firsts", "out", "out_stride", "total")


class Compiled(NamedTuple):
    """One compiled file. `spilled`, `shared` and `size` are bytes; `spilled` is of one thread."""

    model: str
    target: int
    registers: int
    spilled: int
    shared: int
    size: int


def compiled(model: str, target: int, *, most_registers: int | None = None) -> Compiled:
    """Compile the seal of a model of MODELS for a target of TARGETS.

    Args:
        most_registers: of a thread; None = as many as the compiler wants
    """
    (place,) = MODELS[model].places.values()
    constants = fixed(shape_of(place, BLOCK_TOKENS, 0))
    arguments = dict(POINTERS) | dict.fromkeys(COUNTS, "i32")
    aligned = {} if place.row_bytes % 4 else {name: 16 for name in arguments if name not in UNKNOWN}
    source = ASTSource(
        fn=sums_kernel,
        signature=arguments | dict.fromkeys(constants, "constexpr"),
        constexprs=constants,
        attrs={
            (at,): [["tt.divisibility", aligned[name]]]
            for at, name in enumerate(arguments)
            if name in aligned
        },
    )
    options = {"num_warps": WARPS} | ({"maxnreg": most_registers} if most_registers else {})
    made = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    cubin = made.asm["cubin"]
    used = usage(cubin)
    spilled = used["STACK"] + used["LOCAL"]
    return Compiled(model, target, used["REG"], spilled, made.metadata.shared, len(cubin))


def usage(cubin: bytes) -> dict[str, int]:
    """Return what a compiled kernel uses: REG (registers), STACK, LOCAL and others (bytes)."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        Path(file.name).write_bytes(cubin)
        said = subprocess.run(
            [triton.knobs.nvidia.cuobjdump.path, "--dump-resource-usage", file.name],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    (line,) = (line for line in said.splitlines() if "REG:" in line)
    return {name: int(value) for name, value in re.findall(r"([A-Z]+):(\d+)", line)}


def table() -> Iterator[str]:
    """Yield the lines of a table with all models and targets."""
    yield "| rows of | device | registers | spilled | shared memory | cubin |"
    yield "|---|---|---|---|---|---|"
    for model in MODELS:
        for target, device in TARGETS.items():
            row = compiled(model, target)
            yield (
                f"| {model} | sm_{target} ({device}) | {row.registers} | {row.spilled} B | "
                f"{row.shared:,} B | {row.size:,} B |"
            )


def main() -> int:
    """Print the table."""
    print(f"Triton {triton.__version__}, {WARPS} warps\n")
    for line in table():
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
