"""The special tokens of a checkpoint: their texts by name, and those that end an answer."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from baton.core.errors import ConfigError
from baton.core.ids import TokenId
from baton.vocabulary.json_file import read_object

NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)


def named_tokens(directory: Path) -> dict[str, str]:
    """Return the texts of special tokens by name, as special_tokens_map.json and, before it,
    tokenizer_config.json have them.

    Raises:
        ConfigError: one of these files is damaged
    """
    settings = read_object(directory / "special_tokens_map.json") | read_object(
        directory / "tokenizer_config.json"
    )
    found = {}
    for name in NAMED_TOKENS:
        value = settings.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found


def end_tokens(directory: Path, vocabulary: Tokenizer, *, size: int) -> tuple[TokenId, ...]:
    """Return the tokens that end an answer: those of generation_config.json, or else of
    config.json, and the tokenizer's own. Tokens from `size` on are left out: the model has no
    logits for them.

    Raises:
        ConfigError: a file is damaged
    """
    stated = read_object(directory / "generation_config.json").get(
        "eos_token_id", read_object(directory / "config.json").get("eos_token_id")
    )
    return with_own(stated, vocabulary, named_tokens(directory), size=size)


def with_own(
    stated: Any, vocabulary: Tokenizer, named: Mapping[str, str], *, size: int
) -> tuple[TokenId, ...]:
    """Return the end tokens that a file or an operator states (an id, a list of ids, or None) and
    the tokenizer's own, sorted, less those from `size` on.

    Raises:
        ConfigError: what is stated is something else
    """
    listed = stated if isinstance(stated, list) else [] if stated is None else [stated]
    if not all(type(i) is int for i in listed):
        raise ConfigError(
            f"eos_token_id is {str(stated)[:80]}; it must be a token id or a list of them"
        )
    ids = set(listed)
    own = vocabulary.token_to_id(named["eos_token"]) if "eos_token" in named else None
    if own is not None:
        ids.add(own)
    return tuple(sorted(TokenId(i) for i in ids if 0 <= i < size))
