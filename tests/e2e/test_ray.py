"""`baton serve --on ray`, two prefill and two decode workers on two nodes: the tokens of a local
service, and nobody is left behind, whoever is killed."""

import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import product
from pathlib import Path

import httpx
import psutil
import pytest
from tests.e2e.service import Process, alive, by_command, free_port, wait_for
from tests.e2e.test_processes import PROMPT, Stream

pytest.importorskip("ray")
pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]
NODES = ("127.0.0.2", "127.0.0.3")  # not 127.0.0.1, which Ray takes for the machine's own address
NODE = {"num_cpus": 4, "object_store_memory": 80 << 20}
WORKERS = {f"{role}-{n}" for role in ("prefill", "decode") for n in (0, 1)}
ORPHANS_S = 5.0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator["Nodes"]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # so long Ray's processes wait for a control plane that is lost; 60 s are short for a slow machine
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "250")
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

    def raylets(self) -> tuple[psutil.Process, psutil.Process]:
        """That of the node on which `baton serve` runs, and that of the other node."""
        own, other = (
            psutil.Process(node.all_processes["raylet"][0].process.pid)
            for node in (self._cluster.head_node, self._other)
        )
        return own, other

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


class Serve:
    """`baton serve` with so many workers of each role."""

    def __init__(self, model: Path, directory: Path, count: int, *flags: str) -> None:
        self.port, self._count = free_port(), count
        words = ["--prefill", str(count), "--decode", str(count), "--port", str(self.port)]
        words += ["--threads", "1", "--dtype", "float32", "--kv-pages", "100"]
        words += ["--served-model-name", "m"]
        log = directory / f"serve-{self.port}.log"
        self.process: Process = by_command(
            "serve", ["-m", "baton.cli.main", "serve", str(model), *words, *flags], log
        )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

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

    def wait_whole(self, instead_of: Sequence[psutil.Process] = ()) -> None:
        """Until all workers are there, with other processes than these, and the service is ready."""
        gone = {p.pid for p in instead_of}

        def whole() -> bool:
            assert self.process.popen.poll() is None, self.log()[-3000:]
            try:
                workers = self.http.get("/debug/ledger").json()["workers"]
                ready = self.http.get("/ready").status_code == 200
            except httpx.HTTPError:
                return False
            pids = {rank["pid"] for worker in workers for rank in worker["ranks"]}
            return ready and len(workers) == 2 * self._count and not pids & gone

        wait_for(whole, seconds=120, why="the service is whole")


@contextmanager
def serving(model: Path, directory: Path, count: int, *flags: str) -> Iterator[Serve]:
    service = Serve(model, directory, count, *flags)
    try:
        service.wait_whole()
        yield service
    finally:
        service.http.close()
        service.process.kill()


@contextmanager
def on_ray(cluster: Nodes, model: Path, directory: Path, *flags: str) -> Iterator[Serve]:
    flags = ("--on", "ray", "--ray-address", cluster.address, *flags)
    with serving(model, directory, 2, *flags) as service:
        yield service


@contextmanager
def streams(service: Serve, text: str, max_tokens: int = 2000) -> Iterator[None]:
    """Streams at both decode workers, during which something is killed; nobody sees anything of
    that."""
    open_ones = [Stream(service, max_tokens=max_tokens) for _ in range(4)]
    for stream in open_ones:
        stream.wait_streaming()
    workers = service.http.get("/debug/ledger").json()["workers"]
    assert all(worker["rooms"] for worker in workers if worker["role"] == "decode")
    killed_at = time.monotonic()
    yield
    assert [stream.wait_done(120) for stream in open_ones] == [text] * len(open_ones)
    assert min(s.ended_at for s in open_ones) > killed_at, "they ended before, and show nothing"


def test_two_nodes_give_the_tokens_of_a_local_service_and_a_killed_actor_comes_back(
    cluster: Nodes, tiny: Path, tmp_path: Path
) -> None:
    with serving(tiny, tmp_path, 1, "--prefill-tp", "2") as local:
        expected, text = local.ids(), Stream(local).wait_done(60)
    with on_ray(cluster, tiny, tmp_path, "--prefill-tp", "2") as service:
        assert service.ids() == expected
        placed = re.findall(r"((?:prefill|decode)-\d) on ([\d.]+)", service.log())
        assert {name for name, _ in placed} == WORKERS
        roles = {(name.partition("-")[0], node) for name, node in placed}
        assert roles == set(product(("prefill", "decode"), NODES)), "each node can serve alone"
        for victim in ("decode-0", "prefill-0"):
            ranks = service.processes(victim)
            assert len(ranks) == (2 if victim == "prefill-0" else 1)
            actor = ranks[-1].parent()
            assert actor is not None
            with streams(service, text):
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
    with on_ray(cluster, tiny, tmp_path) as service:
        expected, text = service.ids(), Stream(service).wait_done(60)
        _, raylet = cluster.raylets()
        there = [p for p in service.processes() if raylet in p.parents()]
        with streams(service, text):
            raylet.kill()
            service.wait_gone(there)
        service.wait_whole(there)
        assert service.ids() == expected


def test_a_killed_driver_leaves_no_process_and_nor_does_one_that_has_lost_its_raylet(
    cluster: Nodes, tiny: Path, tmp_path: Path
) -> None:
    for who in ("driver", "raylet"):
        with on_ray(cluster, tiny, tmp_path) as service:
            everybody = service.processes()
            assert len(everybody) == 1 + len(WORKERS)
            if who == "driver":
                service.process.kill()
            else:
                own, _ = cluster.raylets()
                own.kill()
            service.wait_gone(everybody)
            if who == "raylet":
                assert service.process.popen.wait(30) == 1, "whoever started it can start it again"
                assert "(raylet) has ended" in service.log()


def test_without_the_control_plane_streams_go_on_and_a_killed_process_comes_back(
    cluster: Nodes, tiny: Path, tmp_path: Path
) -> None:
    with on_ray(cluster, tiny, tmp_path) as service:
        expected, text = service.ids(), Stream(service, max_tokens=500).wait_done(60)
        with streams(service, text, max_tokens=500):
            cluster.control_plane().kill()
        assert service.ids() == expected, "new requests are served too"
        killed = service.processes("decode-0")
        killed[0].kill()
        service.wait_whole(killed)
        everybody = service.processes()
        service.process.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: not any(alive(p.pid) for p in everybody), seconds=15, why="all ended")
