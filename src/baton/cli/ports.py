"""Finds free TCP ports of this machine, and checks whether the service on a port is ready."""

import http.client
import json
import socket
import ssl
from collections.abc import Callable
from functools import partial

from baton.core.errors import ConfigError
from baton.shell.gateway_settings import TlsSettings

PROBE_TIMEOUT_S = 0.25
NO_ANSWER = "the gateway does not answer yet"
# what a client without the right certificate sees: an alert, or just the end of the connection
TURNED_AWAY = (ssl.SSLError, ConnectionResetError)
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


def free_ports(host: str, count: int) -> list[int]:
    """Return different ports that are free now. Raises ConfigError as `free_port` does."""
    found: set[int] = set()
    while len(found) < count:
        found.add(free_port(host, 0))
    return sorted(found)


def reachable(host: str) -> str:
    """Return the host to connect to, for a host that a service listens on."""
    return EVERYWHERE.get(host, host)


def url_of(host: str, port: int, *, tls: TlsSettings) -> str:
    """Return the service's URL for clients on this machine."""
    name, scheme = reachable(host), "http" if tls.ssl_certfile is None else "https"
    return f"{scheme}://[{name}]:{port}" if ":" in name else f"{scheme}://{name}:{port}"


def readiness_of(host: str, port: int, *, tls: TlsSettings) -> Callable[[], str | None]:
    """Return a probe that says what the service waits for, or None if it is ready.

    If the service requires certificates of its clients, the probe shows the service's own. If that
    is not accepted, the service counts as ready when it refuses it.
    """
    connect = _connects(reachable(host), port, tls)

    def probe() -> str | None:
        connection = connect()
        try:
            connection.request("GET", "/ready")
            response = connection.getresponse()
            body = response.read()
        except ConnectionRefusedError:
            return "the gateway is loading"
        except TURNED_AWAY:
            return None if tls.ssl_cert_reqs == ssl.CERT_REQUIRED else NO_ANSWER
        except (OSError, http.client.HTTPException):
            return NO_ANSWER
        finally:
            connection.close()
        return None if response.status == 200 else _why(body)

    return probe


def _connects(host: str, port: int, tls: TlsSettings) -> Callable[[], http.client.HTTPConnection]:
    if tls.ssl_certfile is None:
        return partial(http.client.HTTPConnection, host, port, timeout=PROBE_TIMEOUT_S)
    # It may be issued for any name, by anyone: whoever listens there was started by us.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.load_cert_chain(tls.ssl_certfile, tls.ssl_keyfile)
    return partial(
        http.client.HTTPSConnection, host, port, timeout=PROBE_TIMEOUT_S, context=context
    )


def _why(body: bytes) -> str:
    try:
        return str(json.loads(body)["why"])
    except (ValueError, KeyError, TypeError):
        return "the gateway is not ready"
