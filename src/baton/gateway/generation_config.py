"""Defaults of sampling parameters, from the model's generation_config.json and the operator.

    neutral values  <  generation_config.json  <  --override-generation-config  <  the request

The right one wins. As in vLLM, `auto` reads the file beside the model, `vllm` reads no file,
anything else is a folder that has one. Unlike vLLM, penalties and end tokens of an override count
too, and startup fails on a value that no request could ask for.
"""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec
import structlog

from baton.core.errors import ConfigError
from baton.gateway.body import fit
from baton.gateway.faults import HttpFault
from baton.gateway.neutral import brief
from baton.gateway.schema import GenerationConfigBody, SamplingBody
from baton.vocabulary.json_file import read_object

log = structlog.get_logger("baton.gateway")

AUTO, NEUTRAL = WORDS = "auto", "vllm"
FILE = "generation_config.json"
OVERRIDE = "--override-generation-config"
EXAMPLE = """'{"temperature": 0.2}'"""
READ = tuple(GenerationConfigBody.model_fields)
# Settings of transformers that Baton does not support, with the values that change nothing.
UNSERVED: Mapping[str, tuple[object, ...]] = {
    "bad_words_ids": (None, []),
    "begin_suppress_tokens": (None, []),
    "epsilon_cutoff": (None, 0),
    "eta_cutoff": (None, 0),
    "forced_bos_token_id": (None,),
    "forced_eos_token_id": (None,),
    "min_length": (None, 0),
    "min_new_tokens": (None, 0),
    "no_repeat_ngram_size": (None, 0),
    "num_beams": (None, 1),
    "penalty_alpha": (None, 0),
    "sequence_bias": (None, [], {}),
    "stop_strings": (None, []),
    "suppress_tokens": (None, []),
    "typical_p": (None, 1),
}


class Defaults(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Sampling parameters of a request that does not name them.

    Attributes:
        max_tokens: tokens to generate, or what is left of the context if that is less; None = all
            of it
        most_tokens: upper limit for every request; None = no limit
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    most_tokens: int | None = None


class GenerationConfig(msgspec.Struct, frozen=True):
    """Defaults, and the operator's end tokens, which
    replace those of the model's files (None: not set)."""

    defaults: Defaults
    eos_ids: tuple[int, ...] | None


def load(model: Path, *, source: str, override: str | None) -> GenerationConfig:
    """Load the settings for the model in a directory.

    Raises:
        ConfigError: a file or an override is not JSON or has an invalid value; a folder has no file
    """
    require_source(source)
    own = {} if source == NEUTRAL else _read((model if source == AUTO else Path(source)) / FILE)
    given = {} if override is None else parse_override(override)
    # As in vLLM, a length in the model's own file is a default; a length from the operator is a
    # limit.
    chosen = given if source in WORDS else own | given
    said = own | given
    eos = chosen.get("eos_token_id")
    return GenerationConfig(
        Defaults(
            **{name: said[name] for name in SamplingBody.model_fields if name in said},
            max_tokens=said.get("max_new_tokens"),
            most_tokens=chosen.get("max_new_tokens"),
        ),
        eos_ids=None if eos is None else (eos,) if isinstance(eos, int) else tuple(eos),
    )


def require_source(source: str) -> None:
    """Raise ConfigError unless `source` is a known word, or a folder that has the file."""
    if source not in WORDS and not (Path(source) / FILE).is_file():
        raise ConfigError(
            f"--generation-config {source}: there is {AUTO}, {NEUTRAL}, or a "
            f"folder that holds a {FILE}"
        )


def parse_override(text: str) -> dict[str, Any]:
    """Parse the operator's JSON; keys with null are left out.

    Raises:
        ConfigError: the message names the key, its value and the known keys
    """
    try:
        found = json.loads(text)
    except ValueError as e:
        raise ConfigError(f"{OVERRIDE} {text[:80]!r} is not JSON: {e}; write e.g. {EXAMPLE}") from e
    if not isinstance(found, dict):
        raise ConfigError(f"{OVERRIDE} {brief(found)}: it must be an object, e.g. {EXAMPLE}")
    for key in found:
        if key not in READ:
            near = get_close_matches(key, READ, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(READ)}"
            raise ConfigError(f"{OVERRIDE}: {brief(key)} is not known; {hint}")
    return _values(text, where=OVERRIDE, remedy="")


def _read(file: Path) -> dict[str, Any]:
    found = read_object(file)
    left_out = sorted(name for name, neutral in UNSERVED.items() if found.get(name) not in neutral)
    if left_out:
        log.warning(
            "generation_config_left_out",
            file=str(file),
            fields=left_out,
            why="they are not supported here",
        )
    return _values(
        json.dumps(found),
        where=str(file),
        remedy=f"; mend it, or start with --generation-config {NEUTRAL}",
    )


def _values(text: str, *, where: str, remedy: str) -> dict[str, Any]:
    try:
        body = fit(GenerationConfigBody, text.encode())
    except HttpFault as fault:
        raise ConfigError(f"{where}: {fault}{remedy}") from fault
    return {name: value for name in READ if (value := getattr(body, name)) is not None}
