"""Pools on a device, over a driver that keeps books instead of memory. Nothing here needs a GPU,
and nothing here shows that a GPU would agree."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from baton.adapters import agent_fabric, cuda_driver
from baton.adapters.agent_fabric import AgentFabric, TransferEngine
from baton.adapters.clock import MonotonicClock
from baton.adapters.cuda_driver import (
    DEVICE_ORDINAL,
    IS_LEGACY_CUDA_IPC_CAPABLE,
    CudaDriver,
    load_cuda,
)
from baton.adapters.cuda_memory import CudaPool, require_plain_allocation
from baton.adapters.memory import HostPool
from baton.adapters.reads import Region
from baton.core.errors import ConfigError
from baton.core.ids import Boot, GroupName
from baton.core.memory.kinds import CudaMemory
from baton.dev.contract.memories import ClaimedPool
from baton.ports.fabric import Capabilities

INVALID_VALUE, OUT_OF_MEMORY, INVALID_CONTEXT = 1, 2, 201
NAMES = {
    INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE",
    OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    INVALID_CONTEXT: b"CUDA_ERROR_INVALID_CONTEXT",
}
MIB = 1 << 20
Call = Callable[..., int]


class ScriptedLibrary:
    """libcuda: device i has the context 100 + i. Memory of the host stands in for the device's."""

    def __init__(self, *, devices: int = 2, free: int = 8 * MIB, exportable: bool = True) -> None:
        self.devices, self.free, self.exportable = devices, free, exportable
        self.contexts: list[int] = []  # of the thread, the current one last
        self.retained: list[int] = []
        self.memory: dict[int, tuple[int, Any]] = {}  # by address: the context, and the bytes
        self.fails: dict[str, int] = {}

    def __getattr__(self, name: str) -> Call:
        def call(*arguments: Any) -> int:
            return self.fails.get(name) or int(getattr(self, f"_{name}")(*arguments) or 0)

        self.__dict__[name] = call
        return call

    def _cuInit(self, _: int) -> None: ...

    def _cuGetErrorName(self, status: int, out: Any) -> None:
        out._obj.value = NAMES[status]

    def _cuDeviceGetCount(self, out: Any) -> None:
        out._obj.value = self.devices

    def _cuDeviceGet(self, out: Any, index: int) -> None:
        out._obj.value = index

    def _cuDevicePrimaryCtxRetain(self, out: Any, device: Any) -> None:
        out._obj.value = 100 + device.value
        self.retained.append(device.value)

    def _cuDevicePrimaryCtxRelease_v2(self, device: Any) -> None:
        self.retained.remove(device.value)

    def _cuCtxSetCurrent(self, context: Any) -> None:
        self.contexts[-1:] = [context.value]

    def _cuCtxPushCurrent_v2(self, context: Any) -> None:
        self.contexts.append(context.value)

    def _cuCtxPopCurrent_v2(self, _: Any) -> None:
        self.contexts.pop()

    def _cuCtxSynchronize(self) -> int:
        return 0 if self.contexts else INVALID_CONTEXT

    def _cuMemGetInfo_v2(self, free: Any, total: Any) -> None:
        free._obj.value, total._obj.value = self.free, 2 * self.free

    def _cuMemAlloc_v2(self, out: Any, nbytes: int) -> int:
        if nbytes > self.free:
            return OUT_OF_MEMORY
        held = (ctypes.c_ubyte * nbytes)(*([0xEE] * nbytes))
        out._obj.value = ctypes.addressof(held)
        self.memory[out._obj.value] = (self.contexts[-1], held)
        return 0

    def _cuMemFree_v2(self, address: int) -> None:
        del self.memory[address]

    def _cuMemsetD8_v2(self, address: int, value: int, nbytes: int) -> int:
        return self._move(address, lambda: ctypes.memset(address, value, nbytes))

    def _cuMemcpyHtoD_v2(self, address: int, host: int, nbytes: int) -> int:
        return self._move(address, lambda: ctypes.memmove(address, host, nbytes))

    def _cuMemcpyDtoH_v2(self, host: int, address: int, nbytes: int) -> int:
        return self._move(address, lambda: ctypes.memmove(host, address, nbytes))

    def _move(self, address: int, how: Callable[[], object]) -> int:
        begin = max(start for start in self.memory if start <= address)
        if not self.contexts or self.memory[begin][0] != self.contexts[-1]:
            return INVALID_CONTEXT
        how()
        return 0

    def _cuPointerGetAttribute(self, out: Any, attribute: int, address: int) -> int:
        if attribute == IS_LEGACY_CUDA_IPC_CAPABLE:
            out._obj.value = int(self.exportable)
            return 0
        assert attribute == DEVICE_ORDINAL
        if address not in self.memory:
            return INVALID_VALUE
        out._obj.value = self.memory[address][0] - 100
        return 0


def test_a_pool_is_zero_and_keeps_what_is_written() -> None:
    library = ScriptedLibrary()
    pool = CudaPool(CudaDriver(library), 4096, device=1)
    assert (pool.nbytes, pool.memory, pool.fd) == (4096, CudaMemory(1), None)
    assert library.memory[pool.address][0] == 101
    assert not pool.contents().any()
    data = np.arange(8192, dtype=np.uint8)[::2]  # with gaps on the host
    pool.fill(data)
    assert np.array_equal(pool.contents(), data)
    pool.fill(np.full(96, 7, np.uint8), at=4000)
    assert np.array_equal(pool.contents(), np.concatenate((data[:4000], [7] * 96)))
    pool.close()


