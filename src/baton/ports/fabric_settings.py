"""The operator's settings of fabrics: a struct for each fabric that has some, and one for all.

These structs are apart from the port because the command line needs them without numpy.
"""

from collections.abc import Collection
from ipaddress import ip_address
from typing import Annotated, Literal

import msgspec

from baton.core.errors import ConfigError
from baton.ports.flag import MEMORY, Flag, NumberLimits, require_limits
from baton.ports.written import names, pair

# The choices of an operator, and the fabrics that each of them means, in order of preference.
# Mooncake must be named and allowed, because its listener serves whoever reaches it
# (docs/fabrics.md); NIXL must be named off loopback.
FABRICS = {
    "auto": ("shm", "nixl", "tcp"),
    "shm": ("shm",),
    "nixl": ("nixl",),
    "mooncake": ("mooncake",),
    "tcp": ("tcp",),
}


class NixlSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of fabric nixl. Parameters of its plugin override ours."""

    backend: Annotated[str, Flag("Plugin of NIXL.", MEMORY, ("--nixl-backend",))] = "UCX"
    params: Annotated[
        dict[str, str],
        Flag(
            "Setting of NIXL's plugin; may be repeated.",
            MEMORY,
            ("--nixl-param",),
            read=pair,
            repeated=True,
            metavar="KEY=VALUE",
        ),
    ] = {}


class MooncakeSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of fabric mooncake."""

    protocol: Annotated[
        Literal["tcp", "rdma"],
        Flag("How Mooncake moves bytes: tcp or rdma.", MEMORY, ("--mooncake-protocol",)),
    ] = "tcp"
    allow_unauthenticated: Annotated[
        bool,
        Flag(
            "Use fabric mooncake, whose port asks nobody who he is: whoever reaches this machine "
            "reads and writes the pools.",
            MEMORY,
            ("--mooncake-allow-unauthenticated",),
        ),
    ] = False


class TcpSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of fabric tcp."""

    streams: Annotated[
        int,
        Flag(
            "Connections of fabric tcp to a peer.",
            MEMORY,
            ("--tcp-streams",),
            limits=NumberLimits(1, 16),
        ),
    ] = 2

    def __post_init__(self) -> None:
        require_limits(self)


def require_mooncake_allowed(fabrics: Collection[str], allowed: bool, *, flag: str) -> None:
    """Raise ConfigError if mooncake is to be used and the operator has not allowed what that means.

    The engine (0.3.13) listens on every interface of the machine, whatever address it is given, and
    there it reads and writes all memory that is registered for anybody.
    """
    if "mooncake" in fabrics and not allowed:
        raise ConfigError(
            "fabric mooncake listens on every interface of this machine, whatever --fabric-host "
            "says, and lets whoever reaches its port read and write the KV cache of all requests, "
            f"without the secret; if a firewall keeps others away, allow it with {flag}, or use "
            "--fabric tcp"
        )


class FabricSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of all fabrics."""

    host: Annotated[
        str,
        Flag(
            "Own IP address for fabrics tcp and mooncake, as peers reach it.",
            MEMORY,
            ("--fabric-host",),
            default="loopback; of a worker, that of the route to the gateway",
            by_hand=True,
        ),
    ] = "127.0.0.1"
    devices: Annotated[
        tuple[str, ...],
        Flag(
            "Network devices of nixl or mooncake, e.g. mlx5_0,mlx5_1.",
            MEMORY,
            ("--fabric-device", "--disaggregation-ib-device"),
            read=names,
            default="the engine's choice",
        ),
    ] = ()
    nixl: NixlSettings = NixlSettings()
    mooncake: MooncakeSettings = MooncakeSettings()
    tcp: TcpSettings = TcpSettings()

    @property
    def is_local(self) -> bool:
        """Whether peers reach this rank from its own machine alone."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:  # not an address: a fabric that needs one says so
            return False
