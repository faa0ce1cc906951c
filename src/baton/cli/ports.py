"""Finds free TCP ports of this machine, and checks whether the service on a port is ready."""

import http.client
import json
import socket
from collections.abc import Callable

from baton.core.errors import ConfigError

PROBE_TIMEOUT_S = 0.25
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def free_port(host: str, port: int) -> int:
    """Return `port` if it is free; 0 = any free port.

    Raises:
        ConfigError: the port is in use, or the host is not an address of this machine
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as e:
            why = e.strerror if isinstance(e, OSError) else "a port is a number from 0 to 65535"
            raise ConfigError(
                f"cannot listen on {host}:{port}: {why}; choose another --host or --port"
            ) from e
        return int(probe.getsockname()[1])


def reachable(host: str) -> str:
    """Return the host to connect to, for a host that a service listens on."""
    return EVERYWHERE.get(host, host)


def url_of(host: str, port: int) -> str:
    """Return the service's URL for clients on this machine."""
    name = reachable(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def readiness_of(host: str, port: int) -> Callable[[], str | None]:
    """Return a probe that says what the service waits for, or None if it is ready."""

    def probe() -> str | None:
        connection = http.client.HTTPConnection(reachable(host), port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/ready")
            response = connection.getresponse()
            body = response.read()
        except ConnectionRefusedError:
            return "the gateway is loading"
        except (OSError, http.client.HTTPException):
            return "the gateway does not answer yet"
        finally:
            connection.close()
        return None if response.status == 200 else _why(body)

    return probe


def _why(body: bytes) -> str:
    try:
        return str(json.loads(body)["why"])
    except (ValueError, KeyError, TypeError):
        return "the gateway is not ready"
