"""Families other than Llama through real processes: the same tokens split, unified and in transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.e2e.service import split, unified
from tests.engine.test_models import LONGROPE, MSCALE, UPPER, WINDOW, truth
from tests.tiny import make_tiny

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
CHUNK, ANSWER = 64, 50
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("mistral", WINDOW),
    "smollm3": ("smollm3", {"num_hidden_layers": 4}),
    "qwen2": ("qwen2", UPPER),
    "qwen3": ("qwen3", UPPER),
    "gpt_oss": ("gpt_oss", {}),
    "gemma3": ("gemma3", {}),
    "mixtral": ("mixtral", {}),
    "qwen3_moe": ("qwen3_moe", {}),
    "deepseek_v2": ("deepseek_v2", {}),
    "deepseek_v3": ("deepseek_v3", {"rope_parameters": MSCALE}),
    "deepseek_v32": ("deepseek_v32", {}),
    "glm_moe_dsa": ("glm_moe_dsa", {}),
    "qwen3_next": ("qwen3_next", {}),
    "qwen3_5": ("qwen3_5", {}),
    "phi3": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
}


def test_index_keys_in_fp8_travel_with_their_scales(tmp_path: Path) -> None:
    path = make_tiny(tmp_path / "model", "deepseek_v32")
    prompts = [np.random.default_rng(n).integers(0, 300, 40 + 90 * n).tolist() for n in range(3)]
    flags = ("--kv-pages", "64", "--max-num-batched-tokens", str(CHUNK), "--index-dtype", "fp8")
    found = []
    (tmp_path / "split").mkdir()
    with split(tmp_path / "split", path, prefill=flags, decode=flags) as service:
        found.append([service.ids(p, max_tokens=ANSWER, ignore_eos=True) for p in prompts])
        service.wait_clean()
    (tmp_path / "unified").mkdir()
    with unified(tmp_path / "unified", path, *flags) as service:
        found.append([service.ids(p, max_tokens=ANSWER, ignore_eos=True) for p in prompts])
    assert found[0] == found[1]


@pytest.mark.parametrize("case", CASES)
def test_tokens_of_every_family_are_the_same_split_unified_and_in_transformers(tmp_path: Path, case: str) -> None:
    family, overrides = CASES[case]
    path = make_tiny(tmp_path / "model", family, **overrides)
    prompts = [np.random.default_rng(n).integers(0, 300, 40 + 90 * n).tolist() for n in range(4)]
    flags = ("--kv-pages", "64", "--max-num-batched-tokens", str(CHUNK))
    found = []
    (tmp_path / "split").mkdir()
    with split(tmp_path / "split", path, prefill=flags, decode=flags) as service:
        found.append([service.ids(p, max_tokens=ANSWER, ignore_eos=True) for p in prompts])
        service.wait_clean()
    (tmp_path / "unified").mkdir()
    with unified(tmp_path / "unified", path, *flags) as service:
        found.append([service.ids(p, max_tokens=ANSWER, ignore_eos=True) for p in prompts])
    assert found[0] == found[1]
    for prompt, tokens in zip(prompts, found[0], strict=True):
        _, logits = truth(path, [*prompt, *tokens])
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens
