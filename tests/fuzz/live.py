"""A small service of real processes to be hurt, and what must hold of it afterwards."""

import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
from tests.e2e.service import Service, by_command, free_port, wait_for
from tests.fuzz.report import Report, resident_mib
from tests.fuzz.tapped_worker import frames_of
from tests.tiny import make_tiny

from baton.adapters.secret import Secret, load_secret, new_secret

GROWTH_MIB = 64.0
PATIENCE_S = 120.0  # until a service that was disturbed serves again
ROLES = ("prefill", "decode")


@dataclass
class Live:
    """A service with a secret, whose workers write their frames down.

    Attributes:
        listening: the control addresses of the processes that have one
    """

    service: Service
    secret: Secret
    taps: dict[str, Path]
    listening: dict[str, str]

    def frames(self) -> list[bytes]:
        """Right frames of the sessions until now."""
        return list({f: None for path in self.taps.values() for f in frames_of(path)})

    def serve(self) -> None:
        """Let a request through, and wait until it has ended everywhere."""
        self.service.wait_ready()

        def answered() -> bool:
            return self.service.complete("hello", max_tokens=4).status_code == 200

        wait_for(answered, seconds=PATIENCE_S, why="a request is served")

    def residents(self) -> dict[str, float]:
        """The memory of each process."""
        return {name: resident_mib(p.pid) for name, p in self.service.processes.items()}

    def judge(self, report: Report, before: dict[str, float]) -> None:
        """Note what does not hold: all processes live, serve, hold nothing and log no traceback."""
        for name, process in self.service.processes.items():
            if process.popen.poll() is not None:
                report.breaks(f"{name} ended: {self.service.log(name)[-1500:]}")
                return
            if found := re.search(r"Traceback.*?(?=\ntime=|\Z)", self.service.log(name), re.DOTALL):
                report.breaks(f"{name}: {found[0][-1500:]}")
        try:
            self.serve()
            self.service.wait_clean(PATIENCE_S)
        except AssertionError as error:
            report.breaks(str(error)[:1500])
        report.growth_mib = {n: now - before[n] for n, now in self.residents().items()}
        for name, grown in report.growth_mib.items():
            if grown > GROWTH_MIB:
                report.breaks(f"{name}: memory grew by {grown:.0f} MiB")
        for name, process in self.service.processes.items():
            connections = len(psutil.Process(process.pid).net_connections())
            if connections > 100:
                report.breaks(f"{name} has {connections} sockets")


@contextmanager
def live() -> Iterator[Live]:
    """A gateway, a prefill and a decode worker with a random model."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        secret = directory / "secret"
        new_secret(secret)
        model = make_tiny(directory / "model", "llama")
        service = Service(directory, model, begin=by_command)
        taps = {role: directory / f"{role}.frames" for role in ROLES}
        listening = {"gateway": service.control, "prefill": f"tcp://127.0.0.1:{free_port()}"}
        try:
            service.start_gateway("--secret", str(secret), "--log-level", "warning")
            for role in ROLES:
                flags = ["--secret", str(secret), "--log-level", "warning", "--kv-pages", "64"]
                if role in listening:
                    flags += ["--bind", listening[role]]
                tapped = ["-m", "tests.fuzz.tapped_worker", str(taps[role])]
                service.start_worker(role, *flags, main=tapped)
            found = Live(service, load_secret(secret), taps, listening)
            for _ in range(5):
                found.serve()
            yield found
        finally:
            service.close()
