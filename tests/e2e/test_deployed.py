"""The commands of the containers that `baton deploy kubernetes` prints, run as they are printed:
only what a cluster provides is put in, as addresses, names and files."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.cli.deploy.shapes import documents, pod_templates
from tests.e2e.service import Process, by_command, free_port, wait_for, wait_ready

from baton.adapters.secret import new_secret
from baton.cli.main import run

PODS = {"StatefulSet": ["0"], "Deployment": ["7d9f-x2x"], "LeaderWorkerSet": ["0", "0-1"]}
SIZES = ("--cpu=1", "--env=BATON_KV_PAGES=40", "--env=BATON_FABRIC=tcp", "--memory=1GiB")


class Cluster:
    """One machine in place of a cluster: all pods have one address, so each has ports of its
    own."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.processes: list[Process] = []
        self.ports: dict[tuple[str, str], int] = {}
        self._shared: dict[str, int] = {}
        self._secret = directory / "key"
        new_secret(self._secret)

    def apply(self, manifests: list[dict[str, Any]]) -> None:
        """Start the containers of all pods; a gateway last, as its name resolves at any time."""
        for each in reversed(manifests):
            templates = pod_templates(each)
            for index, template in enumerate(templates):
                pod = f"{each['metadata']['name']}-{PODS[each['kind']][index]}"
                self._start(pod, template["spec"]["containers"][0], index, len(templates))

    def _start(self, pod: str, container: dict[str, Any], index: int, size: int) -> None:
        assert container["command"] == ["baton"]
        text = json.dumps(container["args"])
        for port in container["ports"]:
            number = str(port["containerPort"])
            own = self._port(number) if port["name"] == "control" else free_port()
            self.ports[pod, port["name"]] = own
            text = re.sub(rf"\b{number}\b", str(own), text)
        text = re.sub(r"baton-gateway-0\.baton-gateway:(\d+)", self._by_name, text)
        text = re.sub(r":(29500)\b", lambda found: f":{self._port(found[1])}", text)
        for name, value in {
            "$(POD_IP)": "127.0.0.1",
            "$(POD_NAME)": pod,
            "$(LWS_GROUP_SIZE)": str(size),
            "$(LWS_WORKER_INDEX)": str(index),
            "$(LWS_LEADER_ADDRESS)": "localhost",
            "0.0.0.0": "127.0.0.1",
            "/etc/baton/secret/key": str(self._secret),
        }.items():
            text = text.replace(name, value)
        assert "$(" not in text
        command = ["-m", container["command"][0], *json.loads(text)]
        self.processes.append(by_command(pod, command, self._directory / f"{pod}.log"))

    def _port(self, number: str) -> int:
        """The port that stands for one that several pods know."""
        return self._shared.setdefault(number, free_port())

    def _by_name(self, found: re.Match[str]) -> str:
        return f"localhost:{self._port(found[1])}"

    def probe(self, pod: str, manifests: list[dict[str, Any]]) -> dict[str, int]:
        """The status of each probe of a pod."""
        (container,) = [
            template["spec"]["containers"][0]
            for each in manifests
            for template in pod_templates(each)[:1]
            if pod.startswith(each["metadata"]["name"])
        ]
        found = {}
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = container[probe]["httpGet"]
            url = f"http://127.0.0.1:{self.ports[pod, asked['port']]}{asked['path']}"
            found[probe] = httpx.get(url, timeout=container[probe]["timeoutSeconds"]).status_code
        return found

    def delete(self) -> None:
        """End all processes; each must end by itself."""
        for process in self.processes:
            process.end()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    try:
        yield cluster
    finally:
        cluster.delete()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    "flags", [(), ("--decode-tp=2", "--decode-nodes=2")], ids=["one-and-one", "two-nodes"]
)
def test_printed_commands_are_a_service(
    cluster: Cluster,
    tiny: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
) -> None:
    command = ["deploy", "kubernetes", str(tiny), "--served-model-name=m", *SIZES, *flags]
    assert run(command) == 0
    manifests = documents(capsys.readouterr().out)
    container = next(t for each in manifests for t in pod_templates(each))["spec"]["containers"][0]
    for variable in container["env"]:
        if variable["name"].startswith("BATON_"):
            monkeypatch.setenv(variable["name"], variable["value"])
    assert os.environ["BATON_FABRIC"] == "tcp"

    cluster.apply(manifests)
    gateway = "baton-gateway-0"
    with httpx.Client(
        base_url=f"http://127.0.0.1:{cluster.ports[gateway, 'http']}", timeout=60
    ) as http:
        wait_ready(http, cluster.processes)
        body = {"model": "m", "prompt": list(range(1, 60)), "max_tokens": 6, "ignore_eos": True}
        answer = http.post("/v1/completions", json=body)
        assert answer.json()["usage"]["completion_tokens"] == 6
        pods = {pod for pod, _ in cluster.ports}
        assert len(pods) == 3 + len(flags) // 2
        for pod in pods:
            statuses = cluster.probe(pod, manifests)
            assert set(statuses.values()) == {200}, (pod, statuses)

        # without gateways a worker is alive, and not ready
        (process,) = [each for each in cluster.processes if each.name == gateway]
        process.end()
        (decode,) = [pod for pod in pods if re.fullmatch(r"baton-decode-(0|7d9f-x2x)", pod)]
        wait_for(
            lambda: cluster.probe(decode, manifests)["readinessProbe"] == 503,
            seconds=20,
            why="the gateway has gone",
        )
        assert cluster.probe(decode, manifests)["livenessProbe"] == 200
