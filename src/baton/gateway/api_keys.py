"""API keys as a gateway holds them: hashed, with the limits of their holders.

    sha256:9f86d08...0a08 name=alice max_concurrent=4 requests_per_minute=60

A key of `baton secret api-key` has 256 random bits, so that a plain SHA-256 is as good as a slow
hash: there is no dictionary to try.
"""

import re
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from baton.core.errors import ConfigError

HASHED = "sha256:"
HOLDER = "baton.api_key"  # in an ASGI scope: the ApiKey with which a request came
MIN_HASHED_CHARS = 32  # a shorter key might be a word, which its hash would not hide
MOST_AT_ONCE, MOST_PER_MINUTE = 100_000, 100_000
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_DIGEST = re.compile(r"[0-9a-fA-F]{64}")


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """One key.

    Attributes:
        digest: its SHA-256, 32 bytes
        name: what logs and refusals call its holder; empty = it has no name
        max_concurrent: requests that may be open at once at one gateway; None = any number
        requests_per_minute: requests that one gateway accepts in any 60 s; None = any number
    """

    digest: bytes
    name: str = ""
    max_concurrent: int | None = None
    requests_per_minute: int | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError for a name or a limit that cannot work."""
        if self.name and not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"the name of an API key is {self.name[:80]!r}; a name is 1 to 64 letters, digits, "
                "dots, dashes and underscores"
            )
        for field, most in (
            ("max_concurrent", MOST_AT_ONCE),
            ("requests_per_minute", MOST_PER_MINUTE),
        ):
            value = getattr(self, field)
            if value is not None and not 1 <= value <= most:
                raise ConfigError(
                    f"{field} of an API key is {value}; it must lie between 1 and {most}, or be "
                    "left out for no limit"
                )

    @property
    def line(self) -> str:
        """The line of a file of keys that holds it."""
        fields = {
            "name": self.name or None,
            "max_concurrent": self.max_concurrent,
            "requests_per_minute": self.requests_per_minute,
        }
        said = [f"{field}={value}" for field, value in fields.items() if value is not None]
        return " ".join([HASHED + self.digest.hex(), *said])


def plain_key(key: str) -> ApiKey:
    """Return a key without limits.

    Raises:
        ConfigError: no header can carry it; the message does not show it
    """
    if not key or not key.isascii() or not key.isprintable() or key != key.strip():
        raise ConfigError(
            "--api-key: a key is one or more printable ASCII characters, without spaces around it"
        )
    return ApiKey(digest=sha256(key.encode()).digest())


def hashed_key(line: str) -> ApiKey:
    """Read the line of a file that begins with `sha256:`.

    Raises:
        ConfigError: it is not a hash with fields that are known; the message does not show the hash
    """
    digest, _, rest = line.removeprefix(HASHED).partition(" ")
    if not _DIGEST.fullmatch(digest):
        raise ConfigError(
            f"after {HASHED} come 64 hex digits, here are {len(digest)} characters; "
            "`baton secret api-key` prints such a line"
        )
    given: dict[str, str] = {}
    for word in rest.split():
        field, equals, value = word.partition("=")
        if not equals or field not in ("name", "max_concurrent", "requests_per_minute"):
            raise ConfigError(
                f"{word[:40]!r} is not one of name=, max_concurrent= and requests_per_minute="
            )
        if field in given:
            raise ConfigError(f"{field}= is there twice")
        if not value or (field != "name" and not (value.isascii() and value.isdigit())):
            raise ConfigError(
                f"{word[:40]!r} must have a {'name' if field == 'name' else 'number'}"
            )
        given[field] = value[:80]
    limits = {field: int(value) for field, value in given.items() if field != "name"}
    return ApiKey(digest=bytes.fromhex(digest), name=given.get("name", ""), **limits)


def logged_holder(scope: Mapping[str, Any]) -> dict[str, str]:
    """Return the field of a log line that names who sent a request, if its key has a name."""
    key: ApiKey | None = scope.get(HOLDER)
    return {"client": key.name} if key is not None and key.name else {}
