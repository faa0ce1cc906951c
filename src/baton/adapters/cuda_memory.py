"""Pools in the memory of a CUDA device.

A pool is one allocation of the driver (cuMemAlloc, which cudaMalloc calls too), because only such
memory can be mapped by other processes (cuIpcGetMemHandle) and registered by every engine. PyTorch
with expandable segments maps its memory piecewise instead. NIXL registers that all the same and
then reads it over TCP, hundreds of times slower (github.com/ai-dynamo/nixl/issues/1754); Mooncake
cannot register it (github.com/kvcache-ai/Mooncake/issues/2511).
"""

from collections.abc import Mapping
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from baton.adapters.cuda_driver import CudaDevice, CudaDriver
from baton.core.errors import ConfigError
from baton.core.memory.kinds import CudaMemory

# PyTorch's own variables, the second one the older; each is a list of KEY:VALUE
ALLOCATOR_SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
EXPANDABLE = "expandable_segments:true"


class CudaPool:
    """Implements ports.fabric.Pool: one group's memory on one rank, on a device, initially zero.

    Raises:
        ConfigError: there is no such device, or not enough memory (checked before any is taken)
    """

    def __init__(
        self, driver: CudaDriver, nbytes: int, *, device: int, what: str = "a pool"
    ) -> None:
        self._nbytes, self._memory = nbytes, CudaMemory(device)
        owner = CudaDevice(driver, device)
        with ExitStack() as undo:
            undo.callback(owner.close)
            _require_free(owner, nbytes, what)
            self._address = owner.allocate(nbytes)
            undo.callback(owner.free, self._address)
            owner.zero(self._address, nbytes)
            undo.pop_all()
        self._device: CudaDevice | None = owner

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._nbytes

    @property
    def memory(self) -> CudaMemory:
        """The device."""
        return self._memory

    @property
    def address(self) -> int:
        """Start address on the device."""
        return self._address

    @property
    def fd(self) -> None:
        """None: there is no memory file."""
        return None

    def fill(self, data: NDArray[np.uint8], *, at: int = 0) -> None:
        """Write uint8 [n], from the host, from an offset on; the bytes are there when this
        returns."""
        assert at + data.nbytes <= self._nbytes, f"{data.nbytes} bytes at {at} of {self._nbytes}"
        whole = np.ascontiguousarray(data)
        self._open().write(self._address + at, int(whole.ctypes.data), whole.nbytes)

    def contents(self) -> NDArray[np.uint8]:
        """Return a copy on the host, uint8 [nbytes]."""
        found = np.empty(self._nbytes, np.uint8)
        self._open().read(int(found.ctypes.data), self._address, self._nbytes)
        return found

    def close(self) -> None:
        """Free the memory, which no fabric may expose any more; may be called twice."""
        if self._device is not None:
            device, self._device = self._device, None
            device.free(self._address)
            device.close()

    def _open(self) -> CudaDevice:
        if self._device is None:
            raise ValueError("the pool is closed")
        return self._device


def require_plain_allocation(
    driver: CudaDriver, address: int, *, device: int, environ: Mapping[str, str]
) -> None:
    """Refuse, as a pool, memory of PyTorch's that other processes could not map.

    Raises:
        ConfigError: it is from an expandable segment, or cannot be exported for another reason
    """
    for name in ALLOCATOR_SETTINGS:
        if EXPANDABLE in environ.get(name, "").lower().replace(" ", ""):
            raise ConfigError(
                f"a pool that PyTorch allocates on cuda:{device} cannot be read by other "
                f"processes while {name} has expandable_segments:True: remove it from {name}"
            )
    owner = CudaDevice(driver, device)
    try:
        if not owner.is_exportable(address):
            raise ConfigError(
                f"the pool at {address:#x} on cuda:{device} cannot be exported to other processes "
                "(CUDA IPC): it must come from cudaMalloc, not from cudaMallocAsync or "
                "PyTorch's expandable segments"
            )
    finally:
        owner.close()


def _require_free(device: CudaDevice, nbytes: int, what: str) -> None:
    if nbytes <= 0:
        raise ConfigError(f"{what}: needs a positive number of bytes, not {nbytes}")
    there = device.free_bytes
    if nbytes > there:
        raise ConfigError(
            f"{what} needs {nbytes} bytes ({nbytes / 2**30:.2f} GiB) of cuda:{device.index}, but "
            f"only {there} ({there / 2**30:.2f} GiB) are free: give it fewer pages, or end what "
            "else uses the device"
        )
