"""Makes a pool in any kind of memory."""

from baton.adapters.cuda_driver import load_cuda
from baton.adapters.cuda_memory import CudaPool
from baton.adapters.memory import HostPool
from baton.core.memory.kinds import CudaMemory, HostRam, MemoryKind


def make_pool(memory: MemoryKind, nbytes: int, *, what: str = "a pool") -> HostPool | CudaPool:
    """Make a pool, initially zero.

    Raises:
        ConfigError: there is no such memory, or too little
    """
    match memory:
        case HostRam():
            return HostPool(nbytes, what=what)
        case CudaMemory(device=device):
            return CudaPool(load_cuda(), nbytes, device=device, what=what)
