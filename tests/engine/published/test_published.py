"""Every architecture of `baton models list` loads from what is published, and computes what transformers
computes on the same tensors: published configs with small sizes, published names, random numbers."""

import json
import re
from collections.abc import Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.published.releases import RELEASES, Release
from tests.engine.quantization.packing import rewrite
from tests.engine.quantization.test_formats import FORMATS
from tests.engine.quantization.test_mxfp4 import pack as pack_mxfp4
from tests.engine.test_families import PAGES
from tests.engine.test_models import TOLERANCE, Driver, prompt, worst
from tests.engine.whole import Crew, Request
from tests.tiny import spread_vectors

from baton.core.memory.state import DType
from baton.engine.attention.registry import CPU
from baton.engine.cpu_ops import CpuOps
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.engine.models.base import family_of
from baton.engine.text_part import text_config

LONGEST = 4096  # of a request; within the short context of longrope
# Architectures of text models that somebody took out of a multimodal one; test_models.py has them.
DERIVED = {"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"}


def merged(config: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """The config with other sizes; those of the text model and of the vision tower are in it."""
    parts = {key for key in small if key.endswith("_config")}
    no_pad = {"pad_token_id": None}  # transformers' default is none of the small vocabulary
    return {
        **config,
        **no_pad,
        **{key: value for key, value in small.items() if key not in parts},
        **{key: {**config[key], **small[key], **no_pad} for key in parts},
    }


def names(templates: Iterator[str] | tuple[str, ...], experts: int = 0) -> Iterator[str]:
    """Write out {e} and (a|b)."""
    for template in templates:
        one = [template.replace("{e}", str(e)) for e in range(experts)]
        for name in one if "{e}" in template else [template]:
            pieces = re.split(r"\((.*?)\)", name)
            choices = [p.split("|") if i % 2 else [p] for i, p in enumerate(pieces)]
            yield from ("".join(choice) for choice in product(*choices))


def published(release: Release, config: Mapping[str, Any]) -> set[str]:
    """The names of all tensors that are needed, as they are published unquantised."""
    text = config.get("text_config", config)
    counts = ("n_routed_experts", "num_experts", "num_local_experts")
    experts = next((text[key] for key in counts if key in text), 0)
    found = set(names(tuple(release.others)))
    for index, kind in enumerate(release.kinds):
        prefix = release.prefix.replace("{i}", str(index))
        found |= set(names((prefix + name for name in release.layers[kind]), experts))
    return found


def config_of(model_type: Any, config: Mapping[str, Any]) -> Any:
    """transformers' form of a config; a model_type of its own (kimi_k2) is unknown there."""
    kind = model_type.config_class
    return kind.from_dict({**config, "model_type": kind.model_type})


def write(release: Release, path: Path) -> None:
    """Write the checkpoint. Names that transformers has by itself, or writes, are
    compared with the published ones."""
    import transformers

    config = merged(release.config, release.small)
    model_type = getattr(transformers, config["architectures"][0])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = model_type(config_of(model_type, config)).to(torch.float32).eval()
        spread_vectors(made)
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.dim() > 1:
                    parameter.copy_(torch.randn(parameter.shape) * 0.2)
    made.save_pretrained(path)
    saved = load_file(path / "model.safetensors")
    own = {name: tensor.contiguous() for name, tensor in made.state_dict().items()}
    if "language_model.lm_head.weight" in release.others:
        saved["language_model.lm_head.weight"] = torch.randn(320, 64) * 0.2
    due = published(release, config)
    if release.quantised == "mxfp4":
        due = {n.removesuffix("_blocks") for n in due if not n.endswith("_scales")}
    assert sorted(due - set(saved) - set(own)) == []
    extra = {name: torch.ones(2) for name in names(tuple(release.unused))}
    rest = {
        name: tensor for name, tensor in saved.items() if name.startswith(release.skipped or ("-",))
    }
    tensors = {name: saved[name] if name in saved else own[name] for name in due}
    save_file(
        {name: tensor.clone() for name, tensor in (tensors | rest | extra).items()},
        path / "model.safetensors",
        metadata={"format": "pt"},
    )
    (path / "config.json").write_text(json.dumps(config))


def quantise(release: Release, path: Path) -> Path:
    """Quantise the checkpoint as its release is; returns a directory with what transformers reads."""
    match release.quantised:
        case None:
            return path
        case "mxfp4":
            return pack_mxfp4(path)
        case name:
            rewrite(path, *FORMATS[name], path.parent / "meant")
            return path.parent / "meant"


def truth(path: Path, tokens: list[int]) -> torch.Tensor:
    """Logits of transformers' implementation of the published class."""
    import transformers

    config = json.loads((path / "config.json").read_text())
    unpack = {"quantization_config": transformers.Mxfp4Config(dequantize=True)}
    model_type = getattr(transformers, config["architectures"][0])
    model, report = model_type.from_pretrained(
        path,
        config=config_of(model_type, config),
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
        **(unpack if "quantization_config" in config else {}),
    )
    assert not report["missing_keys"], report["missing_keys"]
    with torch.inference_mode():
        logits: torch.Tensor = (
            model.to(torch.float32).eval()(torch.tensor([tokens]), use_cache=False).logits[0]
        )
    return logits


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_loads_and_gives_the_logits_of_transformers(tmp_path: Path, name: str) -> None:
    release, path = RELEASES[name], tmp_path / "model"
    write(release, path)
    expected = truth(quantise(release, path), prompt(300))
    driver = Driver(path, CpuOps(DType.F32, Team(1)), CPU, longest=LONGEST)
    found = driver.run(prompt(300), [len(expected)])[1]
    driver.close()
    assert worst(found, expected) <= TOLERANCE


@pytest.mark.parametrize(
    "name", ["Qwen/Qwen3.5-35B-A3B", "openai/gpt-oss-20b", "google/gemma-3-27b-it"]
)
def test_ranks_read_their_own_parts(tmp_path: Path, name: str) -> None:
    """Of forms that only published checkpoints have: stacked experts, MXFP4, a text model inside."""
    release, path = RELEASES[name], tmp_path / "model"
    write(release, path)
    expected = truth(quantise(release, path), prompt(300))
    crew = Crew(path, tp=2, pp=1)
    crew.run([Request(1, prompt(300), PAGES).chunk(0, len(expected))])
    assert worst(crew.answers[-1][0], expected[-1]) <= TOLERANCE
    crew.close()


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_is_read_at_its_own_sizes(name: str) -> None:
    """The published config itself, without weights."""
    config = text_config(RELEASES[name].config)
    family = family_of(config, FAMILIES)
    assert family.longest(config)[0] >= 4096
    if "longrope" not in json.dumps(config):  # whose factors are left out here
        assert family.table(config, block_tokens=16, dtype=DType.BF16).specs


def test_every_architecture_has_a_release() -> None:
    listed = {name for family in FAMILIES for name in family.architectures}
    assert listed - DERIVED == {r.config["architectures"][0] for r in RELEASES.values()}
