"""The protocol on the sockets of fabric `tcp`: a handshake, then requests for ranges and their
bytes.

    reader                                                        source
    Hello: boot and rank it wants, a nonce          ─────────▶    closes if it is another
    checks the proof                                ◀─────────    Welcome: a nonce, proof, names and sizes of the pools
    proof                                           ─────────▶    checks it, then serves requests
    (tag, count, ranges as int64 pairs)             ─────────▶    checks tag and ranges against its pools
    receives into its pool                          ◀─────────    the bytes of these ranges, nothing else
    ... any number of requests, in order; a side that receives anything invalid closes

Proofs and tags are BLAKE2b, keyed with the cluster's secret, over both nonces (and the request's
number). So a process without the secret cannot read, and a message is valid on one connection only.
Bytes are not encrypted.
"""

import hmac
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from hashlib import blake2b
from ipaddress import ip_address

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.adapters.unpack import unpack
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, GroupName

PART_BYTES = 4 << 20  # most bytes of one request
PART_RANGES = 1024  # most ranges of one request: the kernel's limit of buffers in one call
MAX_POOLS = 250
POOL_BITS = 46  # a range's address is (number of the pool << POOL_BITS) + offset
CONNECT_TIMEOUT_S = 2.0
NONCE_BYTES, PROOF_BYTES = 16, 16
MAGIC = b"baton-tcp1"
_HELLO = struct.Struct(f"!10sQI{NONCE_BYTES}s")
_LENGTH = struct.Struct("!I")
_REQUEST = struct.Struct(f"!{PROOF_BYTES}sI")
_MAX_WELCOME = 65536


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The source's part of the handshake."""

    boot: Boot
    rank: int
    nonce: bytes
    proof: bytes
    pools: tuple[tuple[GroupName, int], ...]


class Keys:
    """The keys that both ends of a connection compute from the secret and their nonces."""

    def __init__(self, key: bytes, reader: bytes, source: bytes) -> None:
        self._key = blake2b(reader + source, key=key, digest_size=32).digest()
        self._number = 0

    def proof(self, who: bytes) -> bytes:
        """Return the proof of one side; `who` is b"source" or b"reader"."""
        return blake2b(who, key=self._key, digest_size=PROOF_BYTES).digest()

    def tag(self, body: bytes | memoryview) -> bytes:
        """Return the tag of the next request."""
        self._number += 1
        return blake2b(
            struct.pack("!Q", self._number) + bytes(body), key=self._key, digest_size=PROOF_BYTES
        ).digest()


def require_loopback_or_key(host: str, key: bytes) -> None:
    """Raise ConfigError for a host off loopback without a key."""
    try:
        loopback = ip_address(host).is_loopback
    except ValueError as error:
        raise ConfigError(
            f"--fabric-host {host}: give an IP address of this machine, as peers reach it"
        ) from error
    if ip_address(host).is_unspecified:
        raise ConfigError(
            f"--fabric-host {host}: peers are told this address; give one of this machine's own"
        )
    if not loopback and not key:
        raise ConfigError(
            f"--fabric-host {host} is not loopback: fabrics tcp and mooncake need --secret "
            "FILE there ('baton secret new FILE')"
        )


def dial(
    address: tuple[str, int], boot: Boot, rank: int, *, key: bytes
) -> tuple[socket.socket, Keys, Welcome]:
    """Connect to a source; both sides prove that they know the secret.

    Raises:
        FabricError: the source is unreachable, another boot or rank, or has another secret
    """
    try:
        sock = socket.create_connection(address, timeout=CONNECT_TIMEOUT_S)
    except (OSError, ValueError, OverflowError) as error:  # the peer has stated the address
        raise FabricError(_not_met(address, str(error))) from error
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce, look = os.urandom(NONCE_BYTES), _until(CONNECT_TIMEOUT_S)
        sock.sendall(_HELLO.pack(MAGIC, boot, rank, nonce))
        (length,) = _LENGTH.unpack(take(sock, _LENGTH.size, look))
        if length > _MAX_WELCOME:
            raise FabricError(_not_met(address, f"a welcome of {length} bytes"))
        welcome = unpack(take(sock, length, look), Welcome, what="the welcome")
        keys = Keys(key, nonce, welcome.nonce)
        if (welcome.boot, welcome.rank) != (boot, rank):
            raise FabricError(
                _not_met(
                    address,
                    f"asked for boot {boot:x} rank {rank}, met boot "
                    f"{welcome.boot:x} rank {welcome.rank}",
                )
            )
        if not hmac.compare_digest(welcome.proof, keys.proof(b"source")):
            raise FabricError(
                _not_met(address, "has another secret: give both sides the same --secret FILE")
            )
        sock.sendall(keys.proof(b"reader"))
        return sock, keys, welcome
    except (OSError, struct.error, FabricError) as error:
        sock.close()
        if isinstance(error, FabricError):
            raise
        raise FabricError(_not_met(address, str(error))) from error


def _until(within_s: float) -> Callable[[], None]:
    """Return what raises TimeoutError when it is called later than that. A timeout of the socket
    begins anew with each byte."""
    until = time.monotonic() + within_s

    def look() -> None:
        if time.monotonic() > until:
            raise TimeoutError(f"the other side has not greeted in {within_s:g} s")

    return look


