"""fp8 checkpoints with block scales: what is read is what was meant, whole and in parts, and a
whole model from one."""

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.test_families import PAGES, decode, prefill, prompt
from tests.engine.test_models import truth, worst
from tests.engine.whole import Crew, Request, Rig
from tests.tiny import make_tiny

from baton.core.errors import ConfigError
from baton.core.memory.state import DType, Interval
from baton.engine.checkpoint import Checkpoint

FP8 = torch.float8_e4m3fn
BLOCK = (16, 8)  # neither divides every shape of the tiny model, nor a rank's part of it


def quantised(
    weight: torch.Tensor, block: tuple[int, int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Stored weight, its scales, and the float32 they mean: block by block, as the format is
    defined."""
    rows, columns = weight.shape
    stored, meant = torch.empty_like(weight, dtype=FP8), torch.empty_like(weight)
    scales = torch.empty(-(-rows // block[0]), -(-columns // block[1]))
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            here = (
                slice(i * block[0], (i + 1) * block[0]),
                slice(j * block[1], (j + 1) * block[1]),
            )
            scales[i, j] = weight[here].abs().max() / 448
            stored[here] = (weight[here] / scales[i, j]).to(FP8)
            meant[here] = stored[here].float() * scales[i, j]
    return stored, scales, meant


def rewrite(path: Path, block: tuple[int, int] = BLOCK) -> Path:
    """The checkpoint in fp8, as published ones are: matrices of layers, not norms, router,
    embedding or head. Returns a directory with the float32 that it means."""
    tensors = load_file(path / "model.safetensors")
    meant, stored = dict(tensors), dict(tensors)
    for name, weight in tensors.items():
        if "layers." in name and weight.dim() == 2 and "mlp.gate." not in name:
            stored[name], stored[f"{name}_scale_inv"], meant[name] = quantised(weight, block)
    twin = path.parent / "meant"
    twin.mkdir()
    for file in path.iterdir():
        (twin / file.name).write_bytes(file.read_bytes())
    save_file(meant, twin / "model.safetensors", metadata={"format": "pt"})
    save_file(stored, path / "model.safetensors", metadata={"format": "pt"})
    said = {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": list(block),
    }
    config = json.loads((path / "config.json").read_text()) | {"quantization_config": said}
    (path / "config.json").write_text(json.dumps(config))
    return twin


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Path]:
    """In fp8, and what it means in float32."""
    path = make_tiny(tmp_path / "model", "deepseek_v3")
    return path, rewrite(path)


def test_every_part_of_a_tensor_is_that_part_of_what_is_meant(tmp_path: Path) -> None:
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=(37, 29)).astype(np.float32))
    stored, scales, meant = quantised(weight, BLOCK)
    said = {"quant_method": "fp8", "weight_block_size": list(BLOCK)}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": said}))
    save_file({"x.weight": stored, "x.weight_scale_inv": scales}, tmp_path / "model.safetensors")
    checkpoint = Checkpoint.open(tmp_path)
    for rows in [None, *(Interval(a, b) for a, b in pairwise([0, 5, 16, 33, 37]))]:
        for columns in [None, *(Interval(a, b) for a, b in pairwise([0, 3, 8, 17, 29]))]:
            cut = [slice(None) if c is None else slice(c.start, c.end) for c in (rows, columns)]
            assert torch.equal(
                checkpoint.load("x.weight", torch.float32, rows=rows, columns=columns),
                meant[tuple(cut)],
            )


def test_a_model_in_fp8_is_the_model_it_means(model: tuple[Path, Path]) -> None:
    stored, meant = model
    rig = Rig(stored)
    request = Request(1, prompt(), PAGES)
    tokens = decode(rig, request, prefill(rig, request), 20)
    answers = [a[0] for a in rig.model.answers[-20:]]
    rig.close()
    _, logits = truth(meant, [*prompt(), *tokens])
    assert worst(torch.stack(answers), logits[len(prompt()) - 1 : -1]) <= 1e-4
    assert logits[len(prompt()) - 1 : -1].argmax(-1).tolist() == tokens


def test_ranks_dequantise_their_own_parts(model: tuple[Path, Path]) -> None:
    stored, meant = model
    crew, whole = Crew(stored, tp=4, pp=1), Rig(meant)
    request = Request(1, prompt(), PAGES)
    rows = [request.chunk(0, len(prompt()))]
    crew.run(rows)
    whole.run(rows)
    assert worst(crew.answers[-1][0], whole.model.answers[-1][0]) <= 1e-4
    crew.close()
    whole.close()


def test_transformers_reads_it_alike(tmp_path: Path) -> None:
    """With blocks that divide every shape, which `transformers` asks for."""
    path = make_tiny(tmp_path / "model", "deepseek_v3")
    meant = rewrite(path, (4, 4))
    _, logits = truth(meant, prompt())
    assert worst(truth(path, prompt())[1], logits) <= 1e-4


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ([16], "weight_block_size"),
        ("big", "weight_block_size"),
        ([32, 8], "weight_block_size [32, 8]"),
    ],
)
def test_scales_that_do_not_fit_are_refused(
    model: tuple[Path, Path], block: object, named: str
) -> None:
    stored, _ = model
    config = json.loads((stored / "config.json").read_text())
    config["quantization_config"]["weight_block_size"] = block
    (stored / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError) as caught:
        Rig(stored, dtype=DType.BF16)
    assert named in str(caught.value)


def test_a_scale_that_is_missing_is_named(model: tuple[Path, Path]) -> None:
    stored, _ = model
    tensors = load_file(stored / "model.safetensors")
    del tensors["model.layers.1.mlp.experts.3.up_proj.weight_scale_inv"]
    save_file(tensors, stored / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ConfigError, match=r"model\.layers\.1\.mlp\.experts\.3\.up_proj\.weight_scale_inv"
    ):
        Rig(stored)
