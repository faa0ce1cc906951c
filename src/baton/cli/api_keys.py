"""Reads API keys from the command line, or from files, where `ps` does not show them."""

from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from baton.core.errors import ConfigError


def read_keys(keys: Sequence[str], files: Sequence[str]) -> tuple[str, ...]:
    """Return all keys without duplicates. A file has one key on each line; empty lines and lines
    that begin with # are skipped.

    Raises:
        ConfigError: a key is empty or cannot be in a header, or a file has no keys
    """
    found = list(keys)
    for file in files:
        found += _in_file(file)
    for key in found:
        if not key or not key.isascii() or not key.isprintable() or key != key.strip():
            raise ConfigError(
                "--api-key: a key is one or more printable ASCII characters, "
                "without spaces around it"
            )
    return tuple(dict.fromkeys(found))


def _in_file(file: str) -> list[str]:
    try:
        lines = [line.strip() for line in Path(file).read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--api-key-file {file}: cannot be read: {error}") from error
    keys = [line for line in lines if line and not line.startswith("#")]
    if not keys:
        raise ConfigError(f"--api-key-file {file}: it holds no key; write one on each line")
    return keys


def open_to_all(host: str, keys: Sequence[str]) -> str | None:
    """Return a warning if everybody who reaches this host may use the service, else None."""
    if keys or _is_loopback(host):
        return None
    return (
        f"HTTP listens on {host} without an API key: whoever reaches it can use it; set "
        "--api-key-file"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
