"""Divides the machine's cores among its workers.

If threads of two workers share a core, each worker spins in barriers for a thread that cannot run,
and a forward pass takes many times longer. So the shares are disjoint as long as there are enough
cores.
"""

import os
from collections.abc import Sequence

import msgspec

from baton.core.errors import ConfigError


class CpuShare(msgspec.Struct, frozen=True):
    """One worker's part of the machine: the logical
    CPUs it is pinned to, and its compute threads."""

    cores: tuple[int, ...]
    threads: int


def available_cores() -> tuple[int, ...]:
    """Return the logical CPUs that this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def divide(cores: Sequence[int], *, workers: int, threads: int | None) -> tuple[CpuShare, ...]:
    """Divide `cores` into a share for every worker, in order.

    With `threads` each worker gets that many cores; without it all cores are divided, and the first
    workers get the remainder. Every worker gets at least one core. If there are not enough, cores
    are given out again, from the first.

    Raises:
        ConfigError: `threads` is less than 1
    """
    if threads is not None and threads < 1:
        raise ConfigError(f"{threads} threads for each worker: it must be at least 1")
    total, given, shares = len(cores), 0, []
    for worker in range(workers):
        count = (
            threads
            if threads is not None
            else max(1, total // workers + (worker < total % workers))
        )
        taken = (cores[(given + i) % total] for i in range(min(count, total)))
        shares.append(CpuShare(tuple(sorted(taken)), count))
        given += count
    return tuple(shares)


def together(shares: Sequence[CpuShare]) -> CpuShare:
    """Combine the shares of a worker's ranks: all
    their cores, and the least threads of any rank."""
    return CpuShare(
        tuple(sorted({core for share in shares for core in share.cores})),
        min(share.threads for share in shares),
    )


def warning(shares: Sequence[CpuShare], *, cores: int) -> str | None:
    """Return a warning if the workers' threads exceed the machine's cores, else None."""
    wanted = sum(share.threads for share in shares)
    if wanted <= cores:
        return None
    return (
        f"{len(shares)} workers with {wanted} threads share {cores} cores: they will slow "
        "each other down, often manifold"
    )


def pin(cores: Sequence[int]) -> None:
    """Pin this process, and every thread that it starts later, to `cores`; empty = do not pin.

    Raises:
        ConfigError: the machine does not have these cores, or this process may not use them
    """
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as e:
        raise ConfigError(
            f"cannot pin to cores {sorted(cores)}; this process may use "
            f"{list(available_cores())}: {e}"
        ) from e
