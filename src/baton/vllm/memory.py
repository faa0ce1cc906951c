"""The memory of vLLM's KV cache on one rank: as a pool for fabrics, and how it is sealed there.

    vLLM's step ──fence()──▶ the sealing thread waits for it ──sums──▶ host

On a device vLLM's step goes on after the hook that ends it has returned. So what a step has written
may be sealed, and then offered, only when the step's fence has passed.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from baton.adapters.cuda_driver import load_cuda
from baton.adapters.cuda_memory import require_plain_allocation
from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.memory.kinds import HOST, CudaMemory, MemoryKind
from baton.core.memory.state import Placement
from baton.engine import digest
from baton.vllm.seal_queue import Fence, passed

# From places in the pool and numbers of blocks, both int64 [blocks], to sums, uint64 [blocks,
# units].
Sums = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.uint64]]


class BorrowedPool:
    """Implements ports.fabric.Pool over memory that vLLM has allocated.

    Args:
        whole: uint8 [bytes], contiguous
    """

    fd = None

    def __init__(self, whole: torch.Tensor, memory: MemoryKind) -> None:
        self._whole, self._memory = whole, memory

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        return self._whole.numel()

    @property
    def memory(self) -> MemoryKind:
        """The kind of memory."""
        return self._memory

    @property
    def address(self) -> int:
        """The start address in this process."""
        return self._whole.data_ptr()


class KVMemory(Protocol):
    """The memory of a KV cache."""

    pool: BorrowedPool

    def fence(self) -> Fence:
        """Return what waits for the step that vLLM has begun last. Called on vLLM's thread."""
        ...

    def sums(self, placement: Placement, group: GroupName, identity: int) -> Sums:
        """Return what computes the sums of blocks. Called on a thread of ours."""
        ...


class CacheOnHost:
    """Memory of the host: a step has ended when its hook is called."""

    def __init__(self, whole: torch.Tensor) -> None:
        self.pool, self._array = BorrowedPool(whole, HOST), whole.numpy()

    def fence(self) -> Fence:
        return passed

    def sums(self, placement: Placement, group: GroupName, identity: int) -> Sums:
        return lambda slots, numbers: digest.block_sums(
            self._array, placement, group, slots, numbers, identity
        )


class CacheOnDevice:
    """Memory of a CUDA device. Sums are computed there, on a stream of their own.

    Raises:
        ConfigError: other processes could not read it, or Triton is not installed
    """

    def __init__(self, whole: torch.Tensor) -> None:
        from baton.engine.cuda.seal import block_sums

        self._block_sums, self._whole = block_sums, whole
        index = whole.device.index
        # the driver says it of this memory, so PyTorch's variables need not be read
        require_plain_allocation(load_cuda(), whole.data_ptr(), device=index, environ={})
        self.pool = BorrowedPool(whole, CudaMemory(index))
        self._stream = torch.cuda.Stream(whole.device)  # type: ignore[no-untyped-call]

    def fence(self) -> Fence:
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._whole.device))
        return event.synchronize

    def sums(self, placement: Placement, group: GroupName, identity: int) -> Sums:
        def of(slots: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
            with torch.cuda.stream(self._stream):
                found = self._block_sums(self._whole, placement, group, slots, numbers, identity)
                return np.asarray(found.cpu().numpy(), dtype=np.uint64)

        first = np.zeros(1, dtype=np.int64)
        of(first, first)  # compiles the kernel: over a second that the first request need not wait
        return of


MEMORIES: Mapping[str, Callable[[torch.Tensor], KVMemory]] = MappingProxyType(
    {"cpu": CacheOnHost, "cuda": CacheOnDevice}
)


def memory_of(cache: torch.Tensor) -> KVMemory:
    """Return the memory in which a layer's part of the KV cache lies, all of it.

    Raises:
        ConfigError: it is on a device of another kind, or other processes could not read it
    """
    kind = cache.device.type
    if kind not in MEMORIES:
        raise ConfigError(
            f"a KV cache on {cache.device} is not supported, only on {' and '.join(MEMORIES)}"
        )
    whole = torch.empty(0, dtype=torch.uint8, device=cache.device).set_(cache.untyped_storage())
    return MEMORIES[kind](whole)
