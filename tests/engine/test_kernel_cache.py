"""A process that compiles the kernels finds the same bits as one that loads what was compiled."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import torch

from baton.core.memory.state import DType

ROOT = Path(__file__).parents[2]


def found() -> str:
    """A digest of what the kernels whose sums may be in any order find."""
    from tests.engine.test_attention import LONG
    from tests.engine.test_attention import Case as Attention
    from tests.engine.test_delta import Case as Delta

    from baton.engine.attention.cpu import CpuAttention
    from baton.engine.attention.delta_cpu import CpuDelta

    attention = Attention(DType.F32, (9, 3), 64, LONG, sunk=True)
    answers = [attention.run(CpuAttention(attention.pool, attention.placement))]
    answers += [Delta(size, DType.F32).run(CpuDelta)[0] for size in ("shared", "alone")]
    digest = hashlib.blake2b(digest_size=8)
    for answer in answers:
        digest.update(answer.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def test_compiled_and_loaded_kernels_find_the_same_bits(tmp_path: Path) -> None:
    search = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": search}
    command = [
        sys.executable,
        "-c",
        "from tests.engine.test_kernel_cache import found; print(found())",
    ]
    digests = [
        subprocess.run(command, env=environment, cwd=ROOT, check=True, capture_output=True).stdout
        for _ in range(2)
    ]
    assert digests[0].strip()
    assert digests[0] == digests[1]
