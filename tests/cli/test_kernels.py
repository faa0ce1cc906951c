"""What is compiled when the program is installed is all that a worker runs, of any family and
dtype."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tiny import make_tiny

from baton.cli.compose_rank import SERVED

ROOT = Path(__file__).parents[2]
FAMILIES = ("llama", "gpt_oss", "gemma3", "qwen3_moe", "deepseek_v3", "deepseek_v32", "qwen3_next")
COMPUTES = """
import sys
from pathlib import Path
from tests.engine.whole import Request, Rig
from baton.core.memory.state import DType

for path in sys.argv[2:]:
    rig = Rig(Path(path), dtype=DType(sys.argv[1]))
    request = Request(0, list(range(100, 140)), [3, 1, 2])
    (done,) = rig.run([request.whole()])
    rig.run([request.next(done.drawn.token, 1)])
    rig.close()
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_worker_of_any_family_and_dtype_finds_its_kernels_compiled(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    subprocess.run(
        [sys.executable, "-m", "baton.cli.kernels"], env=environment, cwd=ROOT, check=True
    )
    compiled = {path.name for path in cache.rglob("*.nbc")}
    assert len(compiled) > 40
    models = [str(make_tiny(tmp_path / family, family)) for family in FAMILIES]
    for dtype in SERVED.values():
        subprocess.run(
            [sys.executable, "-c", COMPUTES, dtype.value, *models],
            env=environment,
            cwd=ROOT,
            check=True,
        )
        assert {path.name for path in cache.rglob("*.nbc")} == compiled, dtype
