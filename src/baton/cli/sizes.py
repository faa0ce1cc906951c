"""Byte sizes as people write them."""

import re

from baton.core.errors import ConfigError

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}
SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?I?)B?\s*", re.ASCII)


def parse_size(text: str, *, what: str) -> int:
    """Bytes of e.g. "2GiB", "512 MiB", "1.5G" or "1048576".

    Raises:
        ConfigError: not a size, or less than a byte
    """
    found = SIZE.fullmatch(text.upper())
    unit = UNITS.get(found.group(2)) if found else None
    size = int(float(found.group(1)) * unit) if found and unit else 0
    if size < 1:
        raise ConfigError(f"{what}: {text!r} is not a size; write for example 2GiB, 512MiB or 1000000")
    return size


def show_size(nbytes: int) -> str:
    """The same for people: three digits and a binary unit."""
    size = float(nbytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TiB"
