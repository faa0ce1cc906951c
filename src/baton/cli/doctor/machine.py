"""Findings about the machine: cores, memory, limits, devices. `root` is where proc/ and sys/ are
found, for tests."""

import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

from baton.adapters.descriptors import LEAST_FILES
from baton.adapters.memory import available_bytes
from baton.cli.doctor.finding import Finding, ok, problem, warning
from baton.shell.threads import available_cores

GIB = 1 << 30
LEAST_MEMORY = 4 * GIB  # the trial model: two pools of 1 GiB, weights and PyTorch in each worker
LEAST_SHM = 64 << 20
FAST = ("avx512_bf16", "amx_bf16", "avx512f", "avx2")


def machine(root: Path = Path("/")) -> Iterator[Finding]:
    """Yield all findings about this machine."""
    yield kernel(os.uname().release)
    yield cores(len(available_cores()), quota(root), flags(root))
    yield memory(available_bytes(root))
    yield huge_pages(root)
    yield open_files(resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    yield locked(
        resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        rdma=bool(_names(root / "sys/class/infiniband")),
    )
    yield shared_memory(shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0)
    yield ptrace(_text(root / "proc/sys/kernel/yama/ptrace_scope"))
    yield rdma(_names(root / "sys/class/infiniband"))


def kernel(release: str) -> Finding:
    """Check the kernel: sealed memory files that their owner may write need Linux 5.1."""
    version = tuple(int(part) for part in release.split("-")[0].split(".")[:2] if part.isdecimal())
    if version < (5, 1):
        return problem(
            "machine",
            "kernel",
            f"Linux {release}",
            "Linux 5.1 or newer is needed, for sealed memory files",
        )
    return ok("machine", "kernel", f"Linux {release}")


def quota(root: Path) -> float | None:
    """Return the number of cores that our cgroup may use; None = no limit."""
    limit, _, period = _text(root / "sys/fs/cgroup/cpu.max").partition(" ")
    return int(limit) / int(period) if limit.isdecimal() and period.isdecimal() else None


def flags(root: Path) -> set[str]:
    """Return the processor's features, as /proc/cpuinfo names them."""
    lines = _text(root / "proc/cpuinfo").splitlines()
    return set(
        next(
            (
                line.split(":")[1].split()
                for line in lines
                if line.startswith(("flags", "Features"))
            ),
            [],
        )
    )


def cores(count: int, limit: float | None, can: set[str]) -> Finding:
    """Check the cores: a split service has at least two workers, which need a core each."""
    fast = next(
        (name for name in FAST if name in can), "no vector extension that PyTorch is fast with"
    )
    said = f"{count} cores for this process, {fast}"
    if limit is not None and limit < count:
        return warning(
            "machine",
            "cores",
            f"{said}; the cgroup allows the time of {limit:g}",
            f"start with --threads so that all sum to {limit:g}",
        )
    if count < 2:
        return warning(
            "machine",
            "cores",
            said,
            "prefill and decode share one core: use --role unified, or give it two cores",
        )
    return ok("machine", "cores", said)


def memory(there: int) -> Finding:
    """Check the memory for pools and weights."""
    said = f"{there / GIB:.1f} GiB available to this process"
    if there < LEAST_MEMORY:
        return warning("machine", "memory", said, "make pools smaller: --kv-memory 256MiB")
    return ok("machine", "memory", said)


def huge_pages(root: Path) -> Finding:
    """Check huge pages: pools are shared memory, which the kernel can back with huge pages."""
    policy = _chosen(_text(root / "sys/kernel/mm/transparent_hugepage/shmem_enabled"))
    reserved = next(
        (
            line.split()[1]
            for line in _text(root / "proc/meminfo").splitlines()
            if line.startswith("HugePages_T")
        ),
        "0",
    )
    return ok(
        "machine",
        "huge pages",
        f"{reserved} reserved; for shared memory: "
        f"{policy or 'not stated'}. Nothing depends on them",
    )


def open_files(hard: int) -> Finding:
    """Check the limit on open files: each stream is a socket of the gateway."""
    if hard != resource.RLIM_INFINITY and hard < LEAST_FILES:
        remedy = f"ulimit -Hn {LEAST_FILES} as root; in a container: --ulimit nofile={LEAST_FILES}"
        return warning("machine", "open files", f"at most {hard}; each stream takes one", remedy)
    return ok(
        "machine", "open files", "no limit" if hard == resource.RLIM_INFINITY else f"at most {hard}"
    )


def locked(limit: int, *, rdma: bool) -> Finding:
    """Check the limit on locked memory: RDMA registers pools, which locks them."""
    if limit == resource.RLIM_INFINITY:
        return ok("machine", "locked memory", "no limit")
    said = f"at most {limit >> 10} KiB"
    if rdma:
        return warning(
            "machine", "locked memory", f"{said}; RDMA locks whole pools", "ulimit -l unlimited"
        )
    return ok("machine", "locked memory", f"{said}; only RDMA needs more, and there is none here")


def shared_memory(total: int) -> Finding:
    """Check /dev/shm, where UCX keeps its queues; Baton's pools are elsewhere."""
    if total < LEAST_SHM:
        return warning(
            "machine",
            "/dev/shm",
            f"{total >> 20} MiB; UCX needs some",
            "in a container: --shm-size 1g",
        )
    return ok("machine", "/dev/shm", f"{total / GIB:.1f} GiB")


def ptrace(scope: str) -> Finding:
    """Check who may read another process's memory (Yama); UCX does so on one host."""
    if scope in ("", "0"):
        return ok(
            "machine",
            "ptrace scope",
            "not restricted" if scope == "0" else "no such restriction in this kernel",
        )
    remedy = (
        "sysctl kernel.yama.ptrace_scope=0, or --cap-add SYS_PTRACE in a container; shm "
        "does not need it"
    )
    return warning(
        "machine",
        "ptrace scope",
        f"{scope}: processes may not read their siblings, nixl is slower on one host",
        remedy,
    )


def rdma(devices: list[str]) -> Finding:
    """Report network cards that can do RDMA."""
    return ok("machine", "RDMA devices", ", ".join(devices) or "none")


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def _chosen(options: str) -> str:
    """`always [never]` -> never."""
    return next((option.strip("[]") for option in options.split() if option.startswith("[")), "")
