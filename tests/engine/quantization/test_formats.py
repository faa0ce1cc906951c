"""Quantised checkpoints: what is loaded is bit for bit what the published formulas mean, in every
part of a matrix and on every rank."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.quantization.packing import Pack, awq, gptq, packed, rewrite, scaled
from tests.engine.test_families import PAGES, prompt
from tests.engine.whole import Crew, Request
from tests.tiny import make_tiny

from baton.core.errors import ConfigError
from baton.core.memory.state import Interval
from baton.engine.checkpoint import Checkpoint
from baton.engine.models import FAMILIES
from baton.engine.models.base import family_of

SHAPE = (72, 96)
Said = dict[str, Any]


def compressed(form: str, bits: int = 8, **more: object) -> Said:
    """A quantization_config as llm-compressor writes it."""
    weights = {"num_bits": bits, "type": "int", "strategy": "channel", **more}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


def gptq_said(bits: int = 4, group: int = 32, **more: object) -> Said:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, **more}


AWQ: Said = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
BLOCKS = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [16, 8]}
FORMATS: dict[str, tuple[Pack, Said]] = {
    # as DeepSeek-V3 and Qwen3-FP8; neither block divides every shape
    "fp8 blocks": (
        scaled("e4m3", (16, 10), "_scale_inv"),
        {**BLOCKS, "weight_block_size": [16, 10]},
    ),
    # as AutoFP8 wrote it
    "fp8 tensor": (
        scaled("e4m3", (0, 0), flat=True),
        {"quant_method": "fp8", "activation_scheme": "static"},
    ),
    # as Ministral 3
    "fp8 tensor, inverse": (
        scaled("e4m3", (0, 0), "_scale_inv", flat=True),
        {"quant_method": "fp8", "activation_scheme": "static", "weight_block_size": None},
    ),
    # as Llama-3.1-405B-FP8
    "fbgemm": (scaled("e4m3", (1, 0)), {"quant_method": "fbgemm_fp8"}),
    # as Qwen3-32B-FP8-Static-PerTensor
    "modelopt": (
        scaled("e4m3", (0, 0), flat=True),
        {"quant_algo": "FP8", "kv_cache_scheme": "FP8", "producer": {"name": "modelopt"}},
    ),
    "compressed fp8 channel": (scaled("e4m3", (1, 0)), compressed("float-quantized", type="float")),
    "compressed fp8 tensor": (scaled("e4m3", (0, 0)), compressed("float-quantized", type="float")),
    "compressed fp8 blocks": (
        scaled("e4m3", (32, 32)),
        compressed("float-quantized", type="float", strategy="block", block_structure=[32, 32]),
    ),
    "compressed int8": (scaled("int8", (1, 0)), compressed("int-quantized")),
    "compressed naive": (scaled("int8", (0, 0)), compressed("naive-quantized")),
    "awq": (awq(), AWQ),
    "awq, one group": (awq(-1), {"quant_method": "awq", "w_bit": 4, "q_group_size": -1}),
    "gptq": (gptq(), gptq_said()),
    "gptq 8 bits": (gptq(8), gptq_said(8)),
    "gptq asymmetric": (gptq(symmetric=False), gptq_said(sym=False)),
    "gptq 8 bits asymmetric": (gptq(8, symmetric=False), gptq_said(8, sym=False)),
    "gptq desc_act": (gptq(shuffled=True), gptq_said(desc_act=True)),
    "gptq desc_act 8 bits": (gptq(8, shuffled=True, group=16), gptq_said(8, 16, desc_act=True)),
    "gptq v2": (
        gptq(version=2, symmetric=False),
        gptq_said(checkpoint_format="gptq_v2", sym=False),
    ),
    "gptq without g_idx": (gptq(order=False), gptq_said()),
    "packed": (packed(), compressed("pack-quantized", 4, strategy="group", group_size=32)),
    "packed 8 bits": (packed(8), compressed("pack-quantized", 8)),
    "packed, one group": (packed(group=-1), compressed("pack-quantized", 4)),
    "packed asymmetric": (packed(symmetric=False), compressed("pack-quantized", 4)),
    "packed asymmetric, bytes": (
        packed(symmetric=False, zeros_as="bytes"),
        compressed("pack-quantized", 4),
    ),
    "packed, small groups": (packed(group=16), compressed("pack-quantized", 4)),
    "packed actorder": (packed(shuffled=True), compressed("pack-quantized", 4)),
}


def matrix() -> np.ndarray:
    """Some rows are positive throughout, so that asymmetric zeros are 0 in them."""
    found = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    found[::3] = np.abs(found[::3])
    return found


def write(path: Path, parts: dict[str, torch.Tensor], said: Said) -> Path:
    (path / "config.json").write_text(json.dumps({"quantization_config": said}))
    save_file({f"x.{name}": part for name, part in parts.items()}, path / "model.safetensors")
    return path


@pytest.mark.parametrize("name", FORMATS)
def test_every_part_of_a_matrix_is_that_part_of_what_is_meant(tmp_path: Path, name: str) -> None:
    pack, said = FORMATS[name]
    parts, numbers = pack(matrix())
    meant = torch.from_numpy(numbers)
    checkpoint = Checkpoint.open(write(tmp_path, parts, said))
    assert list(checkpoint.tensors) == ["x.weight"]
    assert checkpoint.tensors["x.weight"].shape == SHAPE
    for rows in [None, *(Interval(a, b) for a, b in pairwise([0, 5, 16, 33, 72]))]:
        for columns in [None, *(Interval(a, b) for a, b in pairwise([0, 3, 8, 41, 96]))]:
            cut = [slice(None) if c is None else slice(c.start, c.end) for c in (rows, columns)]
            found = checkpoint.load("x.weight", torch.float32, rows=rows, columns=columns)
            assert torch.equal(found, meant[tuple(cut)])
            assert found.is_contiguous()
    half = checkpoint.load("x.weight", torch.bfloat16)
    assert torch.equal(half, meant.to(torch.bfloat16))


MODELS = [
    ("awq", "qwen2", {}),
    ("gptq desc_act", "llama", {"attention_bias": True, "mlp_bias": True}),
    ("packed asymmetric", "phi3", {}),
    ("fbgemm", "mixtral", {}),
    ("gptq 8 bits", "qwen3_moe", {}),
    ("packed, small groups", "deepseek_v3", {"q_lora_rank": 32, "moe_intermediate_size": 64}),
    ("modelopt", "gemma3", {}),
    ("fp8 blocks", "qwen3_next", {}),
]


@pytest.mark.parametrize(("name", "family", "changes"), MODELS)
def test_each_rank_dequantises_its_own_part(
    tmp_path: Path, name: str, family: str, changes: dict[str, Any]
) -> None:
    """Logits are those of a checkpoint with the numbers that are meant, bit by bit, in a layout that
    cuts words and groups."""
    path = make_tiny(tmp_path / "model", family, **changes)
    pack, said = FORMATS[name]
    rewrite(path, pack, said, tmp_path / "meant")
    answers = []
    for directory in (path, tmp_path / "meant"):
        crew = Crew(directory, tp=4, pp=1)
        crew.run([Request(1, prompt(), PAGES).chunk(0, len(prompt()))])
        answers.append(crew.answers[-1][0])
        crew.close()
    assert torch.equal(*answers)
    assert answers[0].isfinite().all()


def test_weights_in_other_formats_have_other_identities(tmp_path: Path) -> None:
    """Equal bytes mean different weights in the two versions of GPTQ."""
    parts, _ = gptq(symmetric=False)(matrix())
    found = []
    for said in (gptq_said(), gptq_said(checkpoint_format="gptq_v2")):
        found.append(Checkpoint.open(write(tmp_path, parts, said)).identity("bfloat16"))
    assert len(set(found)) == 2


# ---- refusals -----------------------------------------------------------------------------------

UNSERVED: dict[str, tuple[Said | str, str]] = {
    "awq 3 bits": ({**AWQ, "bits": 3}, "awq of 3 bits"),
    "awq gemv": ({**AWQ, "version": "GEMV"}, "'gemv'"),
    "awq group": ({**AWQ, "group_size": 0}, "group_size 0"),
    "gptq 3 bits": (gptq_said(3), "gptq of 3 bits"),
    "gptq marlin": (gptq_said(is_marlin_format=True), "'marlin'"),
    "gptq bitblas": (gptq_said(checkpoint_format="bitblas"), "'bitblas'"),
    "gptq words": (gptq_said(pack_dtype="int16"), "int16"),
    "gptq group": (gptq_said(group=None), "group_size None"),
    "nvfp4": (compressed("nvfp4-pack-quantized", 4), "nvfp4-pack-quantized"),
    "packed 3 bits": (compressed("pack-quantized", 3), "3 bits"),
    "sparse": (
        {**compressed("float-quantized"), "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparse",
    ),
    "rotated": (
        {**compressed("float-quantized"), "transform_config": {"config_groups": {"u": {}}}},
        "transform_config",
    ),
    "no groups": ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, "config_gro"),
    "modelopt": ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "modelopt (NVFP4)"),
    "a word": ("awq", "awq"),
    "unknown": ({"quant_method": "quip"}, "quip"),
    "no method": ({"bits": 4}, "an unknown method"),
}


@pytest.mark.parametrize("case", UNSERVED)
def test_what_is_not_served_is_named_with_what_is(tmp_path: Path, case: str) -> None:
    said, named = UNSERVED[case]
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": said}))
    with pytest.raises(ConfigError) as caught:
        Checkpoint.open(tmp_path)
    assert named in str(caught.value)
    for served in ("gptq (4 and 8 bits)", "awq", "compressed-tensors", "fp8", "GGUF"):
        assert served in str(caught.value)


DAMAGED: dict[str, tuple[str, str, torch.Tensor | None]] = {
    "gptq zeros": ("gptq", "qzeros", None),
    "awq scales": ("awq", "scales", None),
    "packed scales": ("packed", "weight_scale", None),
    "fp8 scales": ("fp8 blocks", "weight_scale_inv", None),
    "awq shape": ("awq", "qzeros", torch.zeros(5, 9, dtype=torch.int32)),
    "gptq shape": ("gptq", "scales", torch.zeros(2, 72)),
    "gptq order": ("gptq", "g_idx", torch.zeros(95, dtype=torch.int32)),
    "gptq dtype": ("gptq", "qweight", torch.zeros(12, 72, dtype=torch.int64)),
    "packed groups": ("packed", "weight_scale", torch.zeros(72, 5)),
    "packed zeros": (
        "packed asymmetric",
        "weight_zero_point",
        torch.zeros(8, 3, dtype=torch.int32),
    ),
    "fp8 shape": ("fp8 blocks", "weight_scale_inv", torch.zeros(4, 10)),
    "int8 shape": ("compressed int8", "weight_scale", torch.zeros(1, 96)),
    "int8 zeros": ("compressed int8", "weight_zero_point", torch.zeros(72, 1, dtype=torch.int8)),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_part_that_is_missing_or_does_not_fit_is_named(tmp_path: Path, case: str) -> None:
    name, end, instead = DAMAGED[case]
    pack, said = FORMATS[name]
    parts, _ = pack(matrix())
    parts.pop(end, None)
    if instead is not None:
        parts[end] = instead
    with pytest.raises(ConfigError) as caught:
        Checkpoint.open(write(tmp_path, parts, said))
    assert f"x.{end}" in str(caught.value) or "x.weight" in str(caught.value)


def test_a_group_that_is_not_there_is_named(tmp_path: Path) -> None:
    parts, _ = gptq()(matrix())
    parts["g_idx"][-1] = 3
    checkpoint = Checkpoint.open(write(tmp_path, parts, gptq_said()))
    with pytest.raises(ConfigError, match=r"x\.g_idx"):
        checkpoint.load("x.weight", torch.float32)


def test_a_matrix_of_another_size_than_the_config_asks_for_is_named(tmp_path: Path) -> None:
    path = make_tiny(tmp_path / "model")
    rewrite(path, awq(), AWQ, tmp_path / "meant")
    file = path / "model.safetensors"
    tensors, at = load_file(file), "model.layers.1.mlp.down_proj."
    for end in ("qweight", "qzeros", "scales"):
        tensors[at + end] = tensors[at + end][:, : 4 if end != "scales" else 32].contiguous()
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"down_proj\.weight' has shape \[32, 128\]"):
        Crew(path, tp=1, pp=1)


def test_plain_tensors_beside_quantised_ones_are_read_as_they_are(tmp_path: Path) -> None:
    """Routers, heads and what `modules_to_not_convert` names."""
    path = make_tiny(tmp_path / "model", tie_word_embeddings=False)
    rewrite(path, gptq(), gptq_said(), tmp_path / "meant")
    checkpoint, plain = Checkpoint.open(path), load_file(tmp_path / "meant" / "model.safetensors")
    family_of(checkpoint.config, FAMILIES)
    for name in ("lm_head.weight", "model.norm.weight", "model.embed_tokens.weight"):
        assert not checkpoint.tensors[name].quantised
        assert torch.equal(checkpoint.load(name, torch.float32), plain[name])
