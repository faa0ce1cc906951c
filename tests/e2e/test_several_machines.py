"""The commands that the documents give for several machines, typed on two: network namespaces
joined by a cable."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.service import Process, by_command, wait_for

GATEWAY, OTHER, MOVED = "10.77.0.1", "10.77.0.2", "10.77.0.3"
ASK = """
import json, sys, urllib.error, urllib.request
try:
    body = sys.argv[2].encode() if len(sys.argv) > 2 else None
    request = urllib.request.Request("http://127.0.0.1:8000" + sys.argv[1], body, {"Content-Type": "application/json"})
    print(urllib.request.urlopen(request, timeout=60).read().decode())
except urllib.error.HTTPError as error:
    print(error.read().decode())
except OSError as error:
    print(json.dumps({"ready": False, "why": str(error)}))
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Machines:
    """Two of them, and the processes on each."""

    def __init__(self, directory: Path, model: Path) -> None:
        self._directory, self._model = directory, model
        self.here, self.there = f"baton-{os.getpid()}-a", f"baton-{os.getpid()}-b"
        self._processes: list[Process] = []

    def join(self) -> None:
        """Raises CalledProcessError: this user may not."""
        for name in (self.here, self.there):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip(
            "-n",
            self.here,
            "link",
            "add",
            "cable",
            "type",
            "veth",
            "peer",
            "name",
            "cable",
            "netns",
            self.there,
        )
        for name, address in ((self.here, GATEWAY), (self.there, OTHER)):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", name, "link", "set", "cable", "up")

    def start(self, where: str, command: str, *flags: str) -> Process:
        enter = "import os, sys; os.execvp('ip', ['ip', 'netns', 'exec', *sys.argv[1:]])"
        words = [
            sys.executable,
            "-m",
            "baton",
            command,
            str(self._model),
            "--secret",
            str(self._directory / "SECRET"),
            *flags,
        ]
        name = f"{command}-{len(self._processes)}"
        process = by_command(name, ["-c", enter, where, *words], self._directory / f"{name}.log")
        self._processes.append(process)
        return process

    def ask(self, path: str, body: dict | None = None) -> dict:
        words = [path, *([json.dumps(body)] if body is not None else [])]
        command = ["ip", "netns", "exec", self.here, sys.executable, "-c", ASK, *words]
        return json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )

    def names(self, where: str, **hosts: str) -> None:
        """What a machine's file of hosts says, from now on."""
        file = Path("/etc/netns") / where / "hosts"
        file.parent.mkdir(parents=True, exist_ok=True)
        # in place: the processes there see this very file
        file.write_text("".join(f"{address} {name}\n" for name, address in hosts.items()))

    def part(self) -> None:
        for process in self._processes:
            process.end()
        for name in (self.here, self.there):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


@pytest.fixture
def machines(tmp_path: Path, tiny: Path) -> Iterator[Machines]:
    if shutil.which("ip") is None:
        pytest.skip("no command ip here")
    machines = Machines(tmp_path, tiny)
    try:
        try:
            machines.join()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces for this user: {error.stderr.decode().strip()}")
        subprocess.run(
            [sys.executable, "-m", "baton", "secret", "new", tmp_path / "SECRET"],
            check=True,
            capture_output=True,
        )
        yield machines
    finally:
        machines.part()


@pytest.mark.timeout(240)
def test_workers_of_two_machines_find_each_other_by_their_routes(machines: Machines) -> None:
    """Without NIXL, and without a flag that says where anybody is but the gateway."""
    control, pages = f"tcp://{GATEWAY}:5500", ("--kv-pages", "40", "--fabric", "tcp")
    machines.start(machines.here, "gateway", "--control", control, "--served-model-name", "m")
    machines.start(
        machines.there,
        "worker",
        "--role",
        "prefill",
        "--gateway",
        control,
        "--served-model-name",
        "m",
        *pages,
    )
    machines.start(
        machines.here,
        "worker",
        "--role",
        "decode",
        "--gateway",
        control,
        "--served-model-name",
        "m",
        *pages,
    )
    wait_for(lambda: machines.ask("/ready")["ready"], seconds=120, why="a pair over two machines")
    answer = machines.ask(
        "/v1/completions",
        {"model": "m", "prompt": list(range(1, 60)), "max_tokens": 6, "ignore_eos": True},
    )
    assert answer["usage"]["completion_tokens"] == 6


@pytest.mark.timeout(240)
def test_a_gateway_that_moves_is_found_by_its_name(machines: Machines) -> None:
    machines.names(machines.there, gateway=GATEWAY)
    served = ("--served-model-name", "m", "--skip-server-warmup")
    first = machines.start(machines.here, "gateway", "--control", f"tcp://{GATEWAY}:5500", *served)
    flags = ("--gateway", "dns://gateway:5500", "--served-model-name", "m", "--kv-pages", "40")
    machines.start(machines.there, "worker", "--role", "unified", *flags)
    wait_for(lambda: machines.ask("/ready")["ready"], seconds=120, why="a worker on the other one")
    first.end()
    ip("-n", machines.here, "addr", "add", f"{MOVED}/24", "dev", "cable")
    machines.start(machines.here, "gateway", "--control", f"tcp://{MOVED}:5500", *served)
    wait_for(lambda: "none" in machines.ask("/ready")["why"], seconds=60, why="it is up, alone")
    machines.names(machines.there, gateway=MOVED)
    wait_for(lambda: machines.ask("/ready")["ready"], seconds=30, why="the worker has found it")
