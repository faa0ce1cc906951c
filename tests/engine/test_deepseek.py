"""What DeepSeek's families decide besides their sums: experts by the published definition, 200
greedy tokens, and refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs
from safetensors.torch import load_file, save_file
from tests.engine.test_families import PAGES, decode, hand_over, prefill, prompt
from tests.engine.test_models import truth
from tests.engine.whole import B, Request, Rig, placement_of
from tests.tiny import make_tiny

from baton.core.errors import ConfigError
from baton.core.memory.state import DType
from baton.engine.attention.index import with_fp8_index
from baton.engine.checkpoint import Checkpoint
from baton.engine.comm import Alone
from baton.engine.models import FAMILIES
from baton.engine.models.base import KV, family_of
from baton.engine.models.routing import Routing, by_sigmoid, by_softmax
from baton.engine.ops import TorchOps


def routing(**changes: Any) -> Routing:
    return Routing(
        **(
            {"experts": 12, "chosen": 3, "groups": 4, "kept": 2, "normed": False, "factor": 2.5}
            | changes
        )
    )


def picked(scores: np.ndarray, r: Routing, counted: int) -> list[int]:
    """Experts of one row, one decision at a time: best groups by the sum of their best `counted`,
    then best experts in them."""
    each = r.experts // r.groups
    groups = [scores[g * each : (g + 1) * each] for g in range(r.groups)]
    ranked = sorted(range(r.groups), key=lambda g: -np.sort(groups[g])[::-1][:counted].sum())[
        : r.kept
    ]
    inside = [e for g in ranked for e in range(g * each, (g + 1) * each)]
    return sorted(inside, key=lambda e: -scores[e])[: r.chosen]


CASES = [
    routing(),
    routing(normed=True),
    routing(groups=1, kept=1),
    routing(groups=6, kept=5, chosen=7),
    routing(chosen=1),
]


@pytest.mark.parametrize("r", CASES)
def test_experts_by_softmax(r: Routing) -> None:
    logits = torch.from_numpy(
        np.random.default_rng(1).normal(size=(50, r.experts)).astype(np.float32)
    )
    weights, experts = by_softmax(logits, r)
    for row in range(50):
        scores = np.exp(logits[row].double().numpy())
        scores /= scores.sum()
        due = picked(scores, r, 1)
        assert experts[row].tolist() == due
        normed = r.normed and r.chosen > 1
        expected = scores[due] / scores[due].sum() if normed else scores[due] * r.factor
        assert np.allclose(weights[row].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize("r", CASES)
def test_experts_by_sigmoid(r: Routing) -> None:
    """The bias decides who is chosen, and is no part of the weights."""
    some = np.random.default_rng(2)
    logits = torch.from_numpy(some.normal(size=(50, r.experts)).astype(np.float32))
    bias = torch.from_numpy(some.normal(size=r.experts).astype(np.float32))
    weights, experts = by_sigmoid(logits, bias, r)
    for row in range(50):
        scores = 1 / (1 + np.exp(-logits[row].double().numpy()))
        due = picked(scores + bias.double().numpy(), r, 2)
        assert experts[row].tolist() == due
        expected = scores[due] / scores[due].sum() if r.normed else scores[due]
        assert np.allclose(weights[row].numpy(), expected * r.factor, rtol=1e-5)


@pytest.mark.parametrize("family", ["deepseek_v2", "deepseek_v3", "deepseek_v32"])
def test_two_hundred_greedy_tokens(tmp_path: Path, family: str) -> None:
    path = make_tiny(tmp_path, family)
    rig = Rig(path)
    request = Request(1, prompt(), np.random.default_rng(7).permutation(60)[:17].tolist())
    tokens = decode(rig, request, prefill(rig, request), 200)
    rig.close()
    _, logits = truth(path, [*prompt(), *tokens])
    assert logits[len(prompt()) - 1 : -1].argmax(-1).tolist() == tokens


def test_index_keys_in_fp8_are_handed_over(tmp_path: Path) -> None:
    """A context that is attended to whole gives the tokens of keys that are not rounded; a longer
    one the same on both sides."""
    path = make_tiny(tmp_path, "deepseek_v32")
    exact = placement_of(Checkpoint.open(path), DType.F32, 1)
    rounded = structs.replace(exact, table=with_fp8_index(exact.table))
    # layers, tokens, elements and a scale
    assert exact.block_bytes(KV) - rounded.block_bytes(KV) == 3 * B * (28 * (4 - 1) - 4)
    short = Request(1, prompt()[:10], PAGES)
    plain, one, other = Rig(path), Rig(path, placement=rounded), Rig(path, placement=rounded)
    first = plain.run([short.whole()])[0].drawn.token
    assert one.run([short.whole()])[0].drawn.token == first
    assert decode(one, short, first, 9) == decode(plain, short, first, 9)
    request, moved = Request(2, prompt(), PAGES), Request(2, prompt(), PAGES[::-1])
    first = prefill(one, request)
    used = -(-len(prompt()) // B)
    hand_over(one, other, PAGES[:used], PAGES[::-1][:used])
    assert decode(one, request, first, 40) == decode(other, moved, first, 40)
    for rig in (plain, one, other):
        rig.close()


def test_layers_for_more_tokens_are_left_alone(tmp_path: Path) -> None:
    """Published checkpoints carry them behind the last layer."""
    path = make_tiny(tmp_path, "deepseek_v3")
    tensors = load_file(path / "model.safetensors")
    more = {n.replace("layers.2.", "layers.3."): t for n, t in tensors.items() if "layers.2." in n}
    before = Rig(path)
    request = Request(1, prompt(), list(range(17)))
    expected = decode(before, request, prefill(before, request), 5)
    before.close()
    save_file(
        tensors | {n: torch.ones_like(t) for n, t in more.items()},
        path / "model.safetensors",
        metadata={"format": "pt"},
    )
    after = Rig(path)
    assert decode(after, request, prefill(after, request), 5) == expected
    after.close()


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "noaux_tc"),
        ("deepseek_v2", {"moe_layer_freq": 2}, "moe_layer_freq"),
        ("deepseek_v2", {"n_group": 3}, "8 experts cannot lie in 3 groups"),
        ("deepseek_v3", {"n_group": 8}, "at least 2 in each"),
        ("deepseek_v3", {"topk_group": 1}, "3 experts in 1 of 4 groups"),
        ("deepseek_v3", {"qk_rope_head_dim": 7}, "qk_rope_head_dim"),
        ("deepseek_v3", {"hidden_act": "gelu"}, "gelu"),
        ("deepseek_v32", {"index_head_dim": 4}, "index_head_dim"),
        ("deepseek_v32", {"q_lora_rank": None}, "q_lora_rank"),
        ("glm_moe_dsa", {"indexer_types": ["shared", "full", "full"]}, "'full' for the first"),
        ("glm_moe_dsa", {"indexer_types": ["full"]}, "3 layers"),
        ("glm_moe_dsa", {"mlp_layer_types": ["dense"]}, "mlp_layer_types"),
    ],
)
def test_a_setting_that_would_give_other_tokens(
    tmp_path: Path, family: str, changes: dict[str, Any], named: str
) -> None:
    config = dict(Checkpoint.open(make_tiny(tmp_path, family)).config) | changes
    with pytest.raises(ConfigError, match=named):
        family_of(config, FAMILIES).read(config)


@pytest.mark.parametrize(
    ("family", "overrides", "tp", "pp", "named"),
    [
        ("deepseek_v3", {}, 3, 1, r"4 attention heads .* widths that fit: \[1, 2, 4\]"),
        (
            "deepseek_v3",
            {"moe_intermediate_size": 42},
            4,
            1,
            r"42 columns of the MLP .* " r"widths that fit: \[1, 2\]",
        ),
        (
            "deepseek_v3",
            {"n_routed_experts": 6, "n_group": 3},
            4,
            1,
            r"6 experts .* widths " r"that fit: \[1, 2\]",
        ),
        (
            "glm_moe_dsa",
            {"num_hidden_layers": 4, "indexer_types": ["full"] + ["shared"] * 3},
            1,
            2,
            "layer 2 attends",
        ),
    ],
)
def test_a_layout_that_does_not_fit_is_refused(
    tmp_path: Path, family: str, overrides: dict[str, Any], tp: int, pp: int, named: str
) -> None:
    checkpoint = Checkpoint.open(make_tiny(tmp_path, family, **overrides))
    placement = placement_of(checkpoint, DType.F32, 1, tp=tp, pp=pp, rank=tp * pp - 1)
    with pytest.raises(ConfigError, match=named):
        family_of(checkpoint.config, FAMILIES).build(
            checkpoint, placement, DType.F32, TorchOps(), Alone()
        )


def test_which_layers_have_an_index(tmp_path: Path) -> None:
    """Published GLM configs say it by a list, by letters or by a rhythm."""
    config = dict(
        Checkpoint.open(make_tiny(tmp_path, "glm_moe_dsa", num_hidden_layers=7)).config
    ) | {"indexer_types": None}
    family = family_of(config, FAMILIES)

    def layers(**changes: Any) -> tuple[int, ...]:
        table = family.table(config | changes, block_tokens=16, dtype=DType.BF16)
        (keys,) = (s for s in table.specs if s.name == "index.k")
        return keys.layers

    assert layers() == tuple(range(7))
    assert layers(
        indexer_types=["full", "shared", "shared", "full", "full", "shared", "shared"]
    ) == (0, 3, 4)
    assert layers(index_topk_pattern="FSSFFSS") == (0, 3, 4)
    assert layers(index_topk_freq=3) == (0, 1, 4)
    assert layers(index_topk_freq=3, index_skip_topk_offset=1) == (0, 3, 6)
