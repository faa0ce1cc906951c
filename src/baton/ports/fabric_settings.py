"""What the operator decides about data planes. Apart from the port: the command line needs it without numpy."""

import msgspec


class FabricSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator decides about data planes.

    Attributes:
        host: our address, as peers reach it
        devices: network devices, e.g. ("mlx5_0",); empty = the engine's choice
        nixl_backend: NIXL's plugin, e.g. "UCX"
        nixl_params: the plugin's parameters, over our own
        mooncake_protocol: "tcp" or "rdma"
        tcp_streams: connections to a peer
    """

    host: str = "127.0.0.1"
    devices: tuple[str, ...] = ()
    nixl_backend: str = "UCX"
    nixl_params: dict[str, str] = {}
    mooncake_protocol: str = "tcp"
    tcp_streams: int = 2
