"""The kinds of memory that pools lie in. A reader has to know which it reads from, and only some
fabrics reach a device."""

import re
from typing import Annotated

import msgspec

from baton.core.errors import ConfigError


class HostRam(msgspec.Struct, frozen=True, tag="host", forbid_unknown_fields=True):
    """Memory of the host."""

    def __str__(self) -> str:
        return "host memory"


class CudaMemory(msgspec.Struct, frozen=True, tag="cuda", forbid_unknown_fields=True):
    """Memory of a CUDA device. `device` is its index in the process that owns the pool."""

    device: Annotated[int, msgspec.Meta(ge=0)]

    def __str__(self) -> str:
        return f"cuda:{self.device}"


MemoryKind = HostRam | CudaMemory
HOST = HostRam()
_NAME = re.compile(r"cuda(?::(\d+))?")


def memory_named(name: str) -> MemoryKind:
    """Return the memory that people name so: `host`, `cuda` (the first device) or `cuda:N`.

    Raises:
        ConfigError: there is no such kind
    """
    if name == "host":
        return HOST
    if found := _NAME.fullmatch(name):
        return CudaMemory(int(found[1] or 0))
    raise ConfigError(f"{name!r} names no memory: say host, or cuda:N for a device")
