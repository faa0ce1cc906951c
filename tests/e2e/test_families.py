"""Families other than Llama through real processes: the same tokens split, unified and in
transformers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.e2e.service import Service, split, unified
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
    "qwen3_5_moe": ("qwen3_5_moe", {}),
    "phi3": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
}


def both_ways(
    directory: Path, path: Path, prompts: Sequence[list[int]], *more: str
) -> tuple[list[list[int]], list[list[int]]]:
    """The tokens after each prompt, split and unified."""
    flags = ("--kv-pages", "64", "--max-num-batched-tokens", str(CHUNK), *more)

    def ask(service: Service) -> list[list[int]]:
        return [service.ids(p, max_tokens=ANSWER, ignore_eos=True) for p in prompts]

    for name in ("split", "unified"):
        (directory / name).mkdir()
    with split(directory / "split", path, prefill=flags, decode=flags) as service:
        apart = ask(service)
        service.wait_clean()
    with unified(directory / "unified", path, *flags) as service:
        return apart, ask(service)


def test_index_keys_in_fp8_travel_with_their_scales(tmp_path: Path) -> None:
    path = make_tiny(tmp_path / "model", "deepseek_v32")
    prompts = [np.random.default_rng(n).integers(0, 300, 40 + 90 * n).tolist() for n in range(3)]
    apart, together = both_ways(tmp_path, path, prompts, "--index-dtype", "fp8")
    assert apart == together


@pytest.mark.parametrize("case", CASES)
def test_tokens_of_every_family_are_the_same_split_unified_and_in_transformers(
    tmp_path: Path, case: str
) -> None:
    family, overrides = CASES[case]
    path = make_tiny(tmp_path / "model", family, **overrides)
    prompts = [np.random.default_rng(n).integers(0, 300, 40 + 90 * n).tolist() for n in range(4)]
    apart, together = both_ways(tmp_path, path, prompts)
    assert apart == together
    for prompt, tokens in zip(prompts, apart, strict=True):
        _, logits = truth(path, [*prompt, *tokens])
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == tokens
