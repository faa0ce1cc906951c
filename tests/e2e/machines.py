"""Machines of a service: network namespaces, joined by a switch. Processes on them are started by
the commands that docs/deploy.md gives."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.e2e.service import Process, by_command

DOCS = Path(__file__).parents[2] / "docs"
GATEWAY, MOVED = "10.0.0.1", "10.0.0.9"
ADDRESSES = {
    "gateway": GATEWAY,
    "prefill": "10.0.0.2",
    "decode": "10.0.0.3",
    "stranger": "10.0.0.4",
}
KEY = "an-api-key"
ENTER = "import os, sys; os.execvp('ip', ['ip', 'netns', 'exec', *sys.argv[1:]])"
ASK = """
import json, sys, urllib.error, urllib.request
try:
    body = sys.argv[3].encode() if len(sys.argv) > 3 else None
    head = {"Content-Type": "application/json", "Authorization": "Bearer " + sys.argv[2]}
    request = urllib.request.Request("http://127.0.0.1:8000" + sys.argv[1], body, head)
    print(urllib.request.urlopen(request, timeout=60).read().decode())
except urllib.error.HTTPError as error:
    print(error.read().decode())
except OSError as error:
    print(json.dumps({"ready": False, "why": str(error)}))
"""
# it knows the sockets of the machine on which it runs
LISTENING = """
import psutil, sys
for c in psutil.Process(int(sys.argv[1])).net_connections("inet"):
    if c.status == psutil.CONN_LISTEN:
        print(c.laddr.ip, c.laddr.port)
"""


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def documented() -> dict[str, str]:
    """The commands for three servers, by the role that each starts."""
    section = re.search(
        r"^## Three servers\n(.*?)^## ", (DOCS / "deploy.md").read_text(), re.M | re.S
    )
    assert section is not None
    found = {}
    for line in section[1].replace("\\\n", " ").splitlines():
        if line.startswith("baton gateway"):
            found["gateway"] = line
        elif role := re.match(r"baton worker .*--role (\w+)", line):
            found[role[1]] = line
    assert set(found) == {"gateway", "prefill", "decode"}
    return found


class Machines:
    """All of them, with the files that the commands name."""

    def __init__(self, directory: Path, model: Path) -> None:
        self.directory, self.model = directory, model
        self.processes: dict[str, Process] = {}

    def space(self, machine: str) -> str:
        """The name of its namespace."""
        return f"baton-{os.getpid()}-{machine}"

    def join(self) -> None:
        """Raises CalledProcessError: this user may not."""
        switch = self.space("switch")
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        for machine, address in ADDRESSES.items():
            space = self.space(machine)
            ip("netns", "add", space)
            ip("-n", space, "link", "set", "lo", "up")
            cable = ("link", "add", "cable", "type", "veth", "peer", "name", machine)
            ip("-n", space, *cable, "netns", switch)
            ip("-n", switch, "link", "set", machine, "master", "switch", "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "cable")
            ip("-n", space, "link", "set", "cable", "up")

    def equip(self) -> None:
        """Write the files that the commands name."""
        self.name_gateway(GATEWAY)
        (self.directory / "keys").write_text(f"{KEY}\n")
        for name in ("secret", "other"):
            self.run("gateway", ["-m", "baton", "secret", "new", str(self.directory / name)])

    def part(self) -> None:
        for process in reversed(self.processes.values()):
            process.end()
        for machine in (*ADDRESSES, "switch"):
            subprocess.run(["ip", "netns", "del", self.space(machine)], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / self.space(machine), ignore_errors=True)

    def name_gateway(self, address: str) -> None:
        """What gateway.example means from now on, on every machine."""
        for machine in ADDRESSES:
            file = Path("/etc/netns") / self.space(machine) / "hosts"
            file.parent.mkdir(parents=True, exist_ok=True)
            # in place: the processes there see this very file
            file.write_text(f"{address} gateway.example\n")

    def start(
        self,
        machine: str,
        command: str,
        *more: str,
        name: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a documented command, with flags that keep it small."""
        command = command.replace("MODEL", str(self.model)).replace(
            "/etc/baton", str(self.directory)
        )
        _, *words = shlex.split(command)
        variables = [f"{key}={value}" for key, value in (env or {}).items()]
        inside = ["env", *variables, sys.executable, "-m", "baton", *words, *more]
        name = name or machine
        process = by_command(
            name, ["-c", ENTER, self.space(machine), *inside], self.directory / f"{name}.log"
        )
        self.processes[name] = process
        return process

    def run(self, machine: str, words: list[str], said: str = "") -> str:
        """What a Python process on a machine prints."""
        command = ["ip", "netns", "exec", self.space(machine), sys.executable, *words]
        done = subprocess.run(command, input=said, check=True, capture_output=True, text=True)
        return done.stdout

    def ask(self, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What the gateway answers on its own machine."""
        more = [] if body is None else [json.dumps(body)]
        return dict(json.loads(self.run("gateway", ["-c", ASK, path, KEY, *more])))

    def log(self, name: str) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.processes[name].log.read_text())

    def listening(self, name: str) -> list[int]:
        """The ports at which a process listens for other machines."""
        printed = self.run(name, ["-c", LISTENING, str(self.processes[name].pid)])
        found = [(host, int(port)) for host, port in map(str.split, printed.splitlines())]
        return sorted({port for host, port in found if not host.startswith("127.")})
