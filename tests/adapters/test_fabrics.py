from ipaddress import ip_address
from typing import Any

import msgspec
import psutil
import pytest
from structlog.testing import capture_logs

from baton.adapters import nixl_agent
from baton.adapters.fabrics import (
    FABRICS,
    FabricEntry,
    available,
    build,
    guarded,
    keep_reaching,
    near,
    on_devices,
)
from baton.adapters.shm_door import Host, this_host
from baton.core.errors import ConfigError
from baton.core.ids import Boot, Micros
from baton.core.memory.kinds import HOST, CudaMemory, MemoryKind
from baton.ports.fabric import Capabilities
from baton.ports.fabric_settings import FABRICS as CHOICES
from baton.ports.fabric_settings import FabricSettings

LOCAL = Capabilities(
    1, 1, same_host_only=True, device_memory=False, ended_means_quiet=True, reads_read_only=True
)
WIDE = msgspec.structs.replace(LOCAL, same_host_only=False)
ABLE = {"shm": LOCAL, "nixl": msgspec.structs.replace(WIDE, device_memory=True), "tcp": WIDE}


class StoppedClock:
    def now(self) -> Micros:
        return Micros(0)


class StubFabric:
    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities, self.closed = capabilities, False

    def close(self) -> None:
        self.closed = True


class StubPool:
    def __init__(self, memory: MemoryKind) -> None:
        self.memory = memory


def test_fabrics_that_stay_on_their_host_say_which_one_it_is() -> None:
    ours: Any = {"nixl": StubFabric(WIDE), "shm": StubFabric(LOCAL)}
    assert near(ours) == {"shm": this_host().place}


@pytest.mark.parametrize(
    ("memory", "names", "kept"),
    [
        (HOST, "shm nixl tcp", ["shm", "nixl", "tcp"]),
        (CudaMemory(0), "shm nixl tcp", ["nixl"]),
        (CudaMemory(0), "tcp", ["tcp"]),  # `expose` says what is wrong with it
    ],
)
def test_fabrics_that_do_not_reach_the_pools_are_closed(
    memory: MemoryKind, names: str, kept: list[str]
) -> None:
    made: Any = {name: StubFabric(ABLE[name]) for name in names.split()}
    pools: Any = {"full": StubPool(memory)}
    assert list(keep_reaching(made, pools)) == kept
    assert [name for name in made if not made[name].closed] == kept


def test_fabrics_that_reach_devices_are_published() -> None:
    made: Any = {name: StubFabric(able) for name, able in ABLE.items()}
    assert on_devices(made) == ("nixl",)


def test_one_host_means_same_kernel_namespaces_and_user() -> None:
    assert this_host() == this_host()
    for field in msgspec.structs.fields(Host):
        other: object = "another" if field.type is str else -1
        assert (
            msgspec.structs.replace(this_host(), **{field.name: other}).place != this_host().place
        ), field.name


def test_unknown_and_unusable_fabrics_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no fabric 'pigeon': there are shm, nixl, mooncake, tcp"):
        build("pigeon", Boot(1), 0, wake=lambda: None, clock=StoppedClock())
    monkeypatch.setattr(
        "baton.adapters.fabrics.FABRICS",
        {"nixl": FabricEntry(FABRICS["nixl"].make, lambda: "not installed")},
    )
    assert available() == {"nixl": "not installed"}
    with pytest.raises(ConfigError, match="fabric nixl: not installed"):
        build("nixl", Boot(1), 0, wake=lambda: None, clock=StoppedClock())


def test_a_missing_nixl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_agent, "PACKAGES", ("no_such_nixl",))
    with pytest.raises(ConfigError, match=r"pip install 'baton-llm\[nixl\]'"):
        nixl_agent.load_nixl()


@pytest.mark.skipif(bool(available()["nixl"]), reason=available()["nixl"])
def test_nixl_of_a_rank_without_peers_elsewhere_listens_on_loopback_alone() -> None:
    """UCX listens on every interface by itself, and serves any memory to whoever comes."""
    before = set(listening())
    fabric = build("nixl", Boot(71), 0, wake=lambda: None, clock=StoppedClock())
    try:
        opened = set(listening()) - before
        assert opened
        assert [place for place in opened if not ip_address(place[0]).is_loopback] == []
    finally:
        fabric.close()


def listening() -> list[tuple[str, int]]:
    """Where this process listens."""
    found = psutil.Process().net_connections("inet")
    return [(c.laddr.ip, c.laddr.port) for c in found if c.status == psutil.CONN_LISTEN]


@pytest.mark.parametrize(
    ("names", "host", "left"),
    [
        ("auto", "127.0.0.1", ["shm", "nixl", "tcp"]),
        ("auto", "10.1.2.3", ["shm", "tcp"]),
        ("nixl", "10.1.2.3", ["nixl"]),
        ("mooncake", "10.1.2.3", ["mooncake"]),
    ],
)
def test_what_serves_strangers_is_to_be_named_off_loopback(
    names: str, host: str, left: list[str]
) -> None:
    assert guarded(CHOICES[names], FabricSettings(host=host)) == left


@pytest.mark.parametrize(("name", "host"), [("nixl", "10.1.2.3"), ("mooncake", "127.0.0.1")])
def test_what_serves_strangers_says_so(name: str, host: str) -> None:
    if why := available()[name]:
        pytest.skip(why)
    settings = FabricSettings(host=host)
    with capture_logs() as lines:
        build(name, Boot(72), 0, wake=lambda: None, clock=StoppedClock(), settings=settings).close()
    (line,) = [line for line in lines if line["event"] == "fabric_open"]
    assert "read and write memory" in line["why"]
