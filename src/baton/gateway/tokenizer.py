"""A checkpoint's tokenizer, from its Hugging Face directory.

It reads the files directly: importing transformers takes seconds, and a gateway needs only a few
small files.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import Tokenizer as Vocabulary

from baton.core.errors import ConfigError
from baton.core.ids import TokenId
from baton.gateway.detokenize import Detokenizer, OwnTexts, UnspacedDetokenizer
from baton.gateway.template_files import Templates, read_templates
from baton.vocabulary.byte_level import BYTE_ALPHABET
from baton.vocabulary.json_file import read_object
from baton.vocabulary.load import vocabulary_of
from baton.vocabulary.special_tokens import end_tokens, named_tokens, with_own

MOST_TOKENS = 1 << 24  # of a vocabulary; those of models have some hundred thousand
NO_TEMPLATES = Templates({}, {}, model_type="")
BYTE_PIECE = {f"<0x{i:02X}>": bytes([i]) for i in range(256)}


class Spelling(msgspec.Struct, frozen=True):
    """One token: its `raw` bytes, and `text`, which replaces bytes that are no whole characters."""

    text: str
    raw: bytes


class Tokenizer:
    """Encodes text as token ids, and decodes ids.

    Attributes:
        eos_ids: tokens that end a generation
        vocab_size: all ids are less than this
        templates: the model's chat templates
        response_template: how transformers parses the model's answers, if its files say so
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        eos_ids: Sequence[int],
        vocab_size: int,
        templates: Templates = NO_TEMPLATES,
        response_template: Mapping[str, Any] | None = None,
    ) -> None:
        vocabulary.no_truncation()
        vocabulary.no_padding()
        self._vocabulary = vocabulary
        self.templates = templates
        self.response_template = response_template
        kinds = _decoder_kinds(json.loads(vocabulary.to_str()).get("decoder"))
        self._byte_level = "ByteLevel" in kinds
        self._added = {i: t.content for i, t in vocabulary.get_added_tokens_decoder().items()}
        self._special = frozenset(
            i for i, t in vocabulary.get_added_tokens_decoder().items() if t.special
        )
        self._own = OwnTexts(vocabulary, self._special, byte_level=kinds == {"ByteLevel"})
        # by the special tokens that are kept: as many as there are formats of answers
        self._owns: dict[frozenset[int], OwnTexts] = {}
        self._spellings: dict[int, Spelling] = {}
        # End tokens outside the vocabulary are dropped: the model cannot sample them, and
        # `min_tokens` would try to mask them.
        self.eos_ids = tuple(TokenId(i) for i in eos_ids if 0 <= i < vocab_size)
        self.vocab_size = vocab_size

    @classmethod
    def load(
        cls,
        directory: Path,
        *,
        eos_ids: Sequence[int] | None = None,
        chat_template: Path | None = None,
    ) -> "Tokenizer":
        """Read a checkpoint's vocabulary (`baton.vocabulary.load`), tokenizer_config.json,
        generation_config.json and config.json.

        `eos_ids` are the operator's end tokens, which replace those of the model's files. The
        tokenizer's own end token is always added. `chat_template` is the operator's file, which
        replaces the model's templates.

        Raises:
            ConfigError: there is no vocabulary, or a file is damaged, or `eos_ids` are not in the
                vocabulary, or `chat_template` cannot be read
        """
        vocabulary = vocabulary_of(directory)
        settings = read_object(directory / "tokenizer_config.json")
        model, named = read_object(directory / "config.json"), named_tokens(directory)
        sources = read_templates(directory, settings, chosen=chat_template)
        own = settings.get("response_template")
        vocab_size = model.get("vocab_size", vocabulary.get_vocab_size(with_added_tokens=True))
        if type(vocab_size) is not int or not 0 < vocab_size <= MOST_TOKENS:
            raise ConfigError(
                f"{directory / 'config.json'}: vocab_size is {str(vocab_size)[:80]}; it must be a "
                f"whole number from 1 to {MOST_TOKENS}"
            )
        if eos_ids is None:
            ends = end_tokens(directory, vocabulary, size=vocab_size)
        else:
            _require_known(eos_ids, vocab_size)
            ends = with_own(list(eos_ids), vocabulary, named, size=vocab_size)
        return cls(
            vocabulary,
            eos_ids=ends,
            vocab_size=vocab_size,
            templates=Templates(sources, named, model_type=str(model.get("model_type"))),
            response_template=own if isinstance(own, dict) else None,
        )

    def to_json(self) -> str:
        """Return what tokenizer.json has."""
        return self._vocabulary.to_str()

    def encode(self, text: str) -> tuple[TokenId, ...]:
        """Encode a plain prompt, with the beginning-of-text
        token if the post-processor adds one."""
        return tuple(map(TokenId, self._vocabulary.encode(text, add_special_tokens=True).ids))

    def encode_chat(self, text: str) -> tuple[TokenId, ...]:
        """Encode a rendered chat, whose text already has its special tokens."""
        return tuple(map(TokenId, self._vocabulary.encode(text, add_special_tokens=False).ids))

    def detokenizer(
        self,
        prompt: Sequence[int],
        *,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        kept: frozenset[int] = frozenset(),
    ) -> Detokenizer:
        """Return a detokenizer for the text that follows `prompt`.

        `kept` are the special tokens whose text is shown although the others are skipped.
        """
        if skip_special_tokens:
            return Detokenizer(self._vocabulary, self._own_keeping(kept), prompt)
        own = self._own_keeping(self._special)
        if spaces_between_special_tokens:
            return Detokenizer(self._vocabulary, own, prompt)
        return UnspacedDetokenizer(self._vocabulary, own, prompt, added=self._added)

    def _own_keeping(self, kept: frozenset[int]) -> OwnTexts:
        if not kept:
            return self._own
        if kept not in self._owns:
            self._owns[kept] = self._own.keeping(kept)
        return self._owns[kept]

    def special_tokens(self) -> dict[str, TokenId]:
        """Return the special tokens by their text."""
        return {self._added[i]: TokenId(i) for i in self._special}

    def added_tokens(self) -> dict[str, TokenId]:
        """Return the added tokens by their text: the special ones and others."""
        return {text: TokenId(i) for i, text in self._added.items()}

    def decode(self, tokens: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decode all tokens at once."""
        return self._vocabulary.decode(list(tokens), skip_special_tokens=skip_special_tokens)

    def pieces(self, tokens: Sequence[int]) -> tuple[str, ...]:
        """Return tokens as the vocabulary writes them; "" for ids that it does not have."""
        return tuple(self._vocabulary.id_to_token(token) or "" for token in tokens)

    def spell(self, token: int) -> Spelling:
        """Return one token as logprobs show it."""
        found = self._spellings.get(token)
        if found is None:
            raw = self._raw(token)
            try:
                found = Spelling(raw.decode(), raw)
            except UnicodeDecodeError:
                found = Spelling("bytes:" + "".join(f"\\x{b:02x}" for b in raw), raw)
            self._spellings[token] = found
        return found

    def _raw(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        # the model's vocabulary may be padded beyond the tokenizer's
        piece = self._vocabulary.id_to_token(token) or ""
        if self._byte_level and all(c in BYTE_ALPHABET for c in piece):
            return bytes(BYTE_ALPHABET[c] for c in piece)
        return BYTE_PIECE.get(piece) or piece.replace("\u2581", " ").encode()


def _decoder_kinds(decoder: Mapping[str, Any] | None) -> set[str]:
    if decoder is None:
        return set()
    return {decoder["type"]}.union(*(_decoder_kinds(d) for d in decoder.get("decoders", ())))


def _require_known(eos_ids: Sequence[int], vocab_size: int) -> None:
    if (top := max(eos_ids, default=0)) >= vocab_size:
        raise ConfigError(
            f"eos_token_id {top} of the generation config: this model's "
            f"vocabulary ends at {vocab_size - 1}"
        )
