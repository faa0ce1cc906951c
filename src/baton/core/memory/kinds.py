"""The kinds of memory that pools lie in. A reader has to know which it reads from, and only some
fabrics reach a device."""

from typing import Annotated

import msgspec


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
