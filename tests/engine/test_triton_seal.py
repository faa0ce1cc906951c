"""The seal for CUDA devices, as far as a machine without one can try it: interpreted."""

import importlib
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.core.handoff.seal_cases import PAGED, table

from baton.core.errors import ConfigError
from baton.core.memory.state import DType, Placement, StateSpec

ROOT = Path(__file__).parents[2]
INTERPRETED = Path(__file__).with_name("interpreted_seal.py")
MODULE = "baton.engine.cuda.seal"
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed: pip install 'baton-llm[cuda]'",
)


@needs_triton
def test_the_interpreted_seal_passes_its_tests():
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(INTERPRETED)],
        env=os.environ | {"TRITON_INTERPRET": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert " passed" in ran.stdout
    assert "skipped" not in ran.stdout


def test_without_triton_the_error_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, MODULE, raising=False)
    with pytest.raises(ConfigError, match=r"pip install 'baton-llm\[cuda\]'"):
        importlib.import_module(MODULE)


@needs_triton
@pytest.mark.parametrize(
    ("rows", "elements", "tile"),
    [
        (32, 32, (4, 32, 32)),  # SmolLM2: k and v of 16 tokens, 128 bytes
        (32, 64, (2, 32, 64)),  # Llama-8B
        (16, 288, (8, 16, 32)),  # a latent: 9 lines, none of them read in vain
        (32, 33, (2, 32, 64)),
        (1, 16384, (32, 1, 128)),  # a slot
        (512, 4096, (1, 32, 128)),
        (1, 1, (4096, 1, 1)),
    ],
)
def test_a_tile_is_as_large_whatever_the_rows(rows, elements, tile):
    """The registers of a program depend on it alone."""
    from baton.engine.cuda.seal import tile_of

    assert tile_of(rows, elements) == tile


@needs_triton
@pytest.mark.parametrize(
    ("row", "address", "width"),
    [(64, 4096, 4), (64, 4098, 2), (64, 4097, 1), (33, 4096, 2), (32, 4100, 4)],
)
def test_elements_lie_at_multiples_of_their_width(row, address, width):
    """A device faults where another processor only takes longer."""
    from baton.engine.cuda.seal import shape_of

    spec = StateSpec("kv", PAGED, (0, 1), ("k", "v"), 2, row, DType.BF16)
    placement = Placement(table(spec), 1, 1, 0, 0, 1)
    shape = shape_of(placement.places["kv"], 4, address)
    assert (shape.width, shape.row) == (width, 2 * row // width)
