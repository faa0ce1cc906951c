"""Small checkpoints with the published structure, and the tokenizers that they were published
with, built from the same ranks by tiktoken."""

import json
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import tiktoken
from hypothesis import strategies as st

# `pat_str` of tokenization_kimi.py, moonshotai/Kimi-K2-Instruct
KIMI_PATTERN = (
    r"[\p{Han}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PIECES = (
    *("Hello", "world", "'s", "'S", "'ll", "’", " ", "  ", "\n", "\r\n", "\t", "\x1c", "\u3000"),
    *("def f(x):", "x_1 += 2;", "{}", "//", "0", "1234567", "٣", "½", "A", "éa", "É", "ǅ", "ʰ"),
    *("中", "文字", "々", "〇", "あ", "한", "𠀀", "é", "́", "🙂", "👩‍👩‍👧", "ſ", "[BOS]", "[EOT]"),
    *("<|im_end|>", "<|im_user|>", "<|im_", "<|tool_call_begin|>", "<|reserved_token_270|>"),
    *("[INST]", "[/INST]", "<s>", "</s>", "<SPECIAL_20>"),
)
BYTES = tuple(bytes([i]) for i in range(256))
FEW = "abc中"  # letters of which many tokens consist, so that merges compete
texts = st.lists(
    st.sampled_from(PIECES) | st.text(max_size=4) | st.text(FEW, min_size=3, max_size=12),
    max_size=12,
).map("".join)
several_texts = st.lists(texts, min_size=1, max_size=12)

# Of moonshotai/Kimi-K2-Instruct: ids count from the number of ranks.
NAMED = {
    0: ("[BOS]", True),
    1: ("[EOS]", True),
    2: ("<|im_end|>", True),
    3: ("<|im_user|>", True),
    4: ("<|im_assistant|>", True),
    9: ("[EOT]", True),
    11: ("<|tool_calls_section_begin|>", False),
    13: ("<|tool_call_begin|>", False),
    17: ("<|im_middle|>", True),
}


@st.composite
def rank_tables(draw) -> tuple[bytes, ...]:
    """Any table that has all single bytes: ranks in any order, some tokens beyond reach of
    merges."""
    made = [c.encode() for c in FEW]
    rare = [c.encode() for piece in PIECES for c in piece]
    for _ in range(draw(st.integers(0, 40))):
        left = draw(st.sampled_from(made))
        made.append(left + draw(st.sampled_from(made[:12]) | st.sampled_from(rare)))
    made += [piece.encode() for piece in PIECES[:4]]
    tokens = list(dict.fromkeys((*BYTES, *made)))
    draw(st.randoms()).shuffle(tokens)
    return tuple(tokens)


def write_kimi(
    directory: Path,
    tokens: tuple[bytes, ...] = BYTES,
    *,
    auto_map: object = ("tokenization_kimi.TikTokenTokenizer", None),
    **config: object,
) -> Path:
    lines = (b64encode(t).decode() + f" {i}\n" for i, t in enumerate(tokens))
    (directory / "tiktoken.model").write_text("".join(lines))
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    settings = {
        "added_tokens_decoder": {
            str(len(tokens) + i): {"content": text, "special": special} | flags
            for i, (text, special) in NAMED.items()
        },
        "auto_map": {"AutoTokenizer": auto_map},
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "tokenizer_class": "TikTokenTokenizer",
        "chat_template": "<|im_user|>user<|im_middle|>{{ messages[0]['content'] }}<|im_end|>",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    (directory / "config.json").write_text(json.dumps({"model_type": "kimi_k2"} | config))
    return directory


class Kimi:
    """The published tokenizer: tokenization_kimi.py, as transformers calls it (`__call__`)."""

    def __init__(self, tokens: tuple[bytes, ...]) -> None:
        count = len(tokens)
        names = {count + i: text for i, (text, _) in NAMED.items()}
        self.special = {
            names.get(i, f"<|reserved_token_{i}|>"): i for i in range(count, count + 258)
        }
        self._model = tiktoken.Encoding(
            name="kimi",
            pat_str=KIMI_PATTERN,
            mergeable_ranks={t: i for i, t in enumerate(tokens)},
            special_tokens=self.special,
        )

    def encode(self, text: str) -> list[int]:
        return [i for part in _cut(text) for i in self._model.encode(part, allowed_special="all")]

    def decode(self, ids: list[int]) -> str:
        return self._model.decode(ids)


def _cut(text: str) -> Iterator[str]:
    for at in range(0, len(text), 400_000):
        chunk = text[at : at + 400_000]
        start = length = 0
        for i, character in enumerate(chunk):
            same = i > 0 and character.isspace() == chunk[i - 1].isspace()
            length = length + 1 if same else 1
            if length > 25_000:
                yield chunk[start:i]
                start, length = i, 1
        yield chunk[start:]


TEKKEN_PATTERN = (  # of mistralai/Mistral-Nemo-Instruct-2407
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_SPECIAL = ("<unk>", "<s>", "</s>", "[INST]", "[/INST]")


def write_tekken(
    directory: Path,
    tokens: tuple[bytes, ...] = BYTES,
    *,
    special: tuple[str, ...] | None = TEKKEN_SPECIAL,
    version: str = "v11",
    count: int = 30,
    spare: int = 0,
) -> Path:
    """Write a tekken.json whose vocabulary ends `spare` tokens before its file."""
    ranked = [
        {"rank": i, "token_bytes": b64encode(t).decode(), "token_str": None}
        for i, t in enumerate(tokens)
    ]
    file = {
        "config": {
            "pattern": TEKKEN_PATTERN,
            "num_vocab_tokens": len(tokens),
            "default_vocab_size": len(tokens) + count - spare,
            "default_num_special_tokens": count,
            "version": version,
        },
        "vocab": ranked,
        "multimodal": {"image_patch_size": 14},
    }
    if special is not None:
        file["special_tokens"] = [
            {"rank": i, "token_str": t, "is_control": True} for i, t in enumerate(special)
        ]
    (directory / "tekken.json").write_text(json.dumps(file))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    return directory


def published_tekken(tokens: tuple[bytes, ...], count: int = 30) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        name="tekken",
        pat_str=TEKKEN_PATTERN,
        mergeable_ranks={t: i for i, t in enumerate(tokens)},
        special_tokens={},
    )
