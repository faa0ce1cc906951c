"""Findings about fabrics: each is tried between two processes, and every byte is compared."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec

from baton.adapters.fabrics import DEFAULTS, available
from baton.cli.doctor import network
from baton.cli.doctor.finding import Finding, ok, problem, warning
from baton.cli.doctor.probe import MARK, ProbeResult, Tried
from baton.ports.fabric_settings import FabricSettings

LIMIT_S = 60.0
NOTHING: Mapping[str, str] = MappingProxyType({})
TALKATIVE = {"UCX_LOG_LEVEL": "info", "UCX_PROTO_INFO": "y"}  # makes UCX log how it reads


def fabrics(settings: FabricSettings) -> Iterator[Finding]:
    """Yield findings about all fabrics that Baton has."""
    obstacles = available()
    tried = {name: attempt(name, settings) for name, obstacle in obstacles.items() if not obstacle}
    yield from judge(obstacles, tried)
    if "nixl" in tried and settings.nixl.backend == "UCX":
        apart = attempt("nixl", settings, env=network.NO_SHARED_MEMORY)
        yield network.other_hosts(
            apart, rdma=network.rdma_devices(), interfaces=network.interfaces()
        )


def judge(obstacles: Mapping[str, str], tried: Mapping[str, Tried]) -> Iterator[Finding]:
    """Turn the results of the trials into findings."""
    for name, obstacle in obstacles.items():
        if obstacle:
            said, _, remedy = obstacle.partition(": ")
            missing = said == "not installed"  # an optional package that nobody asked for
            yield (
                ok("fabrics", name, said, remedy)
                if missing
                else warning("fabrics", name, said, remedy)
            )
            continue
        found = tried[name].found
        if found.why:
            yield problem(
                "fabrics",
                name,
                found.why,
                "serve with another --fabric; or repair it, then run 'baton doctor' again",
            )
            continue
        over = f" over {tried[name].transport}" if tried[name].transport else ""
        yield ok(
            "fabrics",
            name,
            f"works{over}: {found.gbytes_s:.1f} GB/s, "
            f"{found.small_us:.0f} us for 4 KiB; every byte right",
        )
    if not any(not t.found.why for t in tried.values()):
        yield problem(
            "fabrics", "handoff", "no fabric works here", "serve with --role unified until one does"
        )
    refused = next((t.found.cma for t in tried.values() if t.found.cma), "")
    if refused:
        yield warning(
            "fabrics",
            "CMA",
            f"reading a sibling's memory fails: {refused}",
            "see 'ptrace scope'; shm does not need it",
        )
    elif tried:
        yield ok("fabrics", "CMA", "a process may read its sibling's memory")


def attempt(
    kind: str, settings: FabricSettings = DEFAULTS, *, env: Mapping[str, str] = NOTHING
) -> Tried:
    """Run a trial: start a source and a reader with these settings, and stop both after the read.

    `env` is added to the environment of both.
    """
    command = [sys.executable, "-P", "-m", "baton.cli.doctor.probe"]
    pipe, env, given = (
        subprocess.PIPE,
        {**os.environ, **TALKATIVE, **env},
        msgspec.json.encode(settings).decode(),
    )
    source = subprocess.Popen(
        [*command, "source", kind, given],
        stdin=pipe,
        stdout=pipe,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
    )
    watchdog = threading.Timer(LIMIT_S, source.kill)
    watchdog.start()
    try:
        assert source.stdout is not None
        exposed = next(
            (line.removeprefix(MARK) for line in source.stdout if line.startswith(MARK)), None
        )
        if exposed is None:
            return Tried(
                ProbeResult(why=f"the process that offers memory ended with status {source.wait()}")
            )
        if '"why"' in exposed:
            return Tried(msgspec.json.decode(exposed, type=ProbeResult))
        return _read([*command, "reader", kind, given], exposed, env)
    finally:
        watchdog.cancel()
        source.kill()
        source.communicate()


def _read(command: list[str], exposed: str, env: Mapping[str, str]) -> Tried:
    try:
        done = subprocess.run(
            command,
            input=exposed,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=env,
            timeout=LIMIT_S,
        )
    except subprocess.TimeoutExpired:
        return Tried(ProbeResult(why=f"a read of some megabytes did not end within {LIMIT_S:g} s"))
    said = [line.removeprefix(MARK) for line in done.stdout.splitlines() if line.startswith(MARK)]
    if not said:
        return Tried(
            ProbeResult(
                why=f"the reading process ended with status {done.returncode}: {done.stdout[-200:]}"
            )
        )
    return Tried(msgspec.json.decode(said[-1], type=ProbeResult), transport(done.stdout))


def transport(log: str) -> str:
    """Return the transport that UCX uses for the largest reads, from its protocol table.

    For example cma/memory, tcp/lo or rc_mlx5/mlx5_0:1.
    """
    section = log.rpartition("remote memory read by ucp_get")
    found = re.findall(r"\|\s*\S*inf\s*\|[^|]*\|\s*([^|]+?)\s*\|", section[2])
    return found[0] if section[1] and found else ""
