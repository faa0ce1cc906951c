"""Small tokenizers made on the spot."""

import json
from pathlib import Path

from tokenizers import Tokenizer as Vocabulary
from tokenizers import decoders, models, pre_tokenizers, processors

from baton.gateway.tokenizer import BYTE_ALPHABET, Tokenizer

BOS, END = 256, 257
TEMPLATE = (
    "{% for message in messages %}\n"
    "    {% if message['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}\n"
    "{{ '<s>' + message['role'] + ':' + message['content'] + '</s>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ bos_token }}{{ 'assistant:' }}{% endif %}"
)


def byte_vocabulary() -> Vocabulary:
    """Token i is byte i (i < 256), then the specials, then some merges."""
    vocab = BYTE_ALPHABET | {"<s>": BOS, "</s>": END}
    merges = [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        ("Ã", "©"),
        ("ð", "Ł"),
        ("Ġ", "w"),
    ]
    for a, b in merges:
        vocab[a + b] = len(vocab)
    vocabulary = Vocabulary(models.BPE(vocab=vocab, merges=merges))
    vocabulary.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    vocabulary.decoder = decoders.ByteLevel()
    vocabulary.add_special_tokens(["<s>", "</s>"])
    vocabulary.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", BOS)]
    )
    return vocabulary


def fallback_vocabulary() -> Vocabulary:
    """Like the sentencepiece ones: a mark for spaces, bytes as <0xNN>."""
    vocab = (
        {"<unk>": 0}
        | {f"<0x{i:02X}>": i + 1 for i in range(256)}
        | {"\u2581": 257, "\u2581x": 258, "y": 259, "é": 260}
    )
    vocabulary = Vocabulary(
        models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>")
    )
    vocabulary.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    vocabulary.add_special_tokens(["<unk>"])
    return vocabulary


def write_checkpoint(directory: Path) -> Path:
    byte_vocabulary().save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"vocab_size": 300, "eos_token_id": 7}))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [END]}))
    return directory


def ids(text: str) -> list[int]:
    """One token per byte."""
    return list(text.encode())


__all__ = [
    "BOS",
    "END",
    "TEMPLATE",
    "Tokenizer",
    "byte_vocabulary",
    "fallback_vocabulary",
    "ids",
    "write_checkpoint",
]
