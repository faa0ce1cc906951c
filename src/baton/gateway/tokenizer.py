"""A checkpoint's tokenizer, from its Hugging Face directory.

It reads the files directly: importing transformers takes seconds, and a gateway needs only four
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
from baton.gateway.detokenize import Detokenizer, OwnTexts
from baton.gateway.json_file import read_object
from baton.gateway.template import ChatTemplate, TemplateRefused

NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
BYTE_PIECE = {f"<0x{i:02X}>": bytes([i]) for i in range(256)}


def _byte_alphabet() -> dict[str, int]:
    """Map the characters of byte-level BPE to bytes.

    Printable bytes are written as themselves, the others as characters from U+0100 on.
    """
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in set(plain)]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(others)}


BYTE_ALPHABET = _byte_alphabet()


class Spelling(msgspec.Struct, frozen=True):
    """One token: its `raw` bytes, and `text`, which replaces bytes that are no whole characters."""

    text: str
    raw: bytes


class Tokenizer:
    """Encodes text as token ids, and decodes ids.

    Attributes:
        eos_ids: tokens that end a generation
        vocab_size: all ids are less than this
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        eos_ids: Sequence[int],
        vocab_size: int,
        template: ChatTemplate | None,
    ) -> None:
        vocabulary.no_truncation()
        vocabulary.no_padding()
        self._vocabulary = vocabulary
        self._template = template
        kinds = _decoder_kinds(json.loads(vocabulary.to_str()).get("decoder"))
        self._byte_level = "ByteLevel" in kinds
        self._added = {i: t.content for i, t in vocabulary.get_added_tokens_decoder().items()}
        self._special = frozenset(
            i for i, t in vocabulary.get_added_tokens_decoder().items() if t.special
        )
        self._own = OwnTexts(vocabulary, self._special, byte_level=kinds == {"ByteLevel"})
        self._spellings: dict[int, Spelling] = {}
        # End tokens outside the vocabulary are dropped: the model cannot sample them, and
        # `min_tokens` would try to mask them.
        self.eos_ids = tuple(TokenId(i) for i in eos_ids if 0 <= i < vocab_size)
        self.vocab_size = vocab_size

    @classmethod
    def load(cls, directory: Path, *, eos_ids: Sequence[int] | None = None) -> "Tokenizer":
        """Read tokenizer.json, tokenizer_config.json, generation_config.json and config.json.

        `eos_ids` are the operator's end tokens, which replace those of the model's files. The
        tokenizer's own end token is always added.

        Raises:
            ConfigError: tokenizer.json is missing or damaged, or `eos_ids` are not in the
                vocabulary
        """
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise ConfigError(
                f"{path} does not exist; a checkpoint needs a tokenizer.json "
                "(convert a slow tokenizer first)"
            )
        try:
            vocabulary = Vocabulary.from_file(str(path))
        except Exception as e:  # the library raises no narrower class
            raise ConfigError(f"{path} is damaged or not a tokenizer: {e}; fetch it again") from e
        settings = read_object(directory / "tokenizer_config.json")
        model, generation = (
            read_object(directory / "config.json"),
            read_object(directory / "generation_config.json"),
        )
        named = _named_tokens(read_object(directory / "special_tokens_map.json") | settings)
        source = _template_source(directory, settings)
        vocab_size = int(model.get("vocab_size", vocabulary.get_vocab_size(with_added_tokens=True)))
        if eos_ids is not None:
            _require_known(eos_ids, vocab_size)
            generation = {"eos_token_id": list(eos_ids)}
        return cls(
            vocabulary,
            eos_ids=_eos_ids(vocabulary, named, generation, model),
            vocab_size=vocab_size,
            template=None if source is None else ChatTemplate(source, named),
        )

    def encode(self, text: str) -> tuple[TokenId, ...]:
        """Encode a plain prompt, with the beginning-of-text
        token if the post-processor adds one."""
        return tuple(map(TokenId, self._vocabulary.encode(text, add_special_tokens=True).ids))

    def encode_chat(self, text: str) -> tuple[TokenId, ...]:
        """Encode a rendered chat, whose text already has its special tokens."""
        return tuple(map(TokenId, self._vocabulary.encode(text, add_special_tokens=False).ids))

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render a chat as text, up to the start of the assistant's next message.

        Raises:
            TemplateRefused: the template rejects these messages, or the model has none
        """
        if self._template is None:
            raise TemplateRefused("this model has no chat template; use /v1/completions")
        return self._template.render(messages)

    def detokenizer(self, prompt: Sequence[int]) -> Detokenizer:
        """Return a detokenizer for the text that follows `prompt`."""
        return Detokenizer(self._vocabulary, self._own, self._special, prompt)

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode all tokens at once, without special tokens."""
        return self._vocabulary.decode(list(tokens), skip_special_tokens=True)

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


def _named_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in NAMED_TOKENS:
        value = settings.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            found[name] = content
    return found


def _template_source(directory: Path, settings: Mapping[str, Any]) -> str | None:
    """Return the chat template, or None.

    chat_template.jinja comes before chat_template.json, and that before tokenizer_config.json. If a
    file has several templates, the one named `default` is used.
    """
    file = directory / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    found = read_object(directory / "chat_template.json").get(
        "chat_template", settings.get("chat_template")
    )
    if isinstance(found, list):
        found = {t["name"]: t["template"] for t in found}.get("default")
    return found if isinstance(found, str) else None


def _require_known(eos_ids: Sequence[int], vocab_size: int) -> None:
    if (top := max(eos_ids, default=0)) >= vocab_size:
        raise ConfigError(
            f"eos_token_id {top} of the generation config: this model's "
            f"vocabulary ends at {vocab_size - 1}"
        )


def _eos_ids(
    vocabulary: Vocabulary,
    named: Mapping[str, str],
    generation: Mapping[str, Any],
    model: Mapping[str, Any],
) -> tuple[int, ...]:
    """Return the end tokens of generation_config.json,
    or else of config.json, and the tokenizer's own."""
    stated = generation.get("eos_token_id", model.get("eos_token_id"))
    ids = set(stated if isinstance(stated, list) else [] if stated is None else [stated])
    own = vocabulary.token_to_id(named["eos_token"]) if "eos_token" in named else None
    if own is not None:
        ids.add(own)
    return tuple(sorted(ids))
