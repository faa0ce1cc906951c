"""Experts stored in four bits: the numbers, the logits and the refusal, against `transformers`."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.test_models import TOLERANCE, Driver, prompt, worst
from tests.tiny import make_tiny

from baton.core.errors import ConfigError
from baton.core.memory.state import DType
from baton.engine.attention.registry import CPU
from baton.engine.cpu_ops import CpuOps
from baton.engine.kernels.team import Team
from baton.engine.quantization.mxfp4 import GROUP, unpack

PACKED = ("gate_up_proj", "down_proj")


def pack(path: Path) -> Path:
    """Replace the experts of a checkpoint by random ones in MXFP4."""
    file, chance = path / "model.safetensors", torch.Generator().manual_seed(3)
    tensors = load_file(file)
    for name in [n for n in tensors if n.endswith(PACKED)]:
        experts, ins, outs = tensors.pop(name).shape
        shape = (experts, outs, ins // GROUP)
        tensors[f"{name}_blocks"] = torch.randint(
            0, 256, (*shape, GROUP // 2), generator=chance, dtype=torch.uint8
        )
        # 1/32 to 1/8
        tensors[f"{name}_scales"] = torch.randint(
            122, 125, shape, generator=chance, dtype=torch.uint8
        )
    save_file(tensors, file, metadata={"format": "pt"})
    config = json.loads((path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_every_code_and_exponent_is_unpacked_as_by_transformers() -> None:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    codes = torch.arange(256, dtype=torch.uint8).view(1, 16, 16)
    for scales in (torch.arange(111, 127), torch.arange(127, 143)):
        expected = convert_moe_packed_tensors(
            codes[None], scales.to(torch.uint8).view(1, 1, 16), dtype=torch.float32
        )
        assert torch.equal(unpack(codes, scales.to(torch.uint8).view(1, 16)), expected[0].T)


def test_logits_of_packed_experts_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, Mxfp4Config

    path = pack(make_tiny(tmp_path, "gpt_oss"))
    tokens = prompt(300)
    unpacking = Mxfp4Config(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", quantization_config=unpacking
    )
    with torch.inference_mode():
        expected = model.to(torch.float32).eval()(torch.tensor([tokens]), use_cache=False).logits[0]
    driver = Driver(path, CpuOps(DType.F32, Team(1)), CPU)
    assert worst(driver.run(tokens, [len(tokens)])[1], expected) <= TOLERANCE
    driver.close()


def test_blocks_that_do_not_fit_the_config_are_refused(tmp_path: Path) -> None:
    path = pack(make_tiny(tmp_path, "gpt_oss"))
    config = json.loads((path / "config.json").read_text()) | {"intermediate_size": 48}
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=r"experts\.gate_up_proj' has shape \[8, 64, 64\]"):
        Driver(path, CpuOps(DType.F32, Team(1)), CPU)


def test_scales_that_are_missing_are_named(tmp_path: Path) -> None:
    file = pack(make_tiny(tmp_path, "gpt_oss")) / "model.safetensors"
    tensors = load_file(file)
    del tensors["model.layers.1.mlp.experts.down_proj_scales"]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"layers\.1\.mlp\.experts\.down_proj_scales"):
        Driver(tmp_path, CpuOps(DType.F32, Team(1)), CPU)
