"""The flags of `baton serve --on ray`."""

from typing import Annotated

import msgspec

from baton.ports.flag import PROCESSES, Flag, NumberLimits, require_limits


class RaySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which Ray cluster to use, and what each rank takes of it."""

    ray_address: Annotated[
        str | None,
        Flag(
            "With --on ray: the cluster, HOST:PORT of its head.",
            PROCESSES,
            default="RAY_ADDRESS, or the cluster of this machine",
            metavar="HOST:PORT",
        ),
    ] = None
    ray_cpus: Annotated[
        float | None,
        Flag(
            "With --on ray: CPUs that each rank takes of its node.",
            PROCESSES,
            default="--threads",
            limits=NumberLimits(0.01),
        ),
    ] = None
    ray_gpus: Annotated[
        float,
        Flag(
            "With --on ray: GPUs that each rank takes of its node.",
            PROCESSES,
            limits=NumberLimits(0),
        ),
    ] = 0.0

    def __post_init__(self) -> None:
        require_limits(self)
