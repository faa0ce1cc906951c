"""Readers of settings that people write in a form of their own: sizes, lists, pairs, paths.

Each takes the flag's name and the text. It raises ConfigError for a text that it cannot read; the
message names both and says what to write.
"""

import json
import os
import re
import shlex
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from baton.core.errors import ConfigError

S = TypeVar("S", bound=msgspec.Struct)

UNITS = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.ASCII)


def size(flag: str, text: str) -> int:
    """Return the bytes of a size such as "2GiB", "512 MiB", "1.5G" or "1048576"; at least one."""
    found = SIZE.fullmatch(text.upper())
    unit = UNITS.get(found.group(2)) if found else None
    nbytes = int(float(found.group(1)) * unit) if found and unit else 0
    if nbytes < 1:
        raise ConfigError(
            f"{flag}: {text!r} is not a size; write for example 2GiB, 512MiB or 1000000"
        )
    return nbytes


def path(_flag: str, text: str) -> str:
    """Return the absolute path, as a later process may run in another directory."""
    return os.path.abspath(text)


def names(_flag: str, text: str) -> tuple[str, ...]:
    """Return names that are separated by commas."""
    return tuple(name for name in text.split(",") if name)


def words(flag: str, text: str) -> tuple[str, ...]:
    """Return words that are written as in a shell."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"{flag} {text}: {error}; write it as in a shell") from error


def numbers(flag: str, text: str) -> tuple[int, ...]:
    """Return whole numbers that are separated by commas."""
    written = text.split(",")
    if not all(n.strip().isdecimal() for n in written):
        raise ConfigError(f"{flag} {text}: write numbers with commas between, e.g. 0,1")
    return tuple(int(n) for n in written)


def pair(flag: str, text: str) -> tuple[str, str]:
    """Return the parts of KEY=VALUE."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise ConfigError(f"{flag} {text}: write KEY=VALUE, e.g. {flag} num_threads=2")
    return key, value


def texts(flag: str, text: str) -> tuple[str, ...]:
    """Return the texts of a JSON list, as vLLM writes such flags."""
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ConfigError(f"{flag} {text}: write a JSON list of texts, e.g. {flag} '[\"*\"]'")
    return tuple(found)


def url_path(flag: str, text: str) -> str:
    """Return a path such as "/api"; empty = none."""
    if text and (not text.startswith("/") or text.endswith("/") or "//" in text):
        raise ConfigError(
            f"{flag} {text}: write a path that begins with a / and does not end with one, e.g. /api"
        )
    return text


def structure(
    flag: str, text: str, kind: type[S], *, example: str, check: Callable[[dict[str, Any]], None]
) -> S:
    """Return the struct that a JSON object has the fields of.

    Args:
        example: what could be written instead
        check: raises ConfigError for values of which more can be said than that they are wrong
    """
    try:
        said: Any = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"{flag} {text}: this is not JSON ({error}); write e.g. {flag} {example}"
        ) from error
    if not isinstance(said, dict):
        raise ConfigError(f"{flag} {text}: write a JSON object, e.g. {flag} {example}")
    known = [each.name for each in msgspec.structs.fields(kind)]
    if unknown := [key for key in said if key not in known]:
        raise ConfigError(f"{flag}: {unknown[0]!r} is no key of it; there are {', '.join(known)}")
    check(said)
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{flag} {text}: {error}") from error
