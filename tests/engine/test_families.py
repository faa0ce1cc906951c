"""Every family through the engine as a worker builds it: greedy tokens, the handover of its pages,
and 16-bit weights."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.engine.test_models import LONGROPE, MSCALE, UPPER, WINDOW, truth, worst
from tests.engine.whole import Request, Rig
from tests.tiny import make_tiny

from baton.core.memory.state import DType
from baton.engine.models.base import DTYPES

PROMPT, ANSWER = 61, 200  # the windows are much shorter
MOVED = 50  # tokens of the answer that are generated after a handover too
PAGES = np.random.default_rng(7).permutation(64)[: -(-(PROMPT + ANSWER) // 16)].tolist()
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", WINDOW),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "smollm3 window": (
        "smollm3",
        {"num_hidden_layers": 4, "no_rope_layer_interval": 2, "use_sliding_window": True, **WINDOW},
    ),
    "qwen2": ("qwen2", {}),
    "qwen2 window": ("qwen2", UPPER),
    "qwen3": ("qwen3", {}),
    "qwen3 window": ("qwen3", UPPER),
    "phi3": ("phi3", WINDOW),
    "gpt_oss": ("gpt_oss", {}),
    "gemma3": ("gemma3", {}),
    "mixtral": ("mixtral", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "deepseek_v2": ("deepseek_v2", {"topk_method": "greedy", "q_lora_rank": None}),
    "deepseek_v3": ("deepseek_v3", {"rope_parameters": MSCALE}),
    "deepseek_v32": ("deepseek_v32", {}),
    "glm_moe_dsa": ("glm_moe_dsa", {}),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_5": ("qwen3_5", {"num_hidden_layers": 5}),
    "qwen3_5_moe": ("qwen3_5_moe", {}),
    "phi3 long": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
}


def prompt() -> list[int]:
    return np.random.default_rng(4).integers(0, 300, PROMPT).tolist()


def prefill(rig: Rig, request: Request) -> int:
    """The prompt in chunks that end inside blocks; returns the first token."""
    borders = [0, 7, 24, 25, 48, PROMPT]
    for start, end in pairwise(borders):
        (done,) = rig.run([request.chunk(start, end, draw=end == PROMPT)])
    assert done.drawn is not None
    return done.drawn.token


def decode(rig: Rig, request: Request, first: int, count: int) -> list[int]:
    """`count` tokens, the first among them."""
    tokens = [first]
    while len(tokens) < count:
        (done,) = rig.run([request.next(tokens[-1], len(tokens))])
        assert done.drawn is not None
        tokens.append(done.drawn.token)
    return tokens


def hand_over(source: Rig, target: Rig, theirs: Sequence[int], ours: Sequence[int]) -> None:
    for group, pool in source.pools.items():
        size = source.placement.block_bytes(group)
        for a, b in zip(theirs, ours, strict=True):
            target.pools[group].array[b * size : (b + 1) * size] = pool.array[
                a * size : (a + 1) * size
            ]


@pytest.mark.parametrize("case", FAMILIES)
def test_greedy_tokens_are_those_of_transformers_unified_and_split(
    tmp_path: Path, case: str
) -> None:
    """200 of them. That each is the reference's choice after those before it makes the whole the
    reference's answer."""
    family, overrides = FAMILIES[case]
    path = make_tiny(tmp_path, family, **overrides)
    unified, decoder = Rig(path), Rig(path)
    request = Request(1, prompt(), PAGES)
    first = prefill(unified, request)
    moved = Request(1, prompt(), PAGES[::-1])
    used = -(-PROMPT // 16)
    hand_over(unified, decoder, PAGES[:used], PAGES[::-1][:used])
    tokens = decode(unified, request, first, ANSWER)
    assert decode(decoder, moved, first, MOVED) == tokens[:MOVED]
    unified.close()
    decoder.close()
    _, logits = truth(path, [*prompt(), *tokens])
    # each one follows from those before it
    assert logits[PROMPT - 1 : -1].argmax(-1).tolist() == tokens


@pytest.mark.parametrize("served", [DType.BF16, DType.F16])
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "family",
    ["llama", "mistral", "smollm3", "qwen2", "qwen3", "phi3", "deepseek_v2", "deepseek_v3"],
)
def test_sixteen_bit_weights_are_served(
    tmp_path: Path, family: str, stored: torch.dtype, served: DType
) -> None:
    """Against transformers in float32 on the stored weights: what is left is rounding, far from a
    wrong weight's error."""
    path = make_tiny(tmp_path, family, initializer_range=0.1)
    file = path / "model.safetensors"
    save_file(
        {name: tensor.to(stored) for name, tensor in load_file(file).items()},
        file,
        metadata={"format": "pt"},
    )
    rig = Rig(path, dtype=served)
    prefill(rig, Request(1, prompt(), PAGES))
    found = rig.model.answers[-1][0]
    rig.close()
    _, logits = truth(path, prompt())
    assert worst(found, logits[-1]) <= 0.06


HYBRIDS = {  # a row uses all experts: a rounding may not choose others
    "qwen3_5": {},
    "qwen3_next": {"num_experts_per_tok": 8},
    "qwen3_5_moe": {"num_experts_per_tok": 8},
}


@pytest.mark.parametrize("served", [DType.BF16, DType.F16])
@pytest.mark.parametrize("family", HYBRIDS)
def test_recurrent_state_in_sixteen_bits_follows_transformers_in_the_same_dtype(
    tmp_path: Path, family: str, served: DType
) -> None:
    """The prompt in chunks and 40 steps: logits within 6 % of the largest. Matrices are float32 on
    both sides."""
    path = make_tiny(tmp_path, family, initializer_range=0.1, **HYBRIDS[family])
    rig, request = Rig(path, dtype=served), Request(1, prompt(), PAGES)
    tokens = decode(rig, request, prefill(rig, request), 41)
    found = torch.stack([answer[0] for answer in rig.model.answers[-41:]])
    rig.close()
    _, logits = truth(path, [*prompt(), *tokens[:-1]], DTYPES[served])
    assert worst(found, logits[PROMPT - 1 :].float()) <= 0.06
