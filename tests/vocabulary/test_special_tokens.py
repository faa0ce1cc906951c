"""The tokens that end an answer, as gateways and workers find them."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from baton.vocabulary.special_tokens import end_tokens, named_tokens, with_own

WORDS = {"a": 0, "b": 1, "<eos>": 2, "<pad>": 3, "<late>": 9}
VOCABULARY = Tokenizer(models.WordLevel(WORDS, unk_token="a"))


def files(directory: Path, **contents: Any) -> Path:
    for name, content in contents.items():
        (directory / f"{name}.json").write_text(json.dumps(content))
    return directory


@pytest.mark.parametrize(
    ("contents", "ends"),
    [
        ({}, ()),
        ({"config": {"eos_token_id": 1}}, (1,)),
        ({"config": {"eos_token_id": 1}, "generation_config": {"eos_token_id": [0, 3]}}, (0, 3)),
        (
            {"generation_config": {"eos_token_id": 3}, "tokenizer_config": {"eos_token": "b"}},
            (1, 3),
        ),
        ({"tokenizer_config": {"eos_token": {"content": "<eos>"}}}, (2,)),
        ({"special_tokens_map": {"eos_token": "a"}, "tokenizer_config": {"eos_token": "b"}}, (1,)),
        ({"config": {"eos_token_id": [1, 5]}, "tokenizer_config": {"eos_token": "<late>"}}, (1,)),
        ({"tokenizer_config": {"eos_token": "unknown"}}, ()),
    ],
)
def test_end_tokens(tmp_path: Path, contents: dict[str, Any], ends: tuple[int, ...]) -> None:
    assert end_tokens(files(tmp_path, **contents), VOCABULARY, size=5) == ends


def test_what_an_operator_states_replaces_the_files_but_not_the_tokenizers_own(
    tmp_path: Path,
) -> None:
    named = named_tokens(files(tmp_path, tokenizer_config={"eos_token": "<eos>"}))
    assert named == {"eos_token": "<eos>"}
    assert with_own([3], VOCABULARY, named, size=5) == (2, 3)
