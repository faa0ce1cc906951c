"""What the doctor says about machines that are not this one, and one real trial."""

import json
import resource
from types import SimpleNamespace

import pytest

from baton.cli.doctor import fabrics, installed, machine
from baton.cli.doctor.command import listening
from baton.cli.doctor.fabrics import attempt, judge, transport
from baton.cli.doctor.finding import State
from baton.cli.doctor.network import interfaces, other_hosts, rdma_devices
from baton.cli.doctor.probe import ProbeResult, Tried
from baton.cli.main import run
from baton.core.errors import ConfigError
from baton.core.memory.kinds import CudaMemory
from baton.ports.fabric_settings import FabricSettings

WELL = Tried(ProbeResult(gbytes_s=20.0, small_us=100.0))
NOWHERE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("finding", "state", "words"),
    [
        (machine.kernel("6.18.44-x"), State.OK, ""),
        (machine.kernel("5.1"), State.OK, ""),
        (machine.kernel("4.18.0-553.el8"), State.PROBLEM, "5.1"),
        (machine.cores(8, None, {"avx2", "avx512_bf16"}), State.OK, ""),
        (machine.cores(1, None, {"avx2"}), State.WARNING, "--role unified"),
        (machine.cores(8, 2.5, {"avx2"}), State.WARNING, "2.5"),
        (machine.cores(8, 8.0, {"avx2"}), State.OK, ""),
        (machine.memory(5 << 30), State.OK, ""),
        (machine.memory(3 << 30), State.WARNING, "--kv-memory"),
        (machine.open_files(1024), State.WARNING, "ulimit -Hn"),
        (machine.open_files(NOWHERE), State.OK, ""),
        (machine.open_files(65536), State.OK, ""),
        (machine.locked(8 << 20, rdma=True), State.WARNING, "ulimit -l unlimited"),
        (machine.locked(8 << 20, rdma=False), State.OK, ""),
        (machine.locked(NOWHERE, rdma=True), State.OK, ""),
        (machine.shared_memory(64 << 20), State.OK, ""),
        (machine.shared_memory(0), State.WARNING, "--shm-size"),
        (machine.ptrace(""), State.OK, ""),
        (machine.ptrace("0"), State.OK, ""),
        (machine.ptrace("1"), State.WARNING, "ptrace_scope=0"),
    ],
)
def test_of_machines(finding, state, words):
    assert finding.state is state
    assert words in finding.remedy
    assert (finding.remedy == "") == (state is State.OK)


