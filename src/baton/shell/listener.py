"""The socket on which clients connect. `baton serve` binds it and its gateways inherit it, so it
stays open while one of them starts again: clients wait in its queue, or another gateway answers.
"""

import socket

from baton.core.errors import ConfigError

UNREAD_MS = 60_000  # the kernel closes a connection whose client reads nothing for this long
BACKLOG = 2048


def bound(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket (port 0 takes a free port); its connections inherit its options.

    Raises:
        ConfigError: the address cannot be bound
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named so that event loops recognise TCP and disable Nagle's algorithm.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
    try:
        sock.bind((host, port))
    except OSError as e:
        sock.close()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {e.strerror}; choose another --host or --port"
        ) from e
    sock.setblocking(False)
    return sock


def inherited(descriptor: int) -> socket.socket:
    """Return the socket that the process which started this one has bound."""
    sock = socket.socket(fileno=descriptor)
    sock.set_inheritable(False)
    sock.setblocking(False)
    return sock