def test_nothing_is_left_of_a_pool_that_is_closed() -> None:
    library = ScriptedLibrary()
    pool = CudaPool(CudaDriver(library), 4096, device=0)
    pool.close()
    pool.close()
    assert (library.memory, library.retained, library.contexts) == ({}, [], [])
    with pytest.raises(ValueError, match="closed"):
        pool.contents()


def test_a_pool_that_does_not_fit_is_refused_before_it_is_allocated() -> None:
    library = ScriptedLibrary(free=MIB)
    library.fails["cuMemAlloc_v2"] = INVALID_CONTEXT  # must not be called
    with pytest.raises(ConfigError, match=r"the pool needs 2097152 .* cuda:0, but only 1048576 "):
        CudaPool(CudaDriver(library), 2 * MIB, device=0, what="the pool")
    assert library.retained == []


@pytest.mark.parametrize("nbytes", [0, -1])
def test_a_pool_of_no_bytes_is_refused(nbytes: int) -> None:
    with pytest.raises(ConfigError, match=f"not {nbytes}"):
        CudaPool(CudaDriver(ScriptedLibrary()), nbytes, device=0)


@pytest.mark.parametrize("device", [2, -1])
def test_a_device_that_is_not_there_is_named(device: int) -> None:
    with pytest.raises(ConfigError, match=f"cuda:{device} does not exist: this process sees 2"):
        CudaPool(CudaDriver(ScriptedLibrary()), 4096, device=device)


@pytest.mark.parametrize("call", ["cuMemAlloc_v2", "cuMemsetD8_v2", "cuCtxSynchronize"])
def test_an_error_is_named_by_its_call_and_leaves_nothing_behind(call: str) -> None:
    library = ScriptedLibrary()
    library.fails[call] = OUT_OF_MEMORY
    with pytest.raises(ConfigError, match=f"{call}: CUDA_ERROR_OUT_OF_MEMORY"):
        CudaPool(CudaDriver(library), 4096, device=0)
    assert (library.memory, library.retained, library.contexts) == ({}, [], [])


def test_a_machine_without_a_driver_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libno-such-driver.so.1")
    with pytest.raises(ConfigError, match=r"no driver on this machine: libno-such-driver"):
        load_cuda()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("PYTORCH_ALLOC_CONF", "max_split_size_mb:64, expandable_segments: true"),
    ],
)
def test_memory_of_expandable_segments_is_refused_by_the_name_of_the_setting(
    name: str, value: str
) -> None:
    driver = CudaDriver(ScriptedLibrary())
    with pytest.raises(ConfigError, match=f"while {name} has expandable_segments:True: remove"):
        require_plain_allocation(driver, 4096, device=0, environ={name: value})


@pytest.mark.parametrize("exportable", [True, False])
def test_memory_that_cannot_be_exported_is_refused(exportable: bool) -> None:
    library = ScriptedLibrary(exportable=exportable)
    environ = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:False"}
    refused = ""
    try:
        require_plain_allocation(CudaDriver(library), 4096, device=1, environ=environ)
    except ConfigError as error:
        refused = str(error)
    assert bool(refused) is not exportable
    assert refused == "" or "0x1000 on cuda:1 cannot be exported" in refused
    assert library.retained == []


class ContextAgent:
    """An agent of a transfer engine; keeps the context of the thread that registers memory."""

    def __init__(self, library: ScriptedLibrary) -> None:
        self.cuda = library
        self.context = 0

    def register(self, regions: Sequence[Region]) -> bytes:
        self.context = self.cuda.contexts[-1]
        return b""

    def progress(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def fabric(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ScriptedLibrary, AgentFabric, Any]]:
    library = ScriptedLibrary()
    monkeypatch.setattr(agent_fabric, "load_cuda", lambda: CudaDriver(library))
    agent: Any = ContextAgent(library)
    able = Capabilities(1, 1, False, True, True, True)
    engine = TransferEngine(
        name="scripted", capabilities=able, source=lambda _: agent, reader=lambda _: agent
    )
    made = AgentFabric(engine, Boot(1), 0, lambda: None, MonotonicClock())
    yield library, made, agent
    made.close()


def test_a_fabric_thread_works_in_the_context_of_its_pools_device(
    fabric: tuple[ScriptedLibrary, AgentFabric, ContextAgent],
) -> None:
    library, made, agent = fabric
    pool = CudaPool(CudaDriver(library), 4096, device=1)
    made.expose({GroupName("full"): pool})
    assert agent.context == 101
    made.close()
    pool.close()
    assert library.retained == []


@pytest.mark.parametrize(
    ("claimed", "words"),
    [(0, "is on cuda:1, not 0"), (2, "cuda:2 does not exist: this process sees 2")],
)
def test_a_pool_on_another_device_than_it_claims_is_not_registered(
    fabric: tuple[ScriptedLibrary, AgentFabric, ContextAgent], claimed: int, words: str
) -> None:
    library, made, agent = fabric
    pool = CudaPool(CudaDriver(library), 4096, device=1)
    with pytest.raises(ConfigError, match=words):
        made.expose({GroupName("full"): ClaimedPool(pool, CudaMemory(claimed))})
    assert agent.context == 0
    pool.close()


def test_memory_of_the_host_is_not_registered_as_a_device_s(
    fabric: tuple[ScriptedLibrary, AgentFabric, ContextAgent],
) -> None:
    _, made, agent = fabric
    pool = HostPool(4096)
    with pytest.raises(ConfigError, match=r"is not on cuda:0: .* CUDA_ERROR_INVALID_VALUE"):
        made.expose({GroupName("full"): ClaimedPool(pool, CudaMemory(0))})
    assert agent.context == 0
    pool.close()
