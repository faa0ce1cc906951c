"""Runs a kernel on the threads of torch's own pool.

A second pool beside torch's would spin against it at every barrier. torch's OpenMP runtime has a
pool for each calling thread, so a region opened here from the compute thread runs on the same
threads as its matrix products. GOMP_parallel is part of libgomp's stable interface for compilers.
If torch comes with another runtime, kernels run on one thread.
"""

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import numba
import torch
from numba.core import types

from baton.core.memory.state import DType
from baton.engine.kernels.job import Job
from baton.engine.kernels.machine import STORED, pointer_to

Kernel = Callable[..., None]


J = TypeVar("J", bound=Job)


class Task(Generic[J]):
    """A kernel for one stored type, with its job."""

    def __init__(self, kernel: Kernel, stored: DType, job: type[J]) -> None:
        signature = types.void(pointer_to(STORED[stored]))
        # keeps the machine code alive
        self._kept = numba.cfunc(signature, cache=True, error_model="numpy")(kernel)
        address: Any = self._kept.address
        self.address = int(address)
        self.job = job()
        self.job_address = ctypes.addressof(self.job)
        self._call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address)

    def alone(self) -> None:
        """Run on the calling thread, without the GIL."""
        self.job.next_item = 0
        self._call(self.job_address)


class Team:
    """The calling thread and the threads that torch's matrix products use."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        library = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
        self._parallel = _parallel_of(library) if threads > 1 and library.is_file() else None

    def run(self, task: Task[Any]) -> None:
        """Run on all threads, and return when all have ended.

        If torch comes with another OpenMP runtime, run on this thread only.
        """
        if self._parallel is None:
            return task.alone()
        task.job.next_item = 0
        self._parallel(task.address, task.job_address, self.threads, 0)


def _parallel_of(library: Path) -> Callable[[int, int, int, int], None]:
    parallel = ctypes.CDLL(str(library)).GOMP_parallel
    parallel.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    parallel.restype = None
    return parallel


NO_TEAM = Team(1)  # the calling thread only
