"""The settings of a connector: `kv_connector_extra_config` of vLLM."""

from collections.abc import Mapping
from typing import Any

import msgspec

from baton.core.errors import ConfigError
from baton.ports.fabric_settings import require_mooncake_allowed


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator says to one engine's connector.

    Attributes:
        name: of this engine, unique among those of a gateway
        url: where the gateway reaches the engine's HTTP server
        gateways: control addresses of the gateways
        bind: own control address, where decode engines reach a prefill engine
        host: own IP address for fabrics, as peers reach it
        fabric: fabrics that may be used, the preferred one first
        mooncake_allow_unauthenticated: mooncake may be among them, although its port serves
            whoever reaches it
        secret: file with the cluster's secret; required off loopback
        handoff_timeout_s: a handoff without any progress fails after this time
        fetch_timeout_s: one read fails after this time
        served_model_name: must be equal on both sides; default: the model that vLLM serves
    """

    name: str
    url: str
    gateways: tuple[str, ...] = ("tcp://127.0.0.1:8001",)
    bind: str = "tcp://127.0.0.1:*"
    host: str = "127.0.0.1"
    fabric: tuple[str, ...] = ("nixl", "tcp")
    mooncake_allow_unauthenticated: bool = False
    secret: str | None = None
    handoff_timeout_s: float = 30.0
    fetch_timeout_s: float = 10.0
    served_model_name: str | None = None

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        require_mooncake_allowed(
            self.fabric,
            self.mooncake_allow_unauthenticated,
            flag="mooncake_allow_unauthenticated",
        )


def settings_of(extra: Mapping[str, Any]) -> ConnectorSettings:
    """Read the settings.

    Raises:
        ConfigError: a field is unknown, missing or of the wrong type
    """
    try:
        return msgspec.convert(extra, ConnectorSettings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"kv_connector_extra_config: {error}") from error
