"""`baton serve --on ray`, on a cluster of two nodes: the tokens of a local service, and nobody is
left behind, whoever is killed."""

import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.service import Process, alive, by_command, free_port, split, wait_for, wait_ready
from tests.e2e.test_processes import PROMPT, Stream

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
NODES = ("127.0.0.2", "127.0.0.3")  # not 127.0.0.1, which Ray takes for the machine's own address
NODE = {"num_cpus": 3, "object_store_memory": 80 << 20}
ORPHANS_S = 5.0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator["Nodes"]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.shut_down()


class Nodes:
    """A Ray cluster of two nodes on this machine."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        first, second = NODES
        head = {"include_dashboard": False, "node_ip_address": first, **NODE}
        self._cluster = Cluster(initialize_head=True, head_node_args=head, shutdown_at_exit=False)
        self._other = self._cluster.add_node(node_ip_address=second, **NODE)
        self.address = str(self._cluster.address)

    def control_plane(self) -> psutil.Process:
        (found,) = (
            p for p in psutil.Process().children(recursive=True) if p.name() == "gcs_server"
        )
        return found

    def other_raylet(self) -> psutil.Process:
        (raylet,) = self._other.all_processes["raylet"]
        return psutil.Process(raylet.process.pid)

    def _daemons(self) -> list[psutil.Process]:
        started = [
            info.process.pid
            for node in (self._cluster.head_node, self._other)
            for infos in node.all_processes.values()
            for info in infos
        ]
        return [psutil.Process(pid) for pid in started if alive(pid)]

    def shut_down(self) -> None:
        """Kill Ray; its own way out waits for the control plane, which may be dead."""
        ours = self._daemons()
        ours += [p for daemon in ours for p in daemon.children(recursive=True)]
        for process in ours:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        wait_for(lambda: not any(alive(p.pid) for p in ours), seconds=20, why="Ray has ended")


class OnRay:
    """`baton serve --on ray`."""

    def __init__(self, cluster: Nodes, model: Path, directory: Path, *flags: str) -> None:
        self.port = free_port()
        words = ["--on", "ray", "--ray-address", cluster.address, "--port", str(self.port)]
        words += ["--dtype", "float32", "--kv-pages", "100", "--threads", "1"]
        words += ["--served-model-name", "m", "--generation-config", "vllm", *flags]
        log = directory / "serve.log"
        self.process: Process = by_command(
            "serve", ["-m", "baton.cli.main", "serve", str(model), *words], log
        )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)
        wait_ready(self.http, [self.process])

    def ids(self) -> list[int]:
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        answer = self.http.post(
            "/v1/completions", json=body | {"ignore_eos": True, "return_token_ids": True}
        )
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])

    def log(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.process.log.read_text())

    def processes(self, name: str = "") -> list[psutil.Process]:
        """Those of the service that actors hold."""
        return [
            p
            for p in psutil.Process().children(recursive=True)
            if alive(p.pid) and "baton.cli.node" in (words := p.cmdline()) and name in words[-1]
        ]

    def wait_gone(self, processes: list[psutil.Process]) -> None:
        assert processes
        why = "no process is left behind"
        wait_for(lambda: not any(alive(p.pid) for p in processes), seconds=ORPHANS_S, why=why)

    def wait_whole(self, instead_of: list[psutil.Process]) -> None:
        """Until the service has others in the place of these, and is ready."""
        gone = {p.pid for p in instead_of}

        def pids() -> set[int]:
            workers = self.http.get("/debug/ledger").json()["workers"]
            return {rank["pid"] for worker in workers for rank in worker["ranks"]}

        wait_for(lambda: not pids() & gone, seconds=60, why="the loss is noticed")
        wait_for(lambda: self.http.get("/ready").status_code == 200, seconds=90, why="whole again")


@contextmanager
def serving(cluster: Nodes, model: Path, directory: Path, *flags: str) -> Iterator[OnRay]:
    service = OnRay(cluster, model, directory, *flags)
    try:
        yield service
    finally:
        service.http.close()
        service.process.kill()


def test_two_nodes_give_the_tokens_of_a_local_service_and_a_killed_actor_comes_back(
    cluster: Nodes, tiny: Path, tmp_path: Path
) -> None:
    with split(tmp_path, tiny, prefill=("--tp", "2", "--kv-pages", "100")) as local:
        expected = local.ids(PROMPT, max_tokens=8, ignore_eos=True)
    with serving(cluster, tiny, tmp_path, "--prefill-tp", "2") as service:
        assert service.ids() == expected
        placed = dict(re.findall(r"(prefill-0|decode-0) on ([\d.]+)", service.log()))
        assert sorted(placed.values()) == list(NODES)
        for victim in ("decode-0", "prefill-0"):
            ranks = service.processes(victim)
            assert len(ranks) == (2 if victim == "prefill-0" else 1)
            actor = ranks[-1].parent()
            assert actor is not None
            actor.kill()
            service.wait_gone(ranks)
            service.wait_whole(ranks)
            assert service.ids() == expected
        everybody = service.processes()
        service.process.popen.send_signal(signal.SIGINT)
        assert service.process.popen.wait(15) == 0
        assert not any(alive(p.pid) for p in everybody)


def test_a_killed_raylet_takes_its_processes_along_and_the_other_node_takes_over(
    cluster: Nodes, tiny: Path, tmp_path: Path
) -> None:
    with serving(cluster, tiny, tmp_path) as service:
        expected = service.ids()
        raylet = cluster.other_raylet()
        there = [p for p in service.processes() if raylet in p.parents()]
        raylet.kill()
        service.wait_gone(there)
        service.wait_whole(there)
        assert service.ids() == expected


def test_a_killed_driver_leaves_no_process(cluster: Nodes, tiny: Path, tmp_path: Path) -> None:
    with serving(cluster, tiny, tmp_path) as service:
        everybody = service.processes()
        assert len(everybody) == 3
        service.process.kill()
        service.wait_gone(everybody)


def test_without_the_control_plane_a_stream_goes_on_to_its_end(
    cluster: Nodes, tiny: Path, tmp_path: Path
) -> None:
    with serving(cluster, tiny, tmp_path) as service:
        expected, stream = service.ids(), Stream(service, max_tokens=500)
        stream.wait_streaming()
        cluster.control_plane().kill()
        killed_at = time.monotonic()
        stream.join(50)  # Ray ends its own processes 60 s after the control plane
        assert stream.lines[-1] == "data: [DONE]"
        assert stream.ended_at > killed_at, "it ended before, and shows nothing"
        assert service.ids() == expected, "new requests are served too"
        everybody = service.processes()
        service.process.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: not any(alive(p.pid) for p in everybody), seconds=15, why="all ended")
