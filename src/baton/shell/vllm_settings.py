"""The settings of an engine of vLLM that Baton starts, with its connector (docs/vllm.md)."""

import msgspec

from baton.shell.settings import Role


class VllmSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One `vllm serve`.

    Attributes:
        name: of the engine, unique among those of a gateway
        model: directory of the checkpoint
        gateways: control addresses of the gateways
        host: IP address of this machine, as gateways and other engines reach it
        bind: own control address
        secret: file with the cluster's secret
        fabrics: those that may be used; empty = the connector's own choice
        cores: logical CPUs of each rank, where vLLM computes on CPUs; empty = not pinned
        threads: of each rank then
        arguments: more of vLLM's, which win over those that Baton gives
    """

    name: str
    role: Role
    model: str
    served_model_name: str
    gateways: tuple[str, ...]
    host: str
    bind: str
    secret: str | None
    tp: int
    dtype: str
    max_model_len: int | None
    fabrics: tuple[str, ...]
    mooncake_allow_unauthenticated: bool
    handoff_timeout_s: float
    fetch_timeout_s: float
    cores: tuple[tuple[int, ...], ...]
    threads: int
    arguments: tuple[str, ...]