def test_the_machine_is_read_from_its_files(tmp_path):
    files = {
        "sys/fs/cgroup/cpu.max": "150000 100000\n",
        "proc/cpuinfo": "processor : 0\nflags\t\t: fpu avx2 avx512f\n",
        "proc/sys/kernel/yama/ptrace_scope": "2\n",
        "proc/meminfo": "MemAvailable: 1024 kB\nHugePages_Total:      16\n",
        "sys/kernel/mm/transparent_hugepage/shmem_enabled": "always within_size [advise] never\n",
        "sys/class/infiniband/mlx5_0/x": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    said = {f.what: f.said for f in machine.machine(tmp_path)}
    assert "avx512f; the cgroup allows the time of 1.5" in said["cores"]
    assert said["huge pages"].startswith("16 reserved; for shared memory: advise")
    assert said["ptrace scope"].startswith("2: ")
    assert said["RDMA devices"] == "mlx5_0"
    assert said["memory"] == "0.0 GiB available to this process"


def test_packages_that_are_missing_are_named():
    found = list(installed.packages(["torch", "numba"], {"torch": "2.0"}.get))
    states = {(f.what, f.state) for f in found}
    assert ("packages", State.PROBLEM) in states
    assert next(f for f in found if f.state is State.PROBLEM).said == "missing: numba"
    assert next(f for f in found if f.what == "nixl").remedy == "pip install 'baton-llm[nixl]'"


def test_what_is_needed_comes_from_our_own_metadata():
    assert {"torch", "fastapi", "uvicorn"} <= set(installed.required())
    assert "pytest" not in installed.required()


def states(obstacles, tried):
    return {f.what: f.state for f in judge(obstacles, tried)}


def test_of_fabrics():
    here = {"shm": "", "nixl": ""}
    missing = {"shm": "", "nixl": "not installed: pip install x"}
    assert states(here, {"shm": WELL, "nixl": WELL}) == {
        "shm": State.OK,
        "nixl": State.OK,
        "CMA": State.OK,
    }
    assert states(missing, {"shm": WELL}) == {"shm": State.OK, "nixl": State.OK, "CMA": State.OK}
    broken = Tried(ProbeResult(why="2 of 9 bytes differ"))
    assert states(here, {"shm": WELL, "nixl": broken})["nixl"] is State.PROBLEM
    assert states(missing, {"shm": broken}) == {
        "shm": State.PROBLEM,
        "nixl": State.OK,
        "handoff": State.PROBLEM,
        "CMA": State.OK,
    }
    walled = Tried(ProbeResult(cma="Operation not permitted"))
    assert states(missing, {"shm": walled})["CMA"] is State.WARNING
    assert (
        states({"shm": "", "mooncake": "does not load: libx"}, {"shm": WELL})["mooncake"]
        is State.WARNING
    )
    remedies = [f.remedy for f in judge(missing, {"shm": WELL})]
    assert "pip install x" in remedies


UCX = """
[1:2:3]   | remote memory read by ucp_get* into host memory                  |
[1:2:3]   | 0..inf | copy-in | tcp/lo |
[1:2:3]   +--------+-------------+---------------------------------+
[1:2:3]   | remote memory read by ucp_get*(multi) into host memory from host |
[1:2:3]   |  Range  | Description |         Config                 |
[1:2:3]   | 0..99   | short       | tcp/lo                         |
[1:2:3]   | 100..inf | zero-copy  | cma/memory                     |
[1:2:3]   +--------+-------------+---------------------------------+
"""


@pytest.mark.parametrize(("log", "name"), [(UCX, "cma/memory"), ("", ""), ("ucp_get", "")])
def test_the_transport_is_that_of_large_reads(log, name):
    assert transport(log) == name


@pytest.mark.parametrize(
    ("transport", "why", "rdma", "state", "words"),
    [
        ("rc_mlx5/mlx5_0:1", "", ["mlx5_0:1"], State.OK, ["rc_mlx5 on mlx5_0:1", "20.0 GB/s"]),
        ("tcp/eth1", "", [], State.OK, ["tcp on eth1"]),
        ("tcp/lo", "", [], State.OK, ["over tcp", "interface of the route: eth0, eth1"]),
        ("tcp/eth1", "", ["mlx5_0:1"], State.WARNING, ["tcp on eth1", "though there is mlx5_0:1"]),
        ("", "no transport", [], State.WARNING, ["without shared memory: no transport"]),
        ("", "", [], State.OK, ["does not say"]),
    ],
)
def test_of_other_hosts(transport, why, rdma, state, words):
    tried = Tried(ProbeResult(why=why, gbytes_s=20.0), transport)
    finding = other_hosts(tried, rdma=rdma, interfaces=["eth0", "eth1"])
    assert finding.state is state
    assert [word for word in words if word not in finding.said] == []
    assert (finding.remedy == "") == (state is State.OK)


def test_network_devices_are_read_from_their_files(tmp_path):
    files = {
        "net/lo/operstate": "unknown",
        "net/eth0/operstate": "up\n",
        "net/eth1/operstate": "down\n",
        "infiniband/mlx5_0/ports/1/state": "4: ACTIVE\n",
        "infiniband/mlx5_0/ports/2/state": "1: DOWN\n",
    }
    for name, text in files.items():
        (tmp_path / "sys/class" / name).parent.mkdir(parents=True)
        (tmp_path / "sys/class" / name).write_text(text)
    assert interfaces(tmp_path) == ["eth0"]
    assert rdma_devices(tmp_path) == ["mlx5_0:1"]


def test_a_fabric_is_really_tried():
    found = attempt("shm").found
    assert found.why == ""
    assert found.gbytes_s > 0
    assert found.small_us > 0


def test_a_fabric_that_does_not_start_says_why():
    assert "no fabric 'rdma'" in attempt("rdma").found.why


def test_the_process_that_dies_is_a_finding(monkeypatch):
    monkeypatch.setattr(fabrics.sys, "executable", "/bin/false")
    assert "ended with status 1" in attempt("shm").found.why


@pytest.mark.parametrize(
    ("why", "code", "state"), [("", 0, ("ok", "warning")), ("torn", 1, ("problem",))]
)
def test_the_exit_code_and_json(monkeypatch, capsys, why, code, state):
    monkeypatch.setattr(fabrics, "attempt", lambda *_, **__: Tried(ProbeResult(why=why)))
    assert run(["doctor", "--json", "--port", "0"]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["state"] in state
    assert {"area", "what", "state", "said", "remedy"} == set(found["findings"][0])


def test_for_people(monkeypatch, capsys):
    monkeypatch.setattr(fabrics, "attempt", lambda *_, **__: Tried(ProbeResult(why="torn")))
    assert run(["doctor", "--port", "0"]) == 1
    out = capsys.readouterr().out
    assert [
        word
        for word in ("installed", "machine", "fabrics", "problem", "torn", "-> ")
        if word not in out
    ] == []


def test_a_port_in_use(free_port):
    import socket

    assert listening(free_port).state is State.OK
    with socket.create_server(("127.0.0.1", free_port)):
        assert listening(free_port).state is State.WARNING


@pytest.mark.parametrize(
    ("transport", "why", "state", "words"),
    [
        ("cuda_ipc/cuda", "", State.OK, ["cuda_ipc works: 20.0 GB/s from cuda:0 into cuda:1"]),
        (
            "tcp/eth0",
            "",
            State.WARNING,
            ["cuda_ipc does not work here: 20.0 GB/s", "over tcp/eth0"],
        ),
        ("", "", State.WARNING, ["cuda_ipc does not work", "an unnamed transport"]),
        ("", "NIXL_ERR_BACKEND", State.WARNING, ["from cuda:0 into cuda:1 fail: NIXL_ERR_BACKEND"]),
    ],
)
def test_of_reads_between_devices(monkeypatch, transport, why, state, words):
    tries = []

    def attempt(kind, settings, *, source_memory, reader_memory):
        tries.append((kind, source_memory, reader_memory))
        return Tried(ProbeResult(why=why, gbytes_s=20.0, small_us=10.0), transport)

    monkeypatch.setattr(fabrics, "attempt", attempt)
    load = lambda: SimpleNamespace(device_count=2)  # noqa: E731
    finding = fabrics.devices(FabricSettings(), why_not="", load=load)
    assert tries == [("nixl", CudaMemory(0), CudaMemory(1))]
    assert finding.state is state
    assert [word for word in words if word not in finding.said] == []
    assert (finding.remedy == "") == (state is State.OK)


def test_one_device_reads_from_itself(monkeypatch):
    monkeypatch.setattr(fabrics, "attempt", lambda *_, **__: Tried(WELL.found, "cuda_ipc/cuda"))
    load = lambda: SimpleNamespace(device_count=1)  # noqa: E731
    finding = fabrics.devices(FabricSettings(), why_not="", load=load)
    assert "from cuda:0 into cuda:0" in finding.said


def test_devices_that_nothing_reads_are_counted():
    load = lambda: SimpleNamespace(device_count=3)  # noqa: E731
    finding = fabrics.devices(FabricSettings(), why_not="not installed: pip install x", load=load)
    assert (finding.state, finding.remedy) == (State.OK, "pip install x")
    assert "3 devices, not tried, because nixl is not installed" in finding.said


def test_a_machine_without_cuda_says_so_in_one_line():
    def load():
        raise ConfigError("CUDA: no driver on this machine: libcuda.so.1")

    finding = fabrics.devices(FabricSettings(), why_not="", load=load)
    assert (finding.state, finding.remedy) == (State.OK, "")
    assert finding.said.startswith("none here, pools are host memory (no driver on this machine")


def test_a_trial_over_memory_that_is_not_there_says_why():
    found = attempt("shm", source_memory=CudaMemory(0)).found
    assert "CUDA: " in found.why
