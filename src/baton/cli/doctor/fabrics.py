"""Findings about fabrics: each is tried between two processes, and every byte is compared."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from baton.adapters.cuda_driver import CudaDriver, load_cuda
from baton.adapters.fabrics import DEFAULTS, available
from baton.cli.doctor import cuda, network
from baton.cli.doctor.finding import Finding, ok, problem, warning
from baton.cli.doctor.probe import MARK, ProbeResult, Tried
from baton.core.errors import ConfigError
from baton.core.memory.kinds import HOST, CudaMemory, MemoryKind
from baton.ports.fabric_settings import FabricSettings

LIMIT_S = 60.0
LoadCuda = Callable[[], CudaDriver]
NOTHING: Mapping[str, str] = MappingProxyType({})
TALKATIVE = {"UCX_LOG_LEVEL": "info", "UCX_PROTO_INFO": "y"}  # makes UCX log how it reads


def fabrics(settings: FabricSettings) -> Iterator[Finding]:
    """Yield findings about all fabrics that Baton has."""
    obstacles = available()
    tried = {name: attempt(name, settings) for name, obstacle in obstacles.items() if not obstacle}
    yield from judge(obstacles, tried)
    if "nixl" in tried and settings.nixl.backend == "UCX":
        elsewhere = msgspec.structs.replace(settings, host=network.ANYWHERE)
        apart = attempt("nixl", elsewhere, env=network.NO_SHARED_MEMORY)
        yield network.other_hosts(
            apart, rdma=network.rdma_devices(), interfaces=network.interfaces()
        )
    yield devices(settings, why_not=obstacles["nixl"])


def devices(settings: FabricSettings, *, why_not: str, load: LoadCuda = load_cuda) -> Finding:
    """Try reads between the memory of two devices, or of one if there is only one.

    `why_not` says why NIXL does not work here, empty if it does.
    """
    try:
        count = load().device_count
    except ConfigError as error:
        return cuda.none_here(str(error))
    if why_not:
        return cuda.untried(count, why_not)
    first, last = CudaMemory(0), CudaMemory(count - 1)
    tried = attempt("nixl", settings, source_memory=first, reader_memory=last)
    return cuda.between(first, last, tried)


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
    kind: str,
    settings: FabricSettings = DEFAULTS,
    *,
    env: Mapping[str, str] = NOTHING,
    source_memory: MemoryKind = HOST,
    reader_memory: MemoryKind = HOST,
) -> Tried:
    """Run a trial: start a source and a reader with these settings, and stop both after the read.

    `env` is added to the environment of both.
    """
    source_place, reader_place = (
        msgspec.json.encode(memory).decode() for memory in (source_memory, reader_memory)
    )
    command = [sys.executable, "-P", "-m", "baton.cli.doctor.probe"]
    pipe, env, given = (
        subprocess.PIPE,
        {**os.environ, **TALKATIVE, **env},
        msgspec.json.encode(settings).decode(),
    )
    source = subprocess.Popen(
        [*command, "source", kind, given, source_place],
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
        return _read([*command, "reader", kind, given, reader_place], exposed, env)
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
