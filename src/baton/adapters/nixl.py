"""Fabric `nixl`: NVIDIA's NIXL (UCX over shared memory, TCP or RDMA, or other backends).

It is an engine of agent_fabric. UCX authenticates nobody: over TCP it reads and writes any memory
of the process for whoever reaches its ports. So a rank whose peers are all on this machine lets UCX
listen on loopback alone. Known problem: if UCX emulates reads in software (TCP), a reader that
vanishes during a read can abort the *source* process inside UCX. Shared memory and RDMA do not need
the source's help. NIXL serialises descriptor lists with pickle, so Baton never exchanges them.
"""

from collections.abc import Mapping, Sequence

from baton.adapters.agent_fabric import TransferEngine
from baton.adapters.agent_reads import Agent
from baton.adapters.nixl_agent import UCX_PARAMS, NixlAgent, load_nixl
from baton.core.errors import ConfigError
from baton.ports.fabric import Capabilities
from baton.ports.fabric_settings import FabricSettings, NixlSettings

# UNKNOWN is possible if NIXL keeps a request although its agent must be deleted.
CAPABILITIES = Capabilities(
    max_ranges_per_call=2048,
    max_range_bytes=32 << 20,  # so a stop takes effect in 2 to 4 ms on one host
    same_host_only=False,
    device_memory=True,
    ended_means_quiet=False,
    reads_read_only=False,
)


def nixl_engine(settings: FabricSettings) -> TransferEngine:
    """Return the engine with the operator's backend, parameters and devices.

    Raises:
        ConfigError: NIXL is not installed, or devices are given for a backend of which Baton does
            not know the parameter
    """
    nixl = load_nixl()
    params = backend_params(settings.nixl, settings.devices, local=settings.is_local)

    def make(name: str) -> Agent:
        return NixlAgent(nixl, name, backend=settings.nixl.backend, params=params)

    return TransferEngine(name="nixl", capabilities=CAPABILITIES, source=make, reader=make)


def backend_params(
    settings: NixlSettings, devices: Sequence[str], *, local: bool
) -> Mapping[str, str]:
    """Return the backend's parameters: Baton's own, the devices, the operator's. Later ones win.

    Args:
        local: all peers are on this machine
    """
    params: dict[str, str] = {}
    if settings.backend == "UCX":
        params |= UCX_PARAMS
        if devices:
            params["device_list"] = ", ".join(devices)
        elif local:
            params["engine_config"] += ",NET_DEVICES=lo"
    elif devices:
        raise ConfigError(
            f"--fabric-device {','.join(devices)} is for NIXL's UCX backend;"
            f" name the devices of {settings.backend} with --nixl-param"
        )
    return params | settings.params
