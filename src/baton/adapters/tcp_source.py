"""The source side of fabric `tcp`: a listener, and a thread for each connection."""

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence

from baton.adapters.tcp_door import greet, hear, pour
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot, GroupName

MAX_CONNECTIONS = 512  # over all readers and their streams; further ones are closed
GREETING_TIMEOUT_S = 5.0
SEND_TIMEOUT_S = 30  # a reader that takes no byte for this long is closed
_TIMEVAL = struct.Struct("ll")


class TcpSource:
    """Serves pools, each (name, read-only view), until closed. Nothing else can be read.

    Raises:
        ConfigError: the address cannot be bound
    """

    def __init__(
        self,
        host: str,
        boot: Boot,
        rank: int,
        pools: Sequence[tuple[GroupName, memoryview]],
        *,
        key: bytes,
    ) -> None:
        self._boot, self._rank, self._key = boot, rank, key
        self._pools = list(pools)
        self._lock = threading.Lock()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._closed = False
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listener = socket.create_server((host, 0), family=family, backlog=128)
        except OSError as error:
            why = (
                f"fabric tcp: cannot listen on {host}: {error.strerror}; give an address of "
                "this machine with --fabric-host"
            )
            raise ConfigError(why) from error
        self.port = int(self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept, name=f"tcp-door-{rank}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the connections to all readers."""
        with self._lock:
            self._closed = True
            threads = list(self._open.values())
            for sock in self._open:
                _hang_up(sock)
        _hang_up(self._listener)  # wakes the accepting thread
        self._thread.join()
        self._listener.close()
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # we are closed, or the reader closed before the accept
                continue
            with self._lock:
                if self._closed or len(self._open) >= MAX_CONNECTIONS:
                    sock.close()
                    continue
                thread = threading.Thread(
                    target=self._serve, args=(sock,), name=f"tcp-source-{self._rank}", daemon=True
                )
                try:
                    thread.start()
                # no thread can be started: close it, as if there were too many
                except RuntimeError:
                    sock.close()
                    continue
                self._open[sock] = thread

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError, FabricError):  # any error closes the connection
            keys = greet(
                sock,
                self._boot,
                self._rank,
                [(g, view.nbytes) for g, view in self._pools],
                key=self._key,
                within_s=GREETING_TIMEOUT_S,
            )
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(SEND_TIMEOUT_S, 0))
            views = [view for _, view in self._pools]
            while True:
                pour(sock, hear(sock, keys, views))
        with self._lock:
            del self._open[sock]
            sock.close()


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):  # closed already
        sock.shutdown(socket.SHUT_RDWR)
