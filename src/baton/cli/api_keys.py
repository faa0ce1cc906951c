"""Reads API keys from the command line, or from files, where `ps` does not show them."""

import secrets
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from baton.core.errors import ConfigError
from baton.gateway.api_keys import HASHED, MIN_HASHED_CHARS, ApiKey, hashed_key, plain_key


def read_keys(keys: Sequence[str], files: Sequence[str]) -> tuple[ApiKey, ...]:
    """Return all keys without duplicates. A file has one key on each line, plain or hashed
    (gateway/api_keys.py); empty lines and lines that begin with # are skipped.

    Raises:
        ConfigError: a key is empty or cannot be in a header, a hashed one is invalid or is there
            twice with other limits, or a file has no keys
    """
    found: dict[bytes, ApiKey] = {}
    for key in [*map(plain_key, keys), *(key for file in files for key in _in_file(file))]:
        if found.setdefault(key.digest, key) != key:
            raise ConfigError(
                "--api-key-file: one key is there twice, with other names or limits"
                f"{' of ' + key.name if key.name else ''}; leave one of its lines out"
            )
    return tuple(found.values())


def _in_file(file: str) -> list[ApiKey]:
    try:
        lines = [line.strip() for line in Path(file).read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {file}: cannot be read: {error}") from error
    keys = []
    for number, line in enumerate(lines, start=1):
        if line and not line.startswith("#"):
            try:
                keys.append(hashed_key(line) if line.startswith(HASHED) else plain_key(line))
            except ConfigError as error:
                raise ConfigError(f"--api-key-file {file}, line {number}: {error}") from error
    if not keys:
        raise ConfigError(f"--api-key-file {file}: it holds no key; write one on each line")
    return keys


def draw_key() -> str:
    """Return a new key: 256 random bits."""
    return "sk-baton-" + secrets.token_urlsafe(32)


def make_key(
    key: str, *, name: str, max_concurrent: int | None, requests_per_minute: int | None
) -> ApiKey:
    """Return a key as a file holds it, hashed.

    Raises:
        ConfigError: it is too short to be hidden by its hash or no header can carry it, or a name
            or a limit cannot work
    """
    digest = plain_key(key).digest
    if len(key) < MIN_HASHED_CHARS:
        raise ConfigError(
            f"the key has {len(key)} characters; a key of fewer than {MIN_HASHED_CHARS} could be "
            "guessed from its hash: take one that `baton secret api-key` draws"
        )
    return ApiKey(
        digest=digest,
        name=name,
        max_concurrent=max_concurrent,
        requests_per_minute=requests_per_minute,
    )


def open_to_all(host: str, keys: Sequence[ApiKey]) -> str | None:
    """Return a warning if everybody who reaches this host may use the service, else None."""
    if keys or on_loopback(host):
        return None
    return (
        f"HTTP listens on {host} without an API key: whoever reaches it can use it; set "
        "--api-key-file"
    )


def on_loopback(host: str) -> bool:
    """Whether only this machine reaches a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
