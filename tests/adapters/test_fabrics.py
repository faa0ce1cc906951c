import msgspec
import pytest

from baton.adapters import nixl_agent
from baton.adapters.fabrics import FABRICS, Entry, available, build, choose, same_host
from baton.adapters.shm_door import Exposure, Host, this_host
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, Micros
from baton.ports.fabric import Capabilities

LOCAL = Capabilities(1, 1, same_host_only=True, device_memory=False, ended_means_quiet=True, reads_read_only=True)
WIDE = msgspec.structs.replace(LOCAL, same_host_only=False)
OURS = {"nixl": WIDE, "shm": LOCAL}


class StoppedClock:
    def now(self) -> Micros:
        return Micros(0)


def exposure(**changes: object) -> dict[str, bytes]:
    host = msgspec.structs.replace(this_host(), **changes)
    return {"shm": msgspec.msgpack.encode(Exposure(host, "baton-0-0"))}


@pytest.mark.parametrize(
    ("theirs", "here", "name"),
    [
        ({"shm", "nixl"}, True, "shm"),
        ({"shm", "nixl"}, False, "nixl"),
        ({"nixl"}, True, "nixl"),
        ({"nixl", "carrier-pigeon"}, False, "nixl"),
        ({"shm"}, True, "shm"),
    ],
)
def test_auto_takes_the_fastest_that_both_have_and_that_reaches(theirs: set[str], here: bool, name: str) -> None:
    chosen, why = choose(OURS, theirs, same_host=here)
    assert chosen == name
    assert why


@pytest.mark.parametrize(("theirs", "here"), [({"shm"}, False), (set(), True), ({"tcp"}, False)])
def test_nothing_in_common_is_said_with_both_lists(theirs: set[str], here: bool) -> None:
    with pytest.raises(FabricError, match=r"ours are \['nixl', 'shm'\], theirs"):
        choose(OURS, theirs, same_host=here)


def test_one_host_means_same_kernel_namespaces_and_user() -> None:
    assert same_host(exposure(), exposure())
    assert this_host() == this_host()
    for field in msgspec.structs.fields(Host):
        other: object = "another" if field.type is str else -1
        assert not same_host(exposure(), exposure(**{field.name: other})), field.name


def test_without_shm_on_both_sides_hosts_are_different() -> None:
    assert not same_host({}, exposure())
    assert not same_host(exposure(), {"nixl": b""})
    assert not same_host(exposure(), {"shm": b"\xc1"})


def test_unknown_and_unusable_fabrics_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no fabric 'pigeon': there are shm, nixl, mooncake, tcp"):
        build("pigeon", Boot(1), 0, wake=lambda: None, clock=StoppedClock())
    monkeypatch.setattr("baton.adapters.fabrics.FABRICS", {"nixl": Entry(FABRICS["nixl"].make, lambda: "not installed")})
    assert available() == {"nixl": "not installed"}
    with pytest.raises(ConfigError, match="fabric nixl: not installed"):
        build("nixl", Boot(1), 0, wake=lambda: None, clock=StoppedClock())


def test_a_missing_nixl_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl_agent, "PACKAGES", ("no_such_nixl",))
    with pytest.raises(ConfigError, match=r"pip install 'baton-llm\[nixl\]'"):
        nixl_agent.load_nixl()
