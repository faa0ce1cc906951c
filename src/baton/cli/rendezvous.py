"""Where the ranks of one worker find each other: a key-value store in the process of rank 0.

Through it ranks learn the leader's control address, and the computing threads each other's (engine/comm.py). It asks nobody
who they are, like every rendezvous of torch.distributed: it listens on loopback, or on the interface that the operator names
for ranks on several machines.

The place is known before the store is there, and before torch is loaded, which takes seconds: the other ranks of a machine
load it meanwhile.
"""

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from baton.core.errors import ConfigError, PeerError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LEADER = "leader"
PATIENCE = timedelta(seconds=600)  # for the first rank; large models take long to load, and machines to start


def listen(address: str | None) -> socket.socket:
    """Where the store is going to be; who comes before it waits. None = a free port of loopback.

    Raises:
        ConfigError: the address is not one of this machine, or taken
    """
    host, port = split_address(address) if address is not None else ("127.0.0.1", 0)
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise ConfigError(f"--rendezvous {address}: cannot listen there: {error.strerror}") from error
    return listening


def address_of(listening: socket.socket) -> str:
    """HOST:PORT."""
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"


def open_rendezvous(listening: socket.socket) -> "Store":
    """The store, in this process, on that socket, which it takes over: one of its own would listen on every interface."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = listening.getsockname()[:2]
    return TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=PATIENCE, master_listen_fd=listening.detach())


def find_rendezvous(address: str) -> "Store":
    """The store of rank 0. Waits for it. Raises PeerError: it has not come."""
    from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # type: ignore[attr-defined]

    host, port = split_address(address)
    try:
        return cast("Store", TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=PATIENCE))
    except (DistNetworkError, DistStoreError) as error:
        raise PeerError(f"rank 0 of this worker was not found at {address}: {error}") from error


def say_leader(store: "Store", address: str) -> None:
    """Tell every rank where the leader's control plane listens."""
    store.set(LEADER, address)


def hear_leader(store: "Store") -> str:
    """Where the leader's control plane listens. Raises PeerError: nobody has said it."""
    from torch.distributed import DistNetworkError, DistStoreError

    try:
        return bytes(store.get(LEADER)).decode()
    except (DistNetworkError, DistStoreError) as error:
        raise PeerError(f"the leader of this worker has not said where it listens: {error}") from error


def split_address(address: str) -> tuple[str, int]:
    """HOST:PORT. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) <= 65_535):
        raise ConfigError(f"--rendezvous {address}: write HOST:PORT, e.g. 10.0.0.1:29500")
    return host.strip("[]"), int(port)
