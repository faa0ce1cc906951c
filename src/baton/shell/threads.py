"""The machine's cores, divided among its workers.

Threads of different workers on one core wait for each other in spinning barriers, which makes a forward pass
many times slower; so the workers' shares are disjoint as long as there are cores enough.
"""

import os
from collections.abc import Sequence

import msgspec

from baton.core.errors import ConfigError


class CpuShare(msgspec.Struct, frozen=True):
    """One worker's part of the machine: logical CPUs it is pinned to, and its number of compute threads."""

    cores: tuple[int, ...]
    threads: int


def available_cores() -> tuple[int, ...]:
    """The logical CPUs that this process may run on, ascending."""
    return tuple(sorted(os.sched_getaffinity(0)))


def divide(cores: Sequence[int], *, workers: int, threads: int | None) -> tuple[CpuShare, ...]:
    """A share for every worker, in order.

    With `threads` each worker gets that many; without, all cores are dealt out, the odd ones to the first workers.
    Every worker gets at least one core. Where the cores do not suffice they are dealt out again from the first.

    Raises:
        ConfigError: fewer than one thread
    """
    if threads is not None and threads < 1:
        raise ConfigError(f"{threads} threads for each worker: it must be at least 1")
    total, given, shares = len(cores), 0, []
    for worker in range(workers):
        count = threads if threads is not None else max(1, total // workers + (worker < total % workers))
        taken = (cores[(given + i) % total] for i in range(min(count, total)))
        shares.append(CpuShare(tuple(sorted(taken)), count))
        given += count
    return tuple(shares)


def together(shares: Sequence[CpuShare]) -> CpuShare:
    """The share of a worker of several ranks: all their cores, and the threads that each of them gets."""
    return CpuShare(tuple(sorted({core for share in shares for core in share.cores})), min(share.threads for share in shares))


def warning(shares: Sequence[CpuShare], *, cores: int) -> str | None:
    """The line for the operator when the workers' threads exceed the machine's cores, else None."""
    wanted = sum(share.threads for share in shares)
    if wanted <= cores:
        return None
    return f"{len(shares)} workers with {wanted} threads share {cores} cores: they will slow each other down, often manifold"


def pin(cores: Sequence[int]) -> None:
    """Bind this process, and every thread it starts later, to these logical CPUs; none = leave it free.

    Raises:
        ConfigError: the machine does not have them, or this process may not use them
    """
    if not cores:
        return
    try:
        os.sched_setaffinity(0, cores)
    except OSError as e:
        raise ConfigError(f"cannot pin to cores {sorted(cores)}; this process may use {list(available_cores())}: {e}") from e
