"""Converts GGUF files, once, to ordinary checkpoint directories, by transformers. Blocks are
dequantised.

Files that transformers would convert wrongly without an error (scaled ropes, unknown
pre-tokenizers) are refused.
"""

import json
import os
import shutil
import struct
import tempfile
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path

import msgspec

from baton.core.errors import ConfigError

SUPPORTED = ("llama", "qwen2", "qwen3", "phi3")  # Mistral's files have architecture llama
# Pre-tokenizers that the conversion supports, by their names in GGUF.
SPLITS = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "qwen2", "deepseek-r1-qwen", "tekken", "smollm"}
)
STRETCHES = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
PLAIN = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
SAMPLE_BYTES, SAMPLES = 1 << 16, 64
Progress = Callable[[str], None]


class GgufHeader(msgspec.Struct, frozen=True):
    """The relevant header fields of a GGUF file.

    Attributes:
        window: positions of the sliding window, if there is one
        stretch: kind of rope scaling, if there is one
        split: name of the pre-tokenizer; None for a SentencePiece vocabulary
        dtype: dtype of the converted weights
    """

    architecture: str
    window: int | None
    stretch: str | None
    split: str | None
    dtype: str


def directory_of(file: Path, cache: Path) -> Path:
    """Return the directory of the converted model.

    Its name depends on the file's content: its size and 64 spread samples of 64 KB.

    Raises:
        ConfigError: the file cannot be read
    """
    try:
        size = file.stat().st_size
        digest = blake2b(str(size).encode(), digest_size=8)
        with file.open("rb") as source:
            for i in range(SAMPLES):
                source.seek(max(0, size - SAMPLE_BYTES) * i // (SAMPLES - 1))
                digest.update(source.read(SAMPLE_BYTES))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    return cache / f"{file.stem}-{digest.hexdigest()}"


def convert_file(file: Path, directory: Path, progress: Progress) -> Path:
    """Convert a file, unless that has been done; returns `directory`.

    A tokenizer.json beside the file replaces the one inside.

    Raises:
        ConfigError: the file is damaged, of another architecture, or cannot be converted
            faithfully; or the directory cannot be written
    """
    if (directory / "config.json").is_file():
        return directory
    header = read_header(file)
    own_tokenizer = (file.parent / "tokenizer.json").is_file()
    require_faithful(file, header, own_tokenizer=own_tokenizer)
    with scratch_beside(directory) as scratch:
        made = Path(scratch) / "model"
        progress(f"converting {file.name} to {header.dtype}")
        try:
            convert(file, made, dtype=header.dtype, tokenizer=not own_tokenizer)
        except (
            ValueError,
            KeyError,
            IndexError,
            RuntimeError,
            NotImplementedError,
            OSError,
        ) as error:
            raise ConfigError(f"{file} cannot be converted: {error}") from error
        if own_tokenizer:
            for name in TOKENIZER_FILES:
                if (file.parent / name).is_file():
                    shutil.copy(file.parent / name, made / name)
        elif header.split == "smollm":
            repair_tokenizer(made / "tokenizer.json")
        if header.window is not None:
            _add_to_config(made, sliding_window=header.window)
        publish(made, directory)
    return directory


def scratch_beside(directory: Path) -> "tempfile.TemporaryDirectory[str]":
    """Return a temporary directory beside `directory`, to make the model in.

    Raises:
        ConfigError: it cannot be written there
    """
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        return tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}-")
    except OSError as error:
        raise ConfigError(
            f"the model cannot be put into {directory.parent}: {error.strerror};"
            " XDG_CACHE_HOME=DIRECTORY in the environment says another place, or give a "
            "checkpoint's directory"
        ) from error


