"""Fabric `mooncake`: Mooncake's transfer engine over TCP or RDMA, as an engine of agent_fabric.

Peers find each other without a metadata server (Mooncake's P2P handshake). The engine addresses
hosts and ports, not boots. So each source also listens on a TCP socket (tcp_door.py). A reader
holds a connection to it, which proves the source's boot, for as long as it reads; a read that ends
after this connection broke has failed.
"""

from collections.abc import Callable
from importlib import metadata

import msgspec

from baton.adapters.agent_fabric import TransferEngine
from baton.adapters.agent_reads import Agent
from baton.adapters.mooncake_agent import MooncakeAgent, load_mooncake
from baton.core.errors import ConfigError
from baton.core.ids import Boot
from baton.ports.fabric import Capabilities
from baton.ports.fabric_settings import FabricSettings


def is_installed(distribution: str) -> bool:
    """Return whether a distribution is installed."""
    return any(metadata.distributions(name=distribution))


# Over TCP the engine takes 2,048 entries at once and fails with more. Each range is an entry and a
# batch of its own (mooncake_agent.py), and the ranges of one part are posted together. The engine
# has no cancel, so UNKNOWN is possible. The package without CUDA registers any address as any
# memory, and would then copy from a device's address as if it were the host's.
HOST_ONLY = Capabilities(
    max_ranges_per_call=16,
    max_range_bytes=4 << 20,
    same_host_only=False,
    device_memory=False,
    ended_means_quiet=False,
    reads_read_only=False,
)

# distributions of the engine by what they are built with; all bring the same module
WITH_CUDA = ("mooncake-transfer-engine", "mooncake-transfer-engine-cuda13")
WITHOUT_CUDA = ("mooncake-transfer-engine-non-cuda",)


def capabilities(installed: Callable[[str], bool] = is_installed) -> Capabilities:
    """Return what the installed engine can do. `installed` says whether a distribution is."""
    with_cuda = any(map(installed, WITH_CUDA)) and not any(map(installed, WITHOUT_CUDA))
    return msgspec.structs.replace(HOST_ONLY, device_memory=with_cuda)


def obstacle() -> str:
    """Return why Mooncake does not work on this machine; "" = it works."""
    try:
        load_mooncake()
    except ConfigError as error:
        return str(error).removeprefix("fabric mooncake: ")
    return ""


def mooncake_engine(
    settings: FabricSettings, boot: Boot, rank: int, *, key: bytes
) -> TransferEngine:
    """Return the engine with the operator's protocol and devices.

    Raises:
        ConfigError: Mooncake is not installed
    """
    module = load_mooncake()

    def source(_name: str) -> Agent:
        return MooncakeAgent(module, settings, key=key, door=(boot, rank))

    def reader(_name: str) -> Agent:
        return MooncakeAgent(module, settings, key=key, door=None)

    return TransferEngine(
        name="mooncake", capabilities=capabilities(), source=source, reader=reader
    )
