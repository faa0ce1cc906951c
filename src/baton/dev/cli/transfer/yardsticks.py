"""Yardsticks for a transfer: memcpy inside one process, and a plain socket between the two."""

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from baton.core.errors import FabricError

MEMCPY_BYTES = 256 << 20
SEND_BYTES = 4 << 20  # given to the kernel in one call
_COUNT = struct.Struct("!Q")


def memcpy_rate(nbytes: int, rounds: int) -> float:
    """Return the best of `rounds` copies between two populated arrays, in 1e9 bytes per second."""
    source, target = np.ones(nbytes, np.uint8), np.zeros(nbytes, np.uint8)
    return nbytes / 1e9 / min(_timed(lambda: np.copyto(target, source)) for _ in range(rounds))


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


class SocketServer:
    """Sends a reader as many bytes of a pool as it asks for, repeatedly; one reader at a time."""

    def __init__(self, pool: NDArray[np.uint8]) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(
            target=self._serve, args=(pool.data,), name="plain-socket", daemon=True
        ).start()

    def _serve(self, pool: memoryview) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                sock, _ = self._listener.accept()
                with sock, contextlib.suppress(OSError):  # the reader has what it wanted
                    self._obey(sock, pool)

    def _obey(self, sock: socket.socket, pool: memoryview) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while len(asked := sock.recv(_COUNT.size, socket.MSG_WAITALL)) == _COUNT.size:
            (nbytes,) = _COUNT.unpack(asked)
            for at in range(0, nbytes, SEND_BYTES):
                sock.sendall(pool[at : min(at + SEND_BYTES, nbytes)])

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()


def socket_rate(port: int, pool: NDArray[np.uint8], nbytes: int, rounds: int) -> float:
    """Return the best of `rounds` reads from a plain socket into a pool, in 1e9 bytes per
    second."""
    view = pool.data[:nbytes]
    with socket.create_connection(("127.0.0.1", port)) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def read() -> None:
            sock.sendall(_COUNT.pack(nbytes))
            at = 0
            while at < nbytes:
                got = sock.recv_into(view[at:], 0, socket.MSG_WAITALL)
                if not got:
                    raise FabricError("the plain socket of the benchmark was closed")
                at += got

        return nbytes / 1e9 / min(_timed(read) for _ in range(rounds + 1))
