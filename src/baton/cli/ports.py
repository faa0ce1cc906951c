"""TCP ports of this machine, and whether the service behind one is ready."""

import http.client
import json
import socket
from collections.abc import Callable

from baton.core.errors import ConfigError

PROBE_TIMEOUT_S = 0.25
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}


def free_port(host: str, port: int) -> int:
    """The port itself where it is free, for 0 any free one.

    Raises:
        ConfigError: it is in use, or the host is none of this machine's
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as e:
            why = e.strerror if isinstance(e, OSError) else "a port is a number from 0 to 65535"
            raise ConfigError(f"cannot listen on {host}:{port}: {why}; choose another --host or --port") from e
        return int(probe.getsockname()[1])


def reachable(host: str) -> str:
    """A host to connect to, for one to listen on."""
    return EVERYWHERE.get(host, host)


def url_of(host: str, port: int) -> str:
    """The address for clients on this machine."""
    name = reachable(host)
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def readiness_of(host: str, port: int) -> Callable[[], str | None]:
    """A probe: what the service waits for, None when it is ready."""

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
