"""The kernels for CUDA devices compile, for devices that are not here."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: pip install 'baton-llm[cuda]'")

import triton
from triton.backends.compiler import GPUTarget

from baton.engine.cuda import seal
from compile_gpu_kernels import MODELS, PAGED, TARGETS, compiled


@pytest.fixture(autouse=True)
def _nothing_compiled_before(monkeypatch, tmp_path):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", ["SmolLM2-135M", "Llama-8B"])
def test_they_compile_and_keep_everything_in_registers(model, target):
    found = compiled(model, target)
    assert found.spilled == 0
    # Measured on an H200: 2 warps of up to 96 registers seal up to 1.38 times as fast as 4 warps of
    # up to 64, with fewer threads on a multiprocessor.
    assert found.registers <= 96, "10 programs of 64 threads share the 65,536 of a multiprocessor"


def test_rows_of_any_bytes_are_kept_in_registers_too():
    assert "rows of 33 bytes" in MODELS
    assert compiled("rows of 33 bytes", 90).spilled == 0


def test_a_kernel_that_spills_is_seen():
    """Otherwise the others would prove nothing."""
    assert compiled("rows of 33 bytes", 80, most_registers=24).spilled > 0


class _NoDevice:
    """A driver for compiling alone."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device):
        return 0


class _Compiling:
    """The kernel, compiled for the arguments of every launch, which is then left out."""

    def __init__(self, kernel):
        self.kernel, self.made = kernel, []

    def __getitem__(self, grid):
        def launch(*args, **kwargs):
            self.made.append(self.kernel.warmup(*args, grid=grid, **kwargs))

        return launch


@pytest.fixture
def launches(monkeypatch):
    found = _Compiling(seal.sums_kernel)
    monkeypatch.setattr(seal, "sums_kernel", found)
    monkeypatch.setattr(triton.runtime.driver, "_active", _NoDevice())
    return found.made


def test_a_kernel_is_compiled_once_whatever_blocks_are_sealed(launches):
    """A request must not wait for a compiler because it has another number of blocks."""
    placement = MODELS["SmolLM2-135M"]
    pool = torch.zeros(16 * placement.block_bytes(PAGED), dtype=torch.uint8)
    for count in (1, 2, 3, 8, 16):
        blocks = np.arange(count)
        seal.block_sums(pool, placement, PAGED, blocks, blocks, 1)
    assert len(launches) == 5
    assert len({made.hash for made in launches}) == 1
