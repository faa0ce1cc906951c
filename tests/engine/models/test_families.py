"""Our model code against transformers, layer for layer, in float32; and what is refused."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.rig import MemoryPool
from tests.tiny import make_tiny

from baton.core.errors import ConfigError
from baton.core.state import DType, Placement
from baton.engine.attention.interface import Segment
from baton.engine.attention.reference import ReferenceAttention
from baton.engine.checkpoint import Checkpoint
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.engine.models.base import KV, family_of
from baton.engine.ops import CpuOps, Ops, TorchOps

LLAMA3 = {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}  # fmt: skip
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama untied, biased, one kv head": (
        "llama", {"tie_word_embeddings": False, "attention_bias": True, "num_key_value_heads": 1}),
    "llama3 rope": ("llama", {"rope_parameters": LLAMA3, "max_position_embeddings": 512}),
    "linear rope": ("llama", {"rope_parameters": LINEAR}),
    "odd widths": ("llama", {"hidden_size": 72, "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 24,
                             "intermediate_size": 100}),
    "qwen3": ("qwen3", {}),
    "qwen3 with wide heads": ("qwen3", {"head_dim": 32, "num_attention_heads": 6, "num_key_value_heads": 2}),
}  # fmt: skip
TOKENS = [(7 * i * i + 3 * i + 11) % 300 for i in range(53)]
CHUNKS = {"whole": [53], "odd chunks": [1, 17, 5, 16, 14], "token by token": [1] * 53}


class Ours:
    """Our model, one sequence, with what each layer made."""

    def __init__(self, path: Path, ops: Ops) -> None:
        checkpoint = Checkpoint.open(path)
        family = family_of(checkpoint.config, FAMILIES)
        placement = Placement(family.table(checkpoint.config, block_tokens=16, dtype=DType.F32), 1, 1, 0, 0, 1)
        self._model = family.build(checkpoint, placement, DType.F32, ops)
        self._pool = MemoryPool(7 * placement.page_bytes(KV))
        self._attention = ReferenceAttention(self._pool, placement)
        self._layers = len(placement.table.specs[0].layers)

    def run(self, chunks: list[int]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Attention outputs of every layer [positions, hidden of heads] and logits [positions, vocabulary]."""
        attended: list[list[torch.Tensor]] = [[] for _ in range(self._layers)]
        logits, start = [], 0
        for count in chunks:
            at = torch.arange(start, start + count)
            segment = Segment(first=0, count=count, start=start, blocks=torch.tensor([3, 0, 5, 1, 6, 2, 4]).int().numpy())
            slots = torch.from_numpy(segment.blocks)[at // 16].long() * 16 + at % 16

            def attend(layer: int, q: Any, k: Any, v: Any, segment: Segment = segment, slots: Any = slots) -> torch.Tensor:
                out = torch.empty(q.shape)
                self._attention.write(layer=layer, k=k, v=v, slots=slots)
                self._attention.attend(layer=layer, q=q, k=k, v=v, segments=[segment], out=out)
                attended[layer].append(out.flatten(1).clone())
                return out

            logits.append(self._model.logits(self._model.forward(torch.tensor(TOKENS)[at], at, attend)))
            start += count
        return [torch.cat(layer) for layer in attended], torch.cat(logits)


class Theirs:
    """transformers' model of the same checkpoint, and the inputs of its output projections."""

    def __init__(self, path: Path) -> None:
        from transformers import AutoModelForCausalLM

        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
        self.attended: list[torch.Tensor] = []
        for layer in model.model.layers:
            layer.self_attn.o_proj.register_forward_pre_hook(lambda _module, args: self.attended.append(args[0][0]))
        with torch.inference_mode():
            self.logits = model(torch.tensor([TOKENS])).logits[0]


@pytest.fixture(scope="module", params=CASES, ids=lambda name: name.replace(" ", "-"))
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Theirs]]:
    family, overrides = CASES[request.param]
    path = make_tiny(tmp_path_factory.mktemp("tiny") / "model", family, **overrides)
    yield path, Theirs(path)


@pytest.mark.parametrize("ops", ["plain", "compiled"])
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=[name.replace(" ", "-") for name in CHUNKS])
def test_every_layer_is_that_of_transformers(checkpoint: tuple[Path, Theirs], chunks: list[int], ops: str) -> None:
    path, theirs = checkpoint
    with torch.inference_mode():
        attended, logits = Ours(path, TorchOps() if ops == "plain" else CpuOps(DType.F32, Team(1))).run(chunks)
    for ours, expected in zip((*attended, logits), (*theirs.attended, theirs.logits), strict=True):
        assert (ours - expected).abs().max() <= 1e-4 * expected.abs().max()


def test_an_unknown_architecture_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"FancyForCausalLM.*LlamaForCausalLM.*Qwen3ForCausalLM"):
        family_of({"architectures": ["FancyForCausalLM"]}, FAMILIES)


def test_the_table_follows_the_config() -> None:
    config = {"architectures": ["Qwen3ForCausalLM"], "num_hidden_layers": 5, "num_attention_heads": 8,
              "num_key_value_heads": 2, "hidden_size": 64, "head_dim": 24}  # fmt: skip
    table = family_of(config, FAMILIES).table(config, block_tokens=16, dtype=DType.BF16)
    (spec,) = table.specs
    assert (spec.name, spec.group, spec.parts) == ("kv", "full", ("k", "v"))
    assert (spec.heads, spec.row, spec.layers) == (2, 24, (0, 1, 2, 3, 4))


@pytest.mark.parametrize(
    ("overrides", "named"),
    [({"hidden_act": "gelu"}, "gelu"), ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 2.0}}, "yarn")],
)
def test_what_is_not_supported_is_refused_by_name(tmp_path: Path, overrides: dict[str, Any], named: str) -> None:
    path = make_tiny(tmp_path / "model", "llama", **overrides)
    with pytest.raises(ConfigError, match=named):
        Ours(path, TorchOps())
