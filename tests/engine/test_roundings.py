"""What 16 bits leave of the logits."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tests.engine.whole import Request, Rig
from tests.tiny import make_tiny

from baton.core.state import DType

# Deep, so that what is rounded in every layer adds up, and narrow weights: in each layer the stream changes by a part of itself.
DEEP = {"hidden_size": 192, "intermediate_size": 512, "head_dim": 48, "num_hidden_layers": 12, "initializer_range": 0.05}
FAMILIES: dict[str, dict[str, object]] = {
    "llama": {},
    "gemma3": {"layer_types": ["sliding_attention", "full_attention"] * 6},
}
PROMPTS = 12


def prompts() -> list[list[int]]:
    chance = np.random.default_rng(5)
    return [chance.integers(0, 250, 11 + 4 * n).tolist() for n in range(PROMPTS)]


def made(path: Path, family: str) -> Path:
    """Weights that 16 bits hold exactly: how they are rounded is nobody's doing here."""
    make_tiny(path, family, **DEEP | FAMILIES[family])
    file = path / "model.safetensors"
    save_file({name: x.bfloat16().float() for name, x in load_file(file).items()}, file, metadata={"format": "pt"})
    return path


def logits_of(path: Path) -> list[torch.Tensor]:
    """Ours after each prompt, as they are drawn from."""
    rig = Rig(path, dtype=DType.BF16)
    try:
        for number, prompt in enumerate(prompts()):
            rig.run([Request(number, prompt, range(4)).whole()])
        return [found[0] for found in rig.model.answers]
    finally:
        rig.close()


def test_logits_that_16_bits_cannot_tell_apart_are_told_apart(tmp_path: Path) -> None:
    for logits in logits_of(made(tmp_path / "model", "llama")):
        assert logits.dtype is torch.float32
        assert (logits != logits.bfloat16().float()).float().mean() > 0.9
