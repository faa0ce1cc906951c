"""The operator's settings of KV events (`--kv-events-config`), in vLLM's shape and with its names.

Two rules differ from vLLM's. The endpoint is of loopback unless the operator says otherwise. And it
is always bound, never dialled: subscribers connect to it.
"""

import re
from ipaddress import ip_address
from typing import Any, Literal

import msgspec

from baton.core.errors import ConfigError
from baton.ports.written import structure

FLAG = "--kv-events-config"
EXAMPLE = "'{\"enable_kv_cache_events\": true}'"
LAST_PORT = 65_535
MOST = 10_000_000  # of what is counted in batches
ENDPOINT = re.compile(r"tcp://(?P<host>\*|\[[0-9a-fA-F:.]+\]|[0-9.]+):(?P<port>[0-9]{1,5})")


class KvEventsConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is published of a worker's prefix cache, and where.

    Attributes:
        publisher: None = zmq if events are enabled
        buffer_steps: batches that are kept for subscribers who ask for them again
        hwm: batches that are queued for one subscriber before it misses some
        max_queue_size: batches that wait to be sent
        topic: the first frame of every message, for subscribers who filter
    """

    enable_kv_cache_events: bool = False
    publisher: Literal["zmq", "null"] | None = None
    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000
    topic: str = ""

    def __post_init__(self) -> None:
        for name, value, least in (
            ("buffer_steps", self.buffer_steps, 0),
            ("hwm", self.hwm, 1),
            ("max_queue_size", self.max_queue_size, 1),
        ):
            if not least <= value <= MOST:
                raise ConfigError(
                    f"{FLAG}: {name} {value}: it must lie between {least} and {MOST}, in batches"
                )
        for name, endpoint in self._endpoints():
            _split(name, endpoint)
        if self.endpoint == self.replay_endpoint:
            raise ConfigError(
                f"{FLAG}: endpoint and replay_endpoint are both {self.endpoint}; give each a port "
                "of its own"
            )

    @property
    def on(self) -> bool:
        """Whether anything is published."""
        return self.enable_kv_cache_events and self.publisher != "null"

    @staticmethod
    def read(flag: str, text: str) -> "KvEventsConfig":
        """Parse JSON.

        Raises:
            ConfigError: it is no JSON object, has a key that there is not, or a wrong value
        """

        def check(said: dict[str, Any]) -> None:
            if (publisher := said.get("publisher")) not in ("zmq", "null", None):
                raise ConfigError(f"{flag}: publisher {publisher!r}: there is zmq, null")

        return structure(flag, text, KvEventsConfig, example=EXAMPLE, check=check)

    def moved(self, rank: int) -> "KvEventsConfig":
        """Return the settings of the worker with this number: each port is that much higher, as
        vLLM's is by its data-parallel rank.

        Raises:
            ConfigError: there is no such port
        """
        replay = self.replay_endpoint
        return msgspec.structs.replace(
            self,
            endpoint=_moved("endpoint", self.endpoint, rank),
            replay_endpoint=_moved("replay_endpoint", replay, rank) if replay is not None else None,
        )

    def for_workers(self, count: int) -> "tuple[KvEventsConfig, ...]":
        """Return the settings of each of several workers on one machine.

        Raises:
            ConfigError: two of them would use the same port, or there is none for one of them
        """
        if not self.on:
            return (self,) * count
        found = tuple(self.moved(rank) for rank in range(count))
        ports = {name: _split(name, endpoint)[1] for name, endpoint in self._endpoints()}
        if len(ports) == 2 and abs(ports["endpoint"] - ports["replay_endpoint"]) < count:
            taken = ", ".join(f"{name} {n} to {n + count - 1}" for name, n in ports.items())
            raise ConfigError(
                f"{FLAG}: each of {count} workers takes the next port ({taken}), and these meet; "
                f"keep the two endpoints {count} ports apart, e.g. "
                f'"replay_endpoint": "{_moved("replay_endpoint", self.endpoint, count)}"'
            )
        return found

    def _endpoints(self) -> list[tuple[str, str]]:
        """Return the endpoints that there are, with the names of their keys."""
        both = (("endpoint", self.endpoint), ("replay_endpoint", self.replay_endpoint))
        return [(name, endpoint) for name, endpoint in both if endpoint is not None]


def _split(name: str, endpoint: str) -> tuple[str, int]:
    """Return what stands before an endpoint's port, and the port. Raises ConfigError."""
    found = ENDPOINT.fullmatch(endpoint)
    if found is None or not _is_address(found["host"]):
        raise ConfigError(
            f"{FLAG}: {name} {endpoint!r}: a worker binds it, and subscribers connect; write "
            "tcp://ADDRESS:PORT with an IP address of this machine, or tcp://*:PORT for all of them"
        )
    port = int(found["port"])
    if not 1 <= port <= LAST_PORT:
        raise ConfigError(
            f"{FLAG}: {name} {endpoint}: a port lies between 1 and {LAST_PORT}; choose a lower one"
        )
    return endpoint.removesuffix(found["port"]), port


def _is_address(host: str) -> bool:
    try:
        return host == "*" or ip_address(host.strip("[]")) is not None
    except ValueError:
        return False


def _moved(name: str, endpoint: str, by: int) -> str:
    before, port = _split(name, endpoint)
    moved = f"{before}{port + by}"
    _split(name, moved)
    return moved
