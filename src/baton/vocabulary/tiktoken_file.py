"""Reads tiktoken.model: a line for each token, its bytes in base64 and its rank.

The file says neither how a text is split into words nor which tokens are special. The published
tokenizer says that in Python code, which is never run here. What the code does is a row of SCHEMES
instead, found by the name of its class in tokenizer_config.json.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers

from baton.core.errors import ConfigError
from baton.vocabulary.byte_level import byte_level_bpe, ranks_of, words
from baton.vocabulary.json_file import read_object

FILE = "tiktoken.model"


@dataclass(frozen=True)
class Scheme:
    """What the code of a published tokenizer adds to its ranks.

    Attributes:
        pattern: matches one word
        added: number of ids after the ranks that have a token. Those without a name in
            tokenizer_config.json are <|reserved_token_ID|>
        chunk_characters: a longer text is cut into chunks of this length before it is split
        run_characters: a longer run of spaces, or of characters without a space, is cut too
    """

    pattern: str
    added: int
    chunk_characters: int
    run_characters: int


# tokenization_kimi.py of moonshotai/Kimi-K2-Instruct and tokenization_moonshot.py of
# moonshotai/Moonlight-16B-A3B: `pat_str`, `num_reserved_special_tokens` + 2,
# TIKTOKEN_MAX_ENCODE_CHARS and MAX_NO_WHITESPACES_CHARS.
KIMI = Scheme(
    pattern="|".join(
        (
            r"[\p{Han}]+",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
            r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
            r"\p{N}{1,3}",
            r" ?[^\s\p{L}\p{N}]+[\r\n]*",
            r"\s*[\r\n]+",
            r"\s+(?!\S)",
            r"\s+",
        )
    ),
    added=258,
    chunk_characters=400_000,
    run_characters=25_000,
)
SCHEMES: Mapping[str, Scheme] = {
    "tokenization_kimi.TikTokenTokenizer": KIMI,
    "tokenization_moonshot.TikTokenTokenizer": KIMI,
}
REPEAT = 100_000  # the largest count that the engine of `tokenizers` takes in a regular expression
SPACE, OTHER = r"[\s\x1c-\x1f]", r"[^\s\x1c-\x1f]"  # as Python's str.isspace has it


def read_tiktoken(path: Path) -> Tokenizer:
    """Read a tiktoken.model and the tokenizer_config.json beside it.

    Raises:
        ConfigError: the file is damaged, or tokenizer_config.json names a class that is no row of
            SCHEMES
    """
    settings = read_object(path.parent / "tokenizer_config.json")
    scheme = _scheme(path, settings)
    try:
        ranks = ranks_of(_tokens(path.read_text(encoding="ascii")))
    except ValueError as e:
        raise ConfigError(f"{path} is damaged or not a tiktoken file: {e}; fetch it again") from e
    return byte_level_bpe(
        ranks,
        first=0,
        added=_added(settings, read_object(path.parent / "config.json"), len(ranks), scheme),
        splits=[*_cuts(scheme), words(scheme.pattern)],
    )


def _scheme(path: Path, settings: Mapping[str, Any]) -> Scheme:
    entry = settings.get("auto_map", {}).get("AutoTokenizer")
    name = entry[0] if isinstance(entry, list) and entry else entry
    found = SCHEMES.get(str(name).rpartition("--")[2])  # "owner/model--module.Class" of a copy
    if found is None:
        raise ConfigError(
            f"{path.parent / 'tokenizer_config.json'}: auto_map.AutoTokenizer is {name!r}, and how "
            f"that splits text is not known; known are {', '.join(SCHEMES)}. Put a tokenizer.json "
            f"of the model beside {path.name}"
        )
    return found


def _tokens(text: str) -> list[str]:
    tokens = []
    for number, line in enumerate(filter(None, text.splitlines())):
        token, _, rank = line.partition(" ")
        if rank != str(number):
            raise ValueError(f"the rank of line {number + 1} is {rank[:20]!r}, not {number}")
        tokens.append(token)
    return tokens


def _added(
    settings: Mapping[str, Any], model: Mapping[str, Any], first: int, scheme: Scheme
) -> dict[int, AddedToken]:
    """Return the tokens after the ranks. Reserved ones that the model has no row for are left out:
    their text is encoded like any other."""
    stated = settings.get("added_tokens_decoder", {})
    end = min(first + scheme.added, int(model.get("vocab_size", first + scheme.added)))
    return {
        i: AddedToken(
            stated.get(str(i), {}).get("content", f"<|reserved_token_{i}|>"),
            normalized=False,
            special=bool(stated.get(str(i), {}).get("special", False)),
        )
        for i in range(first, end)
    }


def _cuts(scheme: Scheme) -> list[pre_tokenizers.PreTokenizer]:
    # `(?=x)` makes every engine count the repetitions instead of copying the expression
    chunk = rf"\G(?:(?:(?=[\s\S])[\s\S]){{{REPEAT}}}){{{scheme.chunk_characters // REPEAT}}}"
    run = "|".join(
        rf"(?:\G|(?<={other}))(?:(?={kind})[\s\S]){{{scheme.run_characters}}}(?={kind})"
        for kind, other in ((OTHER, SPACE), (SPACE, OTHER))
    )
    return [
        pre_tokenizers.Split(Regex(chunk), behavior="isolated"),
        pre_tokenizers.Split(Regex(run), behavior="merged_with_previous"),
    ]
