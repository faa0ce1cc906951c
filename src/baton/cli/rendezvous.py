"""The rendezvous of a worker's ranks: a key-value store in the process of rank 0.

Through it ranks learn the leader's control address, and compute threads each other's addresses
(engine/comm.py). Like every rendezvous of torch.distributed it does not authenticate, so it listens
on loopback, or on the interface that the operator names for ranks on several machines.

Its address is known before torch is loaded, which takes seconds. So the other ranks of the machine
can start and load torch at the same time.
"""

import socket
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from baton.core.errors import ConfigError, PeerError

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

LEADER = "leader"
# for rank 0: large models load slowly, and machines may start late
PATIENCE = timedelta(seconds=600)


def listen(address: str | None) -> socket.socket:
    """Open the socket for the store; ranks that connect early wait. None = a free loopback port.

    Raises:
        ConfigError: the address is not one of this machine, or is in use
    """
    host, port = split_address(address) if address is not None else ("127.0.0.1", 0)
    listening = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen()
    except OSError as error:
        listening.close()
        raise ConfigError(
            f"--rendezvous {address}: cannot listen there: {error.strerror}"
        ) from error
    return listening


def address_of(listening: socket.socket) -> str:
    """HOST:PORT."""
    host, port = listening.getsockname()[:2]
    return f"{host}:{port}"


def open_rendezvous(listening: socket.socket) -> "Store":
    """Open the store on this socket and take it over.

    A socket that the store opens itself would listen on every interface.
    """
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    host, port = listening.getsockname()[:2]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=PATIENCE,
        master_listen_fd=listening.detach(),
    )


def find_rendezvous(address: str) -> "Store":
    """Connect to the store of rank 0, and wait for it. Raises PeerError if it does not come up."""
    from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # type: ignore[attr-defined]

    host, port = split_address(address)
    try:
        return cast(
            "Store", TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=PATIENCE)
        )
    except (DistNetworkError, DistStoreError) as error:
        raise PeerError(f"rank 0 of this worker was not found at {address}: {error}") from error


def say_leader(store: "Store", address: str) -> None:
    """Tell every rank where the leader's control plane listens."""
    store.set(LEADER, address)


def hear_leader(store: "Store") -> str:
    """Wait for the leader's control address. Raises PeerError if it does not come."""
    from torch.distributed import DistNetworkError, DistStoreError

    try:
        return bytes(store.get(LEADER)).decode()
    except (DistNetworkError, DistStoreError) as error:
        raise PeerError(
            f"the leader of this worker has not said where it listens: {error}"
        ) from error


def split_address(address: str) -> tuple[str, int]:
    """Split HOST:PORT. Raises ConfigError."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and int(port) <= 65_535):
        raise ConfigError(f"--rendezvous {address}: write HOST:PORT, e.g. 10.0.0.1:29500")
    return host.strip("[]"), int(port)