def _not_met(address: tuple[str, int], why: str) -> str:
    """Explain why a source was not reached. A loopback
    address leads to the reader's own machine."""
    host, port = address
    try:
        loopback = ip_address(host).is_loopback
    except ValueError:  # the address comes from the peer and may be anything
        loopback = False
    elsewhere = (
        f"; {host} is reached from its own machine alone: for others start that "
        "worker with --fabric-host IP"
    )
    return f"tcp {host}:{port}: {why}{elsewhere if loopback else ''}"


def greet(
    sock: socket.socket,
    boot: Boot,
    rank: int,
    pools: Sequence[tuple[GroupName, int]],
    *,
    key: bytes,
    within_s: float,
) -> Keys:
    """Do the source's side of `dial`. The socket gets a timeout.

    Raises:
        FabricError: an invalid message, another boot or rank is wanted, or another secret
        OSError: the connection broke, or all of it took longer than `within_s`
    """
    look = _until(within_s)
    sock.settimeout(within_s)
    magic, wanted, wanted_rank, nonce = _HELLO.unpack(take(sock, _HELLO.size, look))
    if magic != MAGIC or (wanted, wanted_rank) != (boot, rank):
        raise FabricError("not our protocol, or meant for another boot")
    own = os.urandom(NONCE_BYTES)
    keys = Keys(key, nonce, own)
    welcome = msgspec.msgpack.encode(Welcome(boot, rank, own, keys.proof(b"source"), tuple(pools)))
    sock.sendall(_LENGTH.pack(len(welcome)) + welcome)
    if not hmac.compare_digest(take(sock, PROOF_BYTES, look), keys.proof(b"reader")):
        raise FabricError("the reader has another secret")
    return keys


def ask(
    sock: socket.socket, keys: Keys, source: NDArray[np.int64], nbytes: NDArray[np.int64]
) -> None:
    """Send one request. Raises OSError.

    Args:
        source: int64 [n], addresses with the number of the pool above POOL_BITS
        nbytes: int64 [n], sizes
    """
    body = np.stack((source, nbytes), axis=1).astype("<i8").tobytes()
    sock.sendall(_REQUEST.pack(keys.tag(body), source.size) + body)


def hear(sock: socket.socket, keys: Keys, pools: Sequence[memoryview]) -> list[memoryview]:
    """Wait for one request; returns the pieces of our pools to send.

    Raises:
        FabricError: the tag is wrong, a range is outside our pools, or the request is too large
        OSError: the connection broke
    """
    tag, count = _REQUEST.unpack(take(sock, _REQUEST.size))
    if not 0 < count <= PART_RANGES:
        raise FabricError(f"a request of {count} ranges, at most {PART_RANGES} are allowed")
    body = take(sock, count * 16)
    if not hmac.compare_digest(tag, keys.tag(body)):
        raise FabricError("a request without our secret's tag")
    ranges = np.frombuffer(body, "<i8").reshape(count, 2).tolist()
    left, pieces = PART_BYTES, []
    for address, nbytes in ranges:
        pool, offset = address >> POOL_BITS, address & ((1 << POOL_BITS) - 1)
        left -= nbytes
        if (
            not 0 <= pool < len(pools)
            or nbytes <= 0
            or left < 0
            or offset + nbytes > pools[pool].nbytes
        ):
            raise FabricError(
                f"a request of {nbytes} bytes at {offset} of pool {pool}, which we do not serve"
            )
        pieces.append(pools[pool][offset : offset + nbytes])
    return pieces


def take(sock: socket.socket, nbytes: int, look: Callable[[], None] = lambda: None) -> bytes:
    """Receive exactly `nbytes`. Raises OSError if the connection ends before, and what `look`
    raises, as in `fill`."""
    got = bytearray(nbytes)
    fill(sock, [memoryview(got)], look)
    return bytes(got)


def fill(sock: socket.socket, pieces: list[memoryview], look: Callable[[], None]) -> None:
    """Receive until all pieces are full; calls `look` after each receive or receive timeout.

    Raises:
        OSError: the connection ended, or (from a socket with Python's own timeout) it was too slow
    """
    first = 0
    while first < len(pieces):
        try:
            if len(pieces) - first == 1:
                n = sock.recv_into(pieces[first], 0, socket.MSG_WAITALL)
            else:
                n, _, _, _ = sock.recvmsg_into(
                    pieces[first : first + PART_RANGES], 0, socket.MSG_WAITALL
                )
        except BlockingIOError:  # SO_RCVTIMEO has passed
            look()
            continue
        if n == 0:
            raise ConnectionError("the peer hung up")
        while first < len(pieces) and n >= pieces[first].nbytes:
            n -= pieces[first].nbytes
            first += 1
        if n:
            pieces[first] = pieces[first][n:]
        look()


def pour(sock: socket.socket, pieces: list[memoryview]) -> None:
    """Send all pieces without copying them first. Raises OSError."""
    first = 0
    while first < len(pieces):
        n = sock.sendmsg(pieces[first : first + PART_RANGES])
        while first < len(pieces) and n >= pieces[first].nbytes:
            n -= pieces[first].nbytes
            first += 1
        if n:
            pieces[first] = pieces[first][n:]
