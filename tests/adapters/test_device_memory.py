"""What the transfer engines are told of memory on a device: by their Python API, without one."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from baton.adapters import nixl_agent
from baton.adapters.mooncake import WITH_CUDA, WITHOUT_CUDA, capabilities
from baton.adapters.mooncake_agent import MooncakeAgent
from baton.adapters.nixl_agent import NixlAgent
from baton.adapters.reads import Ranges, Region, cut, resolve
from baton.core.ids import Boot, GroupName
from baton.core.memory.kinds import HOST, CudaMemory, MemoryKind
from baton.dev.contract.rig import copies
from baton.ports.fabric_settings import FabricSettings

FULL = GroupName("full")
PLACES: list[tuple[MemoryKind, str, int]] = [
    (HOST, "DRAM", 0),
    (CudaMemory(0), "VRAM", 0),
    (CudaMemory(3), "VRAM", 3),
]


class ScriptedNixl:
    """NIXL's package and its agent; keeps what it is told."""

    __name__ = "scripted"

    def __init__(self) -> None:
        self.registered: list[Any] = []
        self.posted: list[Any] = []

    def nixl_agent_config(self, **_: object) -> None: ...

    def nixl_agent(self, name: str, config: object) -> "ScriptedNixl":
        return self

    def create_backend(self, backend: str, params: object) -> None: ...

    def register_memory(self, regions: object, segment: str) -> None:
        self.registered.append((regions, segment))

    def get_agent_metadata(self) -> bytes:
        return b""

    def get_xfer_descs(self, rows: Any, segment: str) -> object:
        return rows.tolist(), segment

    def initialize_xfer(self, *told: object) -> None:
        self.posted.append(told)

    def transfer(self, handle: object) -> str:
        return "DONE"


@pytest.fixture
def nixl(monkeypatch: pytest.MonkeyPatch) -> tuple[ScriptedNixl, NixlAgent]:
    errors: Any = {name: type(name, (Exception,), {}) for name in nixl_agent._ERRORS}
    monkeypatch.setattr(nixl_agent.importlib, "import_module", lambda _: SimpleNamespace(**errors))
    scripted = ScriptedNixl()
    return scripted, NixlAgent(scripted, "us", backend="UCX", params={})


@pytest.mark.parametrize(("memory", "segment", "device"), PLACES)
def test_nixl_registers_memory_by_its_segment_and_device(
    nixl: tuple[ScriptedNixl, NixlAgent], memory: MemoryKind, segment: str, device: int
) -> None:
    scripted, agent = nixl
    agent.register([Region(4096, 64, memory), Region(8192, 32, memory)])
    assert scripted.registered == [([(4096, 64, device, ""), (8192, 32, device, "")], segment)]


@pytest.mark.parametrize(("source", "source_segment", "source_device"), PLACES)
@pytest.mark.parametrize(("target", "target_segment", "target_device"), PLACES)
def test_a_read_names_the_memory_of_both_sides(
    nixl: tuple[ScriptedNixl, NixlAgent],
    source: MemoryKind,
    source_segment: str,
    source_device: int,
    target: MemoryKind,
    target_segment: str,
    target_device: int,
) -> None:
    """All the way from offsets in pools; a part that is cut off is told the same."""
    scripted, agent = nixl
    ranges = resolve(
        [copies("full", 0, 8, 32)],
        source={FULL: Region(4096, 64, source)},
        target={FULL: Region(8192, 64, target)},
    )
    for part in cut(ranges, part_bytes=16, part_ranges=8):
        agent.post("them", part)
    assert [(ours, theirs) for _, ours, theirs, _ in scripted.posted] == [
        (
            ([[8192 + 8 + at, 16, target_device]], target_segment),
            ([[4096 + at, 16, source_device]], source_segment),
        )
        for at in (0, 16)
    ]


def test_an_empty_read_needs_no_memory() -> None:
    assert resolve([], source={}, target={}).nbytes.size == 0
    assert isinstance(cut(Ranges(*[np.zeros(0, np.int64)] * 3), part_bytes=1, part_ranges=1), list)


class ScriptedMooncake:
    """Mooncake's module and its engine; keeps what it is told."""

    def __init__(self) -> None:
        self.registered: list[object] = []

    def TransferEngine(self) -> "ScriptedMooncake":
        return self

    def initialize(self, *_: object) -> int:
        return 0

    def register_memory(self, *told: object) -> int:
        self.registered.append(told)
        return 0

    def unregister_memory(self, _: int) -> int:
        return 0

    def get_rpc_port(self) -> int:
        return 1


@pytest.mark.parametrize(
    ("memory", "location"), [(HOST, "*"), (CudaMemory(0), "cuda:0"), (CudaMemory(3), "cuda:3")]
)
def test_mooncake_registers_memory_by_its_location(memory: MemoryKind, location: str) -> None:
    scripted = ScriptedMooncake()
    agent = MooncakeAgent(scripted, FabricSettings(), key=b"", door=(Boot(1), 0))
    agent.register([Region(4096, 64, memory)])
    agent.close()
    assert scripted.registered == [(4096, 64, location)]


@pytest.mark.parametrize(
    ("installed", "able"),
    [
        ({WITHOUT_CUDA[0]}, False),
        ({WITH_CUDA[0]}, True),
        ({WITH_CUDA[1]}, True),
        ({WITH_CUDA[0], WITHOUT_CUDA[0]}, False),  # which of the two was installed last?
        (set(), False),
    ],
)
def test_mooncake_reaches_devices_if_it_is_built_with_cuda(installed: set[str], able: bool) -> None:
    assert capabilities(installed.__contains__).device_memory is able
