"""Runs a kernel on the threads that torch already keeps.

A second pool of threads beside torch's would spin against it at every barrier. torch's OpenMP runtime keeps its threads
per calling thread, so a region opened here from the compute thread is served by the very threads of its matrix products.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path

import numba
import torch
from numba.core import types

from baton.core.state import DType
from baton.engine.kernels.machine import STORED

Job = ctypes.Array[ctypes.c_int64]
Kernel = Callable[..., None]


class Compiled:
    """A kernel for one stored type. Field 0 of its job is the counter from which its threads take their items."""

    def __init__(self, kernel: Kernel, stored: DType) -> None:
        signature = types.void(types.CPointer(STORED[stored]))
        made = numba.cfunc(signature, cache=True, error_model="numpy")(kernel)
        self._kept = made  # owns the machine code
        self.address: int = made.address
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)

    def alone(self, job: Job) -> None:
        """Run on the calling thread, without the interpreter's lock."""
        job[0] = 0
        self._call(ctypes.addressof(job))


class Team:
    """The calling thread and the threads that torch's matrix products use."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        library = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
        self._parallel = _parallel_of(library) if threads > 1 and library.is_file() else None

    def run(self, kernel: Compiled, job: Job) -> None:
        """Run on all threads; returns when all have ended. Where torch brings another OpenMP runtime, on this thread only."""
        if self._parallel is None:
            return kernel.alone(job)
        job[0] = 0
        self._parallel(kernel.address, ctypes.addressof(job), self.threads, 0)


def _parallel_of(library: Path) -> Callable[[int, int, int, int], None]:
    parallel = ctypes.CDLL(str(library)).GOMP_parallel
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return parallel  # type: ignore[no-any-return]
