"""The default address of a worker: the local address of its machine's route to the gateway."""

import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from baton.adapters.directory import is_named
from baton.adapters.zmq_control import is_loopback
from baton.core.errors import ConfigError

LOOPBACK = "127.0.0.1"
SOME_PORT = 9  # the route to a host is the same for all ports


def route_to(host: str) -> str:
    """Return the local address of the kernel's route to a host; nothing is sent.

    Raises:
        OSError: the host has no address, or there is no route to it
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    address = socket.getaddrinfo(host, SOME_PORT, family=family, type=socket.SOCK_DGRAM)[0][4]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def own_address(gateways: Sequence[str]) -> str:
    """Return the local address of the route to the first gateway off loopback, else loopback.

    Raises:
        ConfigError: a gateway's address does not parse, or there is no route to it
    """
    for gateway in gateways:
        if not is_named(gateway) and is_loopback(gateway):
            continue
        host = urlsplit(gateway).hostname
        assert host is not None
        try:
            return route_to(host)
        except OSError as error:
            raise ConfigError(
                f"there is no way to the gateway at {gateway} ({error.strerror}), so this "
                "machine's address towards it is not"
                " known; correct it, or say where other workers reach this one: baton worker "
                "--fabric-host IP --bind tcp://IP:0"
            ) from error
    return LOOPBACK


def reached_at(gateways: Sequence[str], *, host: str | None, bind: str | None) -> tuple[str, str]:
    """Return the (fabric host, control address) that a worker announces: as given, or by its route.

    Raises:
        ConfigError: one of the two is not given, and `own_address` fails
    """
    if host is not None and bind is not None:
        return host, bind
    own = own_address(gateways)
    return host if host is not None else own, bind if bind is not None else control_at(own)


def control_at(host: str) -> str:
    """Return a control address at `host` with any free port."""
    return f"tcp://[{host}]:0" if ":" in host else f"tcp://{host}:0"
