"""Host memory for pools: anonymous memory files that peers can map read-only and cannot shrink.

A pool is one memfd. It is populated at once, because the first touch of a page costs 20 times a
later one. After our own writable mapping is made, the file is sealed (F_ADD_SEALS): a process with
the descriptor can neither resize it, which would kill readers with SIGBUS, nor write to it.
"""

import ctypes
import fcntl
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import ConfigError
from baton.core.memory.kinds import HOST, HostRam

F_SEAL_FUTURE_WRITE = 0x0010  # linux/fcntl.h, Linux 5.1; not in Python's fcntl module
MADV_POPULATE_READ = 22  # asm-generic/mman-common.h
_madvise = ctypes.CDLL(None).madvise  # mmap.madvise holds the GIL: a second for some gigabytes
_madvise.argtypes = (ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int)
POOL_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | F_SEAL_FUTURE_WRITE | fcntl.F_SEAL_SEAL


class HostPool:
    """Implements ports.fabric.Pool: one group's memory on one rank, in host memory, initially zero.

    Raises:
        ConfigError: there is not enough memory (checked before any is taken), or the kernel has no
            sealed memory files
    """

    def __init__(self, nbytes: int, *, what: str = "a pool") -> None:
        require_memory(nbytes, what)
        self._nbytes = nbytes
        self._fd = os.memfd_create("baton-pool", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self._fd, nbytes)
            self._map = mmap.mmap(self._fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, POOL_SEALS)
        except OSError as error:
            os.close(self._fd)
            raise ConfigError(
                f"{what}: a sealed memory file of {nbytes} bytes cannot be made ({error})"
            ) from error
        self._array: NDArray[np.uint8] | None = np.frombuffer(self._map, dtype=np.uint8)
        self._address = int(self._array.ctypes.data)

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._nbytes

    @property
    def memory(self) -> HostRam:
        """Host memory."""
        return HOST

    @property
    def address(self) -> int:
        """Start address in this process; aligned to a memory page."""
        return self._address

    @property
    def fd(self) -> int:
        """Descriptor of the memory file; owned by this object."""
        return self._fd

    @property
    def array(self) -> NDArray[np.uint8]:
        """uint8 [nbytes], writable. Views of it keep the mapping alive beyond `close`."""
        if self._array is None:
            raise ValueError("the pool is closed")
        return self._array

    def fill(self, data: NDArray[np.uint8], *, at: int = 0) -> None:
        """Write uint8 [n] from an offset on."""
        self.array[at : at + data.nbytes] = data

    def contents(self) -> NDArray[np.uint8]:
        """Return a copy, uint8 [nbytes]."""
        return self.array.copy()

    def close(self) -> None:
        """Free the memory; may be called twice. If views
        are alive, the mapping goes with the last one."""
        if self._array is None:
            return
        self._array = None
        os.close(self._fd)
        try:
            self._map.close()
        except BufferError:
            del self._map  # a live view keeps it: unmapping under a view would crash its next read


def populate_read(address: int, nbytes: int) -> None:
    """Create page table entries for mapped memory, with the GIL released, to make first reads
    faster.

    Has no effect on kernels before 5.14.
    """
    _madvise(address, nbytes, MADV_POPULATE_READ)


def require_memory(nbytes: int, what: str) -> None:
    """Refuse an allocation that cannot succeed, before it is made.

    Raises:
        ConfigError: there is too little memory; the message names both sizes and the remedy
    """
    if nbytes <= 0:
        raise ConfigError(f"{what}: needs a positive number of bytes, not {nbytes}")
    there = available_bytes()
    if nbytes > there:
        raise ConfigError(
            f"{what} needs {nbytes} bytes ({nbytes / 2**30:.2f} GiB) of host memory, but only "
            f"{there} ({there / 2**30:.2f} GiB) "
            "are available to this process: give it fewer pages, or the machine (or its "
            "cgroup) more memory"
        )


def available_bytes(root: Path = Path("/")) -> int:
    """Return the bytes of host memory that this process may still take.

    This is what the machine has left, or less if a cgroup limits the process. `root` is the
    directory of proc/ and sys/.
    """
    left = [_meminfo(root)]
    for version, group in _memory_groups(root):
        left.extend(_cgroup_left(version, group))
    return max(0, min(left))


def _meminfo(root: Path) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise ConfigError("/proc/meminfo does not state MemAvailable")


def _memory_groups(root: Path) -> Iterator[tuple[int, Path]]:
    """Yield (cgroup version, folder) of our memory cgroup and of its visible parents."""
    listing = root / "proc/self/cgroup"
    if not listing.exists():
        return
    for line in listing.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        version, top = (
            (1, root / "sys/fs/cgroup/memory") if controllers else (2, root / "sys/fs/cgroup")
        )
        group = top / path.lstrip("/")
        while group != top.parent:
            yield version, group
            group = group.parent


def _cgroup_left(version: int, group: Path) -> Iterator[int]:
    """Yield the bytes that a cgroup leaves free, or nothing if it has no limit.

    File cache that can be dropped at once counts as free.
    """
    limit_file, used_file, cache_key = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }[version]
    if not (group / limit_file).is_file() or not (group / used_file).is_file():
        return
    limit = (group / limit_file).read_text().strip()
    if limit == "max":
        return
    used = int((group / used_file).read_text())
    stat = dict(line.split(maxsplit=1) for line in (group / "memory.stat").read_text().splitlines())
    yield int(limit) - used + int(stat.get(cache_key, 0))
