"""Reads tekken.json, in which Mistral publishes the tokenizer of newer models.

The file holds everything: the bytes of each token in the order of ranks, the expression that splits
a text into words, and the special tokens, which have the lowest ids.
"""

from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer, processors

from baton.core.errors import ConfigError
from baton.vocabulary.byte_level import byte_level_bpe, ranks_of, words

FILE = "tekken.json"
BEGINNING = "<s>"
# Files of versions up to v7 do not name their special tokens (mistral_common, tekken.py).
UNNAMED_UP_TO = 7
UNNAMED = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]"),
    *("[IMG_END]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"),
    "[TOOL_CONTENT]",
)


class Config(msgspec.Struct, frozen=True):
    """The sizes of the vocabulary, and how text is split.

    Attributes:
        default_vocab_size: number of ids. The file has more tokens than that
        default_num_special_tokens: number of ids before the first rank
        version: `v3`, `v7`, ...
    """

    pattern: str
    default_vocab_size: int
    default_num_special_tokens: int
    version: str


class RankedToken(msgspec.Struct, frozen=True):
    """A token: its bytes in base64."""

    token_bytes: str


class NamedToken(msgspec.Struct, frozen=True):
    """A special token; its rank is its id."""

    rank: int
    token_str: str


class TekkenFile(msgspec.Struct, frozen=True):
    """The file, as far as it is read."""

    config: Config
    vocab: list[RankedToken]
    special_tokens: list[NamedToken] | None = None


def read_tekken(path: Path) -> Tokenizer:
    """Read a tekken.json. Plain prompts begin with `<s>`.

    Raises:
        ConfigError: the file is damaged
    """
    try:
        file = msgspec.json.decode(path.read_bytes(), type=TekkenFile)
        special = _special(file)
        size = file.config.default_vocab_size - file.config.default_num_special_tokens
        ranks = ranks_of([token.token_bytes for token in file.vocab[:size]])
        beginning = special.index(BEGINNING)
    except (msgspec.MsgspecError, ValueError) as e:
        raise ConfigError(f"{path} is damaged or not a tekken file: {e}; fetch it again") from e
    tokenizer = byte_level_bpe(
        ranks,
        first=len(special),
        added={i: AddedToken(t, normalized=False, special=True) for i, t in enumerate(special)},
        splits=[words(file.config.pattern)],
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGINNING} $A", special_tokens=[(BEGINNING, beginning)]
    )
    return tokenizer


def _special(file: TekkenFile) -> list[str]:
    """Return the special tokens in the order of their ids.

    Raises:
        ValueError: a token is missing or occurs twice
    """
    version = file.config.version
    if file.special_tokens is not None:
        named = {token.rank: token.token_str for token in file.special_tokens}
    elif int(version.removeprefix("v")) <= UNNAMED_UP_TO:
        named = dict(enumerate(UNNAMED))
    else:
        raise ValueError(f"special_tokens is missing, which a file of version {version} has")
    ids = range(file.config.default_num_special_tokens)
    if not set(named) <= set(ids) or len(set(named.values())) < len(named):
        raise ValueError(f"special_tokens are not {len(ids)} different ones")
    return [named.get(i, f"<SPECIAL_{i}>") for i in ids]
