"""The few calls of the CUDA driver that pools on a device need, typed. Nothing is loaded before
`load_cuda` is called.

The driver is called rather than the runtime library, because it is in one place under one name on
every machine with a GPU. Both share the primary context of a device, so PyTorch may use a pool.
"""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from baton.core.errors import ConfigError

LIBRARY = "libcuda.so.1"
DEVICE_ORDINAL, IS_LEGACY_CUDA_IPC_CAPABLE = 9, 10  # CUpointer_attribute, cuda.h
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuInit": (ctypes.c_uint,),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
    "cuDeviceGetCount": (ctypes.POINTER(ctypes.c_int),),
    "cuDeviceGet": (ctypes.POINTER(ctypes.c_int), ctypes.c_int),
    "cuDevicePrimaryCtxRetain": (ctypes.POINTER(ctypes.c_void_p), ctypes.c_int),
    "cuDevicePrimaryCtxRelease_v2": (ctypes.c_int,),
    "cuCtxSetCurrent": (ctypes.c_void_p,),
    "cuCtxPushCurrent_v2": (ctypes.c_void_p,),
    "cuCtxPopCurrent_v2": (ctypes.POINTER(ctypes.c_void_p),),
    "cuCtxSynchronize": (),
    "cuMemGetInfo_v2": (ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)),
    "cuMemAlloc_v2": (ctypes.POINTER(ctypes.c_uint64), ctypes.c_size_t),
    "cuMemFree_v2": (ctypes.c_uint64,),
    "cuMemsetD8_v2": (ctypes.c_uint64, ctypes.c_ubyte, ctypes.c_size_t),
    "cuMemcpyHtoD_v2": (ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t),
    "cuMemcpyDtoH_v2": (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t),
    "cuPointerGetAttribute": (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64),
}


class CudaDriver:
    """The driver, initialised.

    Raises:
        ConfigError: the driver does not start, for example because there is no device
    """

    def __init__(self, library: Any) -> None:
        self._library = library
        for name, arguments in _SIGNATURES.items():
            getattr(library, name).argtypes = arguments
        self.call("cuInit", 0)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the driver.

        Raises:
            ConfigError: it fails; the message has its name and that of the error
        """
        status = getattr(self._library, name)(*arguments)
        if status:
            said = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(said))
            raise ConfigError(f"CUDA: {name}: {(said.value or b'an unknown error').decode()}")

    @property
    def device_count(self) -> int:
        """The number of devices that this process may use (CUDA_VISIBLE_DEVICES)."""
        count = ctypes.c_int()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        return count.value


class CudaDevice:
    """One device, with its primary context for as long as this object is not closed.

    Raises:
        ConfigError: there is no such device, or it does not start
    """

    def __init__(self, driver: CudaDriver, index: int) -> None:
        count = driver.device_count
        if not 0 <= index < count:
            raise ConfigError(
                f"cuda:{index} does not exist: this process sees {count} devices (see "
                "CUDA_VISIBLE_DEVICES)"
            )
        self.index, self._driver = index, driver
        self._id, self._context = ctypes.c_int(), ctypes.c_void_p()
        driver.call("cuDeviceGet", ctypes.byref(self._id), index)
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._id)

    @property
    def free_bytes(self) -> int:
        """The memory of the device that nobody has taken."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def allocate(self, nbytes: int) -> int:
        """Allocate memory in one piece, which can be exported; returns its address."""
        address = ctypes.c_uint64()
        self._call("cuMemAlloc_v2", ctypes.byref(address), nbytes)
        return address.value

    def free(self, address: int) -> None:
        """Free what was allocated."""
        self._call("cuMemFree_v2", address)

    def zero(self, address: int, nbytes: int) -> None:
        """Zero memory; it is zero when this returns."""
        with self._current():
            self._driver.call("cuMemsetD8_v2", address, 0, nbytes)
            self._driver.call("cuCtxSynchronize")

    def write(self, address: int, host: int, nbytes: int) -> None:
        """Copy from host memory; it has been copied when this returns."""
        with self._current():
            self._driver.call("cuMemcpyHtoD_v2", address, host, nbytes)
            self._driver.call("cuCtxSynchronize")

    def read(self, host: int, address: int, nbytes: int) -> None:
        """Copy into host memory; it has been copied when this returns."""
        self._call("cuMemcpyDtoH_v2", host, address, nbytes)

    def is_exportable(self, address: int) -> bool:
        """Return whether other processes may map the memory at an address (CUDA IPC)."""
        return bool(self._attribute(IS_LEGACY_CUDA_IPC_CAPABLE, address))

    def require_own(self, address: int) -> None:
        """Check that memory is on this device.

        Raises:
            ConfigError: it is the host's, or on another device
        """
        try:
            owner = self._attribute(DEVICE_ORDINAL, address)
        except ConfigError as error:
            raise ConfigError(
                f"the memory at {address:#x} is not on cuda:{self.index}: {error}"
            ) from error
        if owner != self.index:
            raise ConfigError(f"the memory at {address:#x} is on cuda:{owner}, not {self.index}")

    def enter(self) -> None:
        """Make this device's context that of the calling thread, from now on."""
        self._driver.call("cuCtxSetCurrent", self._context)

    def close(self) -> None:
        """Let go of the context. Memory of this process on the device may go with it."""
        self._driver.call("cuDevicePrimaryCtxRelease_v2", self._id)

    def _attribute(self, attribute: int, address: int) -> int:
        found = ctypes.c_int()
        self._call("cuPointerGetAttribute", ctypes.byref(found), attribute, address)
        return found.value

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make this device's context the thread's, and restore the thread's own afterwards."""
        self._driver.call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._driver.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: Any) -> None:
        with self._current():
            self._driver.call(name, *arguments)


def load_cuda() -> CudaDriver:
    """Load the driver.

    Raises:
        ConfigError: there is none on this machine, or it does not start
    """
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise ConfigError(f"CUDA: no driver on this machine: {error}") from error
    return CudaDriver(library)
