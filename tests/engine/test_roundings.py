"""How far 16 bits take the logits from those of float32, beside transformers' 16 bits over the same
weights and prompts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.test_models import truth
from tests.engine.whole import Request, Rig
from tests.tiny import make_tiny

from baton.core.memory.state import DType

# Deep, so that what is rounded in every layer adds up, and narrow weights: in each layer the stream
# changes by a part of itself.
DEEP = {
    "hidden_size": 192,
    "intermediate_size": 512,
    "head_dim": 48,
    "num_hidden_layers": 12,
    "initializer_range": 0.05,
}
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
    save_file(
        {name: x.bfloat16().float() for name, x in load_file(file).items()},
        file,
        metadata={"format": "pt"},
    )
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


def distance(found: Sequence[torch.Tensor], exact: Sequence[torch.Tensor]) -> float:
    """Root of the mean square, each prompt's in the scale of its logits."""
    return float(
        torch.stack(
            [
                (a.float() - b).pow(2).mean() / b.pow(2).mean()
                for a, b in zip(found, exact, strict=True)
            ]
        )
        .mean()
        .sqrt()
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_sixteen_bits_are_nearer_to_float32_than_those_of_transformers(
    tmp_path: Path, family: str
) -> None:
    path = made(tmp_path / "model", family)
    exact = [truth(path, prompt)[1][-1] for prompt in prompts()]
    theirs = distance([truth(path, prompt, torch.bfloat16)[1][-1] for prompt in prompts()], exact)
    ours = distance(logits_of(path), exact)
    # 0.62 and 0.66; 0.88 and 0.90 with a stream that is rounded in every layer
    assert 0 < ours <= 0.75 * theirs


def test_logits_that_16_bits_cannot_tell_apart_are_told_apart(tmp_path: Path) -> None:
    for logits in logits_of(made(tmp_path / "model", "llama")):
        assert logits.dtype is torch.float32
        assert (logits != logits.bfloat16().float()).float().mean() > 0.9
