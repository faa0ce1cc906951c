"""Lets a worker's leader wait, before its pump runs, until every rank has joined."""

from collections.abc import Callable

import structlog

from baton.core.errors import PeerError
from baton.core.frames import Join
from baton.core.ids import Micros
from baton.core.manifest import Manifest
from baton.core.rank.rank_assembly import RankAssembly
from baton.core.session import session
from baton.ports.clock import Clock
from baton.shell.lines import Lines

log = structlog.get_logger()


def gather_ranks(
    own: Manifest,
    lines: Lines,
    clock: Clock,
    *,
    sleep: Callable[[Micros], None],
    patience: Micros,
    look: Callable[[], None],
) -> tuple[Manifest, tuple[int, ...], tuple[int, ...]]:
    """Wait for all ranks; returns (manifest of the whole worker, process ids, host memory in
    bytes).

    The manifest is made of `own` (rank 0) and the manifests of the other ranks. Process ids and
    host memory are those of the other ranks, in order of rank.

    Args:
        sleep: sleeps until something comes in, at most this long
        look: called in every round; raises when the process of a rank has ended

    Raises:
        ConfigError: a rank does not fit
        PeerError: a rank was lost, or has not joined in time; the message names the missing ranks
    """
    assembly, until = RankAssembly(own), clock.now() + patience
    while (whole := assembly.whole) is None:
        for event in lines.receive():
            match event:
                case session.MessageReceived(sender=sender, message=Join() as join):
                    assembly.take(sender, join)
                    log.info(
                        "rank_joined",
                        rank=assembly.rank_of(sender),
                        boot=f"{sender:x}",
                        missing=assembly.missing,
                    )
                case session.PeerLost():
                    if (rank := assembly.rank_of(event.boot)) is not None:
                        raise PeerError(
                            f"rank {rank} of this worker was lost while it started: {event.why}"
                        )
                case _:
                    pass  # a session with a rank that has not sent its manifest yet
        lines.flush()
        look()
        now = clock.now()
        if now >= until:
            raise PeerError(
                f"rank(s) {assembly.missing} of this worker have not joined in "
                f"{patience / 1e6:.0f} s"
            )
        timer = lines.timer()
        sleep(Micros(min(until, timer if timer is not None else until) - now))
    return whole, assembly.pids, assembly.host_bytes
