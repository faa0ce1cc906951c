"""Two vLLM engines on one device that hand prompts over, if vLLM is installed."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType

from tests.tiny import make_tiny
from tools.gpu_check.common import Result

# rows of SmolLM2-135M, in fewer layers; random weights
GEOMETRY = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 12,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "initializer_range": 0.06,
}
VOCABULARY = 250  # of the tiny models' tokenizer, without its last tokens
# memory of the KV cache is stated, so two engines that start at once do not measure each other
MEMORY = "--kv-cache-memory-bytes 4294967296 --gpu-memory-utilization 0.2"
ENGINES_S = 170.0


PROMPTS = 50
# Log-probability by which two tokens may be apart where answers part. In 16 bits one engine parts
# from itself as often, by up to 0.28 on an H200; most tokens that follow from wrong state are
# further apart.
TIES: Mapping[str, float] = MappingProxyType({"float32": 0.001, "bfloat16": 0.5})


def vllm_command() -> str | None:
    """Return the command of vLLM, if it is installed."""
    return shutil.which("vllm")


def checks(command: str) -> Iterator[tuple[str, partial[Result]]]:
    """Yield a check for each dtype."""
    for dtype in TIES:
        yield f"vllm: handed over, {dtype}", partial(handed_over, command, dtype)


def handed_over(command: str, dtype: str) -> Result:
    """Hand prompts over between two engines, and compare with what one engine computes."""
    with tempfile.TemporaryDirectory() as folder:
        model = make_tiny(Path(folder) / "model", **GEOMETRY)
        asked = [
            *(sys.executable, "-m", "tools.vllm_check", "--vllm", command, "--model", str(model)),
            *("--vocabulary", str(VOCABULARY), "--prompts", str(PROMPTS)),
            *("--tie", str(TIES[dtype]), "--vllm-args", f"{MEMORY} --dtype {dtype}"),
        ]
        run = subprocess.run(asked, capture_output=True, text=True, timeout=ENGINES_S)
    begin = run.stdout.find("{")
    if begin < 0:
        return Result(False, (run.stdout + run.stderr)[-300:], {})
    found = json.loads(run.stdout[begin:])
    figures = {
        "prompts": found["prompts"],
        "equal": found["equal"],
        "near_ties": found["near_ties"],
        "read_bytes": found["reads"].get("baton:read_bytes_total", 0),
        "reads_failed": found["reads"].get("baton:reads_failed_total", 0),
    }
    own = found["gaps_of_one_engine"]
    said = (
        f"{found['equal']} of {found['prompts']} answers equal, {found['near_ties']} near-ties "
        f"{found['gaps'][-3:]} (one engine asked twice: {len(own)} {own[-3:]}), "
        f"{figures['read_bytes'] / 1e6:.0f} MB read, clean {found['clean']}"
    )
    return Result(run.returncode == 0, said, figures)
