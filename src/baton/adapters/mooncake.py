"""Fabric `mooncake`: Mooncake's transfer engine over TCP or RDMA as an engine of agent_fabric.

Peers find each other without a metadata server (its P2P handshake). The engine knows hosts and ports but no boots, so each
source also keeps a door (tcp_door.py): a reader holds a connection to it, proved to lead to the boot it wants, for as long
as it reads; what ends after that connection broke has failed.
"""

from baton.adapters.agent_fabric import TransferEngine
from baton.adapters.agent_reads import Agent
from baton.adapters.mooncake_agent import MooncakeAgent, load_mooncake
from baton.core.errors import ConfigError
from baton.core.ids import Boot
from baton.ports.fabric import Capabilities
from baton.ports.fabric_settings import FabricSettings

# The engine takes 2,048 entries at once over TCP and fails with more. Each of our ranges is an entry and a batch of its own,
# see mooncake_agent.py, and one part of so many is posted together. It has no cancel: UNKNOWN is possible.
CAPABILITIES = Capabilities(
    max_ranges_per_call=16,
    max_range_bytes=4 << 20,
    same_host_only=False,
    device_memory=False,
    ended_means_quiet=False,
    reads_read_only=False,
)


def obstacle() -> str:
    """What keeps Mooncake from working here, "" if nothing does."""
    try:
        load_mooncake()
    except ConfigError as error:
        return str(error).removeprefix("fabric mooncake: ")
    return ""


def mooncake_engine(settings: FabricSettings, boot: Boot, rank: int, *, key: bytes) -> TransferEngine:
    """Mooncake with the operator's protocol and devices. Raises ConfigError: not installed."""
    module = load_mooncake()

    def source(_name: str) -> Agent:
        return MooncakeAgent(module, settings, key=key, door=(boot, rank))

    def reader(_name: str) -> Agent:
        return MooncakeAgent(module, settings, key=key, door=None)

    return TransferEngine(name="mooncake", capabilities=CAPABILITIES, source=source, reader=reader)
