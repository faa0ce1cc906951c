"""Which file of a checkpoint holds its vocabulary, and which reader reads it."""

from collections.abc import Callable, Mapping
from pathlib import Path

from tokenizers import Tokenizer

from baton.core.errors import ConfigError
from baton.vocabulary import tekken, tiktoken_file

Reader = Callable[[Path], Tokenizer]
# SentencePiece's own format is not read: transformers 5 can convert it, but the result gives other
# ids for a text that begins with a space.
SENTENCEPIECE = "tokenizer.model"
PANIC = "PanicException"  # of Rust; its class cannot be imported


def read_tokenizer_json(path: Path) -> Tokenizer:
    """Read a tokenizer.json.

    Raises:
        ConfigError: the file is damaged
    """
    try:
        return Tokenizer.from_file(str(path))
    except BaseException as e:  # the library raises no narrower class, and panics at some files
        if not isinstance(e, Exception) and type(e).__name__ != PANIC:
            raise
        raise ConfigError(f"{path} is damaged or not a tokenizer: {e}; fetch it again") from e


# In the order of preference: a tokenizer.json says all that the others leave to code.
READERS: Mapping[str, Reader] = {
    "tokenizer.json": read_tokenizer_json,
    tiktoken_file.FILE: tiktoken_file.read_tiktoken,
    tekken.FILE: tekken.read_tekken,
}


def vocabulary_of(directory: Path) -> Tokenizer:
    """Read the vocabulary of a checkpoint, whatever the file that holds it.

    Its `to_str()` is the text of a tokenizer.json.

    Raises:
        ConfigError: there is no such file, or it is damaged, or the tokenizer is not known
    """
    for name, read in READERS.items():
        if (directory / name).is_file():
            return read(directory / name)
    held = f"; {SENTENCEPIECE} alone is not read" if (directory / SENTENCEPIECE).is_file() else ""
    raise ConfigError(
        f"{directory / 'tokenizer.json'} does not exist, and a checkpoint needs one of "
        f"{', '.join(READERS)}{held}. Copy the tokenizer.json of a model with the same tokenizer "
        "here, or convert a slow tokenizer with transformers"
    )
