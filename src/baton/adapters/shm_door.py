"""Passes pool descriptors from one process to another on the same host.

    owner                                              reader
    binds "\\0baton-<boot>-<rank>" (exclusively)
    accepts, checks the user id            ◀────────   connects, checks the user id
    names and sizes + descriptors (SCM_RIGHTS) ────▶   checks them against the manifest, maps read-only
    holds the connection open                          sees the owner's death as its hang-up

The name is in the abstract namespace of Unix sockets: it belongs to the network namespace,
disappears with its process, and cannot be stale.
"""

import fcntl
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from baton.adapters.unpack import unpack
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, GroupName
from baton.core.manifest import PoolView

# an answer takes a millisecond on an idle machine; our reads wait meanwhile
CONNECT_TIMEOUT_S = 1.0
MAX_GREETING_BYTES = 65536
MAX_READERS = 512  # further ones are closed
RETRY_S = 0.02
MAX_POOLS = 250  # the kernel passes at most 253 descriptors with one message
_KIND = socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC
_UCRED = struct.Struct("3i")  # pid, uid, gid


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Identity of a host: two ranks reach each other by shm exactly if all fields are equal."""

    kernel: str  # boot id of the running kernel
    network: int  # inode of the network namespace, which has the abstract names
    users: int  # inode of the user namespace, which defines the user ids
    uid: int

    @property
    def place(self) -> str:
        """All fields as one word."""
        return f"{self.kernel}/net {self.network}/user {self.users}/uid {self.uid}"


class ShmMetadata(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metadata that a reader needs to find us."""

    host: Host
    name: str


class Greeting(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The message with the descriptors, which are one for each pool, in the same order."""

    boot: Boot
    rank: int
    pools: tuple[tuple[GroupName, int], ...]


def this_host() -> Host:
    """Return the identity of the host that this process runs on."""
    return Host(
        kernel=Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        network=os.stat("/proc/self/ns/net").st_ino,
        users=os.stat("/proc/self/ns/user").st_ino,
        uid=os.geteuid(),
    )


def decode_exposure(data: bytes) -> ShmMetadata:
    """Parse a peer's metadata.

    Raises:
        FabricError: the metadata does not parse
    """
    return unpack(data, ShmMetadata, what="the peer's shm exposure")


class Server:
    """Sends our pools' descriptors to readers of the same user, on its own thread."""

    def __init__(self, boot: Boot, rank: int, pools: Mapping[GroupName, tuple[int, int]]) -> None:
        """Serve pools, each (descriptor, bytes).

        Raises:
            ConfigError: the name is taken, or there are too many pools
        """
        if len(pools) > MAX_POOLS:
            raise ConfigError(f"{len(pools)} pools, shm can pass at most {MAX_POOLS}")
        self.name = f"baton-{boot:016x}-{rank}"
        self._fds = [fd for fd, _ in pools.values()]
        greeting = Greeting(
            boot, rank, tuple((group, nbytes) for group, (_, nbytes) in pools.items())
        )
        self._greeting = msgspec.msgpack.encode(greeting)
        self._listener = socket.socket(socket.AF_UNIX, _KIND)
        try:
            self._listener.bind("\0" + self.name)
        except OSError as error:
            self._listener.close()
            raise ConfigError(
                f"socket @{self.name} is taken: another process runs with this boot and rank"
            ) from error
        self._listener.listen(128)
        self._listener.setblocking(False)
        self._quit, self._quit_asked = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name=f"shm-door-{rank}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the connections to all readers; may be called twice."""
        self._quit.close()
        self._thread.join()

    def _run(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._quit_asked, selectors.EVENT_READ)
            quitting = False
            while not quitting:
                for key, _ in selector.select():
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    if sock is self._quit_asked:
                        quitting = True
                    elif sock is self._listener:
                        self._accept(selector)
                    else:  # readers send nothing, so any event is the end of the connection
                        selector.unregister(sock)
                        sock.close()
            for key in list(selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()

    def _accept(self, selector: selectors.BaseSelector) -> None:
        try:
            reader, _ = self._listener.accept()
        except OSError:  # the reader has closed, or we are out of descriptors; it will time out
            time.sleep(RETRY_S)  # it may still wait to be accepted
            return
        try:
            reader.setblocking(False)
            if _peer_uid(reader) != os.geteuid() or len(selector.get_map()) > MAX_READERS:
                reader.close()
                return
            socket.send_fds(reader, [self._greeting], self._fds)
        except OSError:
            reader.close()
            return
        selector.register(reader, selectors.EVENT_READ)


def call(
    name: str, boot: Boot, rank: int, expected: tuple[PoolView, ...]
) -> tuple[socket.socket, dict[GroupName, int]]:
    """Fetch a peer's descriptors. The caller owns them and the connection.

    The peer holds the connection open until it dies. The call takes at most `CONNECT_TIMEOUT_S`.

    Raises:
        FabricError: the peer is unreachable, another user's, or another boot or rank, or its pools
            differ from the manifest
    """
    sock = socket.socket(socket.AF_UNIX, _KIND)
    fds: list[int] = []
    try:
        sock.settimeout(CONNECT_TIMEOUT_S)
        sock.connect("\0" + name)
        if _peer_uid(sock) != os.geteuid():
            raise FabricError(f"socket @{name} belongs to another user")
        data, fds, flags, _ = socket.recv_fds(
            sock, MAX_GREETING_BYTES, MAX_POOLS, socket.MSG_CMSG_CLOEXEC
        )
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise FabricError(
                f"the greeting of @{name} was cut short: too few free descriptors here?"
            )
        greeting = unpack(data, Greeting, what=f"the greeting of @{name}")
        _require_match(greeting, boot, rank, expected, fds)
        sock.setblocking(False)
        return sock, {group: fd for (group, _), fd in zip(greeting.pools, fds, strict=True)}
    except (OSError, FabricError) as error:
        sock.close()
        for fd in fds:
            os.close(fd)
        raise (
            error if isinstance(error, FabricError) else FabricError(f"socket @{name}: {error}")
        ) from error


def hung_up(sock: socket.socket) -> bool:
    """Whether the peer has closed a connection made by `call`, or has died. Does not block."""
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _require_match(
    greeting: Greeting, boot: Boot, rank: int, expected: tuple[PoolView, ...], fds: list[int]
) -> None:
    if (greeting.boot, greeting.rank) != (boot, rank):
        raise FabricError(
            f"asked for boot {boot:x} rank {rank}, met boot {greeting.boot:x} rank {greeting.rank}"
        )
    stated = {view.group: view.nbytes for view in expected}
    if dict(greeting.pools) != stated or len(greeting.pools) != len(fds) or len(stated) != len(fds):
        raise FabricError(
            f"pools {greeting.pools} with {len(fds)} descriptors, the manifest says {stated}"
        )
    for (group, nbytes), fd in zip(greeting.pools, fds, strict=True):
        if os.fstat(fd).st_size != nbytes:
            raise FabricError(
                f"pool {group!r} has {os.fstat(fd).st_size} bytes, the manifest says {nbytes}"
            )
        if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise FabricError(f"pool {group!r} could be shrunk under our reads: it is not sealed")


def _peer_uid(sock: socket.socket) -> int:
    _, uid, _ = _UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
    return int(uid)
