"""Where the ranks of one worker find each other: a key-value store in the process of rank 0.

Through it ranks learn the leader's control address, and the computing threads each other's (engine/comm.py). It asks nobody
who they are, like every rendezvous of torch.distributed: it listens on loopback, or on the interface that the operator names
for ranks on several machines.
"""

import socket
from datetime import timedelta
from typing import cast

from torch.distributed import DistNetworkError, DistStoreError, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from baton.core.errors import ConfigError, PeerError

LEADER = "leader"
PATIENCE = timedelta(seconds=600)  # for the first rank; large models take long to load, and machines to start


def open_rendezvous(address: str | None) -> tuple[Store, str]:
    """The store, in this process, and its address as HOST:PORT; None = a free port of loopback.

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
    port = int(listening.getsockname()[1])
    # Our own socket: the store's would listen on every interface.
    store = TCPStore(host, port, is_master=True, wait_for_workers=False, timeout=PATIENCE, master_listen_fd=listening.detach())
    return store, f"{host}:{port}"


def find_rendezvous(address: str) -> Store:
    """The store of rank 0. Waits for it. Raises PeerError: it has not come."""
    host, port = split_address(address)
    try:
        return cast(Store, TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=PATIENCE))
    except (DistNetworkError, DistStoreError) as error:
        raise PeerError(f"rank 0 of this worker was not found at {address}: {error}") from error


def say_leader(store: Store, address: str) -> None:
    """Tell every rank where the leader's control plane listens."""
    store.set(LEADER, address)


def hear_leader(store: Store) -> str:
    """Where the leader's control plane listens. Raises PeerError: nobody has said it."""
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