def read_header(file: Path) -> GgufHeader:
    """Read the header. Raises ConfigError if the file is damaged or not a GGUF file."""
    from gguf import GGUFReader

    try:
        reader = GGUFReader(file)
        fields = {
            name: field.contents()
            for name, field in reader.fields.items()
            if not name.startswith("tokenizer.ggml.to")
        }
        kinds = {tensor.tensor_type.name for tensor in reader.tensors}
        names = {tensor.name for tensor in reader.tensors}
    except (ValueError, IndexError, KeyError, OSError, struct.error) as error:
        raise ConfigError(
            f"{file} is damaged or not a GGUF file: {error}; fetch it again"
        ) from error
    architecture = str(fields.get("general.architecture"))
    window = fields.get(f"{architecture}.attention.sliding_window")
    stretched = [n for n in STRETCHES if n in names]
    scaling = fields.get(f"{architecture}.rope.scaling.type", "none")
    half = next(
        (dtype for kind, dtype in PLAIN.items() if kind != "F32" and kind in kinds), "float32"
    )
    return GgufHeader(
        architecture=architecture,
        window=int(window) if window else None,
        stretch=f"rope scaling {scaling!r}"
        if scaling != "none"
        else f"tensor {stretched[0]!r}"
        if stretched
        else None,
        split=str(fields.get("tokenizer.ggml.pre", "default"))
        if fields.get("tokenizer.ggml.model") == "gpt2"
        else None,
        dtype=half if kinds <= set(PLAIN) else "bfloat16",
    )


def require_faithful(file: Path, header: GgufHeader, *, own_tokenizer: bool) -> None:
    """Raise ConfigError if the file cannot be converted,
    or only to a model that computes otherwise."""
    if header.architecture not in SUPPORTED:
        known = ", ".join(SUPPORTED)
        raise ConfigError(
            f"{file}: GGUF architecture {header.architecture!r} is not "
            f"supported; supported are {known}"
        )
    if header.stretch is not None:
        raise ConfigError(
            f"{file}: its rope is stretched ({header.stretch}), which the conversion loses; "
            "use the model's safetensors checkpoint"
        )
    if not own_tokenizer and header.split is not None and header.split not in SPLITS:
        raise ConfigError(
            f"{file}: its tokenizer splits text by {header.split!r}, which the conversion "
            "does not know; "
            "put the original model's tokenizer.json beside the file"
        )


def convert(file: Path, made: Path, *, dtype: str = "bfloat16", tokenizer: bool = True) -> None:
    """Write the model, and the tokenizer in the file, to a new directory. Raises what transformers
    raises."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"gguf_file": file.name}
    dtypes: Mapping[str, torch.dtype] = {
        "bfloat16": torch.bfloat16,
        "float16": torch.float16,
        "float32": torch.float32,
    }
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, **where, dtype=dtypes[dtype], quantization_config=GgufConfig(dequantize=True)
    )
    model.generation_config.do_sample = False
    model.save_pretrained(made)
    if tokenizer:
        AutoTokenizer.from_pretrained(file.parent, **where).save_pretrained(made)
    # safetensors makes files that only their owner can read; give them the mode of the other files.
    for weights in made.glob("*.safetensors"):
        shutil.copymode(made / "config.json", weights)


def repair_tokenizer(path: Path) -> None:
    """Restore a step that the conversion of SmolLM2's
    tokenizer drops: digits are tokens of their own."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": True,
            },
        ],
    }
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


def publish(made: Path, directory: Path) -> None:
    """Move the directory into place atomically. Raises ConfigError if something else is there."""
    try:
        os.rename(made, directory)
    except OSError as error:
        # Another process may have been faster; its result is equivalent.
        if not (directory / "config.json").is_file():
            raise ConfigError(
                f"cannot put the model at {directory} ({error.strerror}); remove what lies there"
            ) from error


def _add_to_config(made: Path, **values: object) -> None:
    path = made / "config.json"
    path.write_text(
        json.dumps(json.loads(path.read_text(encoding="utf-8")) | values, indent=2),
        encoding="utf-8",
    )
