"""The control plane over ZeroMQ: one ROUTER for incoming links, one DEALER for each dialled
address.

ZeroMQ is used as a datagram service; sessions handle frames that it loses or repeats on reconnect.
"""

import ipaddress
import os
import re
import select
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from itertools import count

import zmq
from zmq.utils.monitor import parse_monitor_message
from zmq.utils.z85 import encode as z85_encode

from baton.adapters.credentials import Credentials, bare
from baton.adapters.zmq_handshakes import (
    EVENTS,
    DialledHandshakes,
    HeardHandshakes,
    Seen,
    Told,
)
from baton.core.errors import ConfigError
from baton.core.ids import Link

HIGH_WATER = 4096  # frames queued per peer
MAX_LINKS = 1024  # incoming links
GONE_S = 3  # a connection that is silent for this long is dropped; the dialling side reconnects
CURVE_BYTES = 33  # added to a frame by encryption before ZeroMQ checks its size (RFC 26)
FAREWELL_MS = 100  # time for frames that are still queued at `close` or `hang_up`
SOCKETS = 4096  # a link has one of its own, and two of its monitor
PROBE = (b"", b"")  # not a frame, and read by nobody: it shows whether there is a connection
MOST_PROBES = 20
MAX_FRAMES = 1024  # most that one call of `receive` takes from one socket
# Stricter than ZeroMQ's grammar, in which "tcp://127.0.0.1:0;10.0.0.5:5555" is not loopback.
ADDRESS = re.compile(
    r"tcp://(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._*-]+):(\d+|\*)|ipc://(?P<path>.+)"
)
ZAP_ADDRESS = "inproc://zeromq.zap.01"  # fixed by ZeroMQ RFC 27


def is_loopback(address: str) -> bool:
    """Whether a ZeroMQ address stays on this host.

    Raises:
        ConfigError: the address is neither tcp://HOST:PORT nor ipc://PATH
    """
    found = ADDRESS.fullmatch(bare(address))
    if found is None:
        raise ConfigError(
            f"control address {address!r} is not of the form tcp://HOST:PORT "
            "(IPv6 in brackets) or ipc://PATH"
        )
    host = (found["host"] or "").strip("[]")
    try:
        return (
            found["path"] is not None
            or host == "localhost"
            or ipaddress.ip_address(host).is_loopback
        )
    except ValueError:
        return False


def require_secret(address: str, keys: Credentials | None) -> None:
    """Raise ConfigError for an address off loopback without keys (C6), or an invalid one."""
    if not is_loopback(address) and keys is None:
        raise ConfigError(
            f"control address {address} is not on loopback; give --secret FILE (baton secret "
            "new FILE) or a 127.0.0.1 address"
        )


class ZmqControl:
    """Implements ports.control.Control."""

    def __init__(self, *, bind: str | None, keys: Credentials | None, max_frame_bytes: int) -> None:
        if bind is not None:
            require_secret(bind, keys)  # checked before anything has to be freed
        self._keys, self._max = keys, max_frame_bytes
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context.set(zmq.MAX_SOCKETS, SOCKETS)
        self._poll, self._breaks = select.epoll(), select.epoll()
        self._poll.register(self._breaks, select.EPOLLIN)
        # A send can consume the edge that announced a frame; this descriptor replaces that edge.
        self._kick = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._kicked = False
        self._poll.register(self._kick, select.EPOLLIN)
        self._names = count(1)
        self._dealers: dict[Link, zmq.Socket[bytes]] = {}
        # by descriptor: what tells of connections, and of which link; None = the router
        self._monitors: dict[int, tuple[zmq.Socket[bytes], Link | None]] = {}
        self._told, self._heard = Told(), HeardHandshakes(keyed=keys is not None)
        self._dialled: dict[Link, DialledHandshakes] = {}
        self._ended: list[Link] = []  # dialled links whose connection has ended
        self._missed = self._probes = 0  # connections that have ended, we do not know which yet
        self._identities: OrderedDict[bytes, Link] = OrderedDict()  # least recently used first
        self._by_link: dict[Link, bytes] = {}
        # by link: the key that its other end has shown, or that we ask of it
        self._shown: dict[Link, bytes] = {}
        self._asked: dict[Link, bytes | None] = {}
        self._closed = False
        self._router: zmq.Socket[bytes] | None = None
        self._zap = self._listen_zap() if keys is not None else None
        self._router = self._listen(bind) if bind is not None else None

    @property
    def bound_address(self) -> str | None:
        """The address that others can dial, with the real port in place of port 0."""
        if self._router is None:
            return None
        address = self._router.getsockopt_string(zmq.LAST_ENDPOINT)
        return self._keys.announced(address) if self._keys is not None else address

    def _socket(self, kind: int, address: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        for option, value in (
            (zmq.LINGER, FAREWELL_MS),
            # without a connection `send` fails, instead of queueing frames for a later process
            (zmq.IMMEDIATE, 1),
            (zmq.SNDHWM, HIGH_WATER),
            (zmq.RCVHWM, HIGH_WATER),
            (zmq.MAXMSGSIZE, self._max + (CURVE_BYTES if self._keys is not None else 0)),
            # TCP keepalive instead of ZeroMQ's heartbeats: with heartbeats, libzmq 4.3.5 aborts the
            # process if a connection ends while its receive queue is full (zeromq/libzmq issues
            # 3937 and 4767).
            (zmq.TCP_KEEPALIVE, 1),
            (zmq.TCP_KEEPALIVE_IDLE, 1),
            (zmq.TCP_KEEPALIVE_INTVL, 1),
            (zmq.TCP_KEEPALIVE_CNT, GONE_S - 1),
            (zmq.TCP_MAXRT, GONE_S * 1000),  # the same for data that is sent but not acknowledged
            (zmq.RECONNECT_IVL, 50),
            (zmq.RECONNECT_IVL_MAX, 1000),
            (zmq.IPV6, int("[" in address)),
        ):
            socket.setsockopt(option, value)
        return socket

    def _listen(self, bind: str) -> zmq.Socket[bytes]:
        socket = self._socket(zmq.ROUTER, bind)
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        if self._keys is not None:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.server.private)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.server.public)
            socket.setsockopt_string(zmq.ZAP_DOMAIN, "baton")
        try:
            socket.bind(bind)
        except zmq.ZMQError as error:
            socket.close()
            self.close()
            remedy = "choose another with --control of a gateway, --bind of a worker"
            raise ConfigError(
                f"cannot listen on control address {bind}: {error.strerror}; {remedy}"
            ) from error
        self._poll.register(int(socket.getsockopt(zmq.FD)), select.EPOLLIN)
        self._monitor(socket, None)
        return socket

    def _monitor(self, socket: "zmq.Socket[bytes]", link: Link | None) -> None:
        """Be told when a connection of a socket ends, and how its handshake went."""
        monitor = socket.get_monitor_socket(EVENTS)
        number = int(monitor.getsockopt(zmq.FD))
        self._monitors[number] = monitor, link
        self._breaks.register(number, select.EPOLLIN)
        monitor.getsockopt(zmq.EVENTS)  # from now on its descriptor says what is new

    def _listen_zap(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.REP)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(ZAP_ADDRESS)
        self._poll.register(int(socket.getsockopt(zmq.FD)), select.EPOLLIN)
        return socket

    # ---- port -----------------------------------------------------------------------------------

    def dial(self, address: str) -> Link:
        """Dial an address. Raises ConfigError off loopback without keys, for an invalid address, or
        if whoever listens there is no member."""
        require_secret(address, self._keys)
        if self._keys is not None and self._keys.expects(address) is None:
            raise ConfigError(f"{address}: whoever listens there is not in --members")
        link = Link(next(self._names))
        self._open_dealer(link, address)
        return link

    def _open_dealer(self, link: Link, address: str) -> None:
        socket = self._socket(zmq.DEALER, address)
        if self._keys is not None:
            theirs = self._asked[link] = self._keys.expects(address)
            # who is no member any more is dialled in vain, as nobody else has our own key
            socket.setsockopt(zmq.CURVE_SERVERKEY, theirs or self._keys.client.public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, self._keys.client.private)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, self._keys.client.public)
        self._dealers[link] = socket
        keyed = self._keys is not None
        self._dialled[link] = DialledHandshakes(address, self._told, keyed=keyed)
        self._poll.register(int(socket.getsockopt(zmq.FD)), select.EPOLLIN)
        self._monitor(socket, link)  # before it connects, so that nothing is missed
        try:
            socket.connect(bare(address))
        except zmq.ZMQError as error:
            self._close_dealer(link)
            raise ConfigError(f"cannot dial control address {address}: {error.strerror}") from error

    def _close_dealer(self, link: Link) -> None:
        socket = self._dealers.pop(link)
        del self._dialled[link]
        self._asked.pop(link, None)
        self._poll.unregister(int(socket.getsockopt(zmq.FD)))
        number = next(n for n, (_, of) in self._monitors.items() if of == link)
        self._breaks.unregister(number)
        monitor, _ = self._monitors.pop(number)
        socket.disable_monitor()
        monitor.close(0)
        socket.close()

    def _reopen_dealer(self, link: Link) -> None:
        address = self._dialled[link].address
        self._close_dealer(link)
        self._open_dealer(link, address)

    def send(self, link: Link, frame: bytes) -> bool:
        if self._closed or len(frame) > self._max:
            return False
        if link in self._dealers:
            if self._dialled[link].given_up:  # frames come seldom as long as nobody answers
                self._reopen_dealer(link)
            return self._put(self._dealers[link], frame)
        if link in self._by_link and self._router is not None:
            return self._put(self._router, self._by_link[link], frame)
        return False

    def _put(self, socket: "zmq.Socket[bytes]", *parts: bytes) -> bool:
        try:
            socket.send_multipart(parts, zmq.DONTWAIT)
            return True
        except zmq.ZMQError as error:
            if error.errno in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                return False
            raise
        finally:  # a failed send may have consumed the edge as well
            if int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                self._kick_receive()

    def _take_shown(self, router: "zmq.Socket[bytes]") -> Iterator[tuple[Link, bytes]]:
        """Yield the frames of members, with their links."""
        assert self._keys is not None
        for _ in range(MAX_FRAMES):
            try:
                parts = router.recv_multipart(zmq.DONTWAIT, copy=False)
            except zmq.Again:
                return
            if len(parts) != 2:
                continue
            identity, shown = parts[0].bytes, str(parts[1].get("User-Id")).encode()
            if identity not in self._identities and not self._keys.admits(shown):
                continue  # its link was hung up when it left the members
            link = self._link_of(identity)
            self._shown[link] = shown
            yield link, parts[1].bytes
        self._kick_receive()

    def _revoke(self, keys: Credentials) -> None:
        """End the links of those who are no members any more; dial anew whose key has changed."""
        for link, shown in list(self._shown.items()):
            if not keys.admits(shown):
                self.hang_up(link)
                self._ended.append(link)
        for link, dialled in list(self._dialled.items()):
            if keys.expects(dialled.address) != self._asked[link]:
                self._reopen_dealer(link)
                self._ended.append(link)

    def _kick_receive(self) -> None:
        if not self._kicked:
            self._kicked = True
            os.eventfd_write(self._kick, 1)

    def receive(self) -> list[tuple[Link, bytes]]:
        """Read every socket until it is empty or a bound
        is met; descriptors are edge-triggered (C7)."""
        if self._closed:
            return []
        if self._kicked:
            self._kicked = False
            os.eventfd_read(self._kick)
        self._watch()
        if self._zap is not None:
            self._answer_zap(self._zap)
        if self._keys is not None and self._keys.changed():
            self._revoke(self._keys)
        frames: list[tuple[Link, bytes]] = []
        if self._router is not None and self._keys is None:
            frames += [
                (self._link_of(parts[0]), parts[1])
                for parts in self._take(self._router)
                if len(parts) == 2
            ]
        elif self._router is not None:
            frames += self._take_shown(self._router)
        for link, socket in self._dealers.items():
            frames += [(link, parts[0]) for parts in self._take(socket) if len(parts) == 1]
        return frames

    def _watch(self) -> None:
        """Read what the monitors have said.

        That of the router does not say whose connection has ended, and says so before the router
        knows it. So `broken` probes its links until one is missed.
        """
        for number, _ in self._breaks.poll(0):
            monitor, link = self._monitors[number]
            if link is None:
                if ended := self._heard.saw(partial(_said, monitor)):
                    self._missed, self._probes = self._missed + ended, MOST_PROBES
                continue
            for event, value in _said(monitor):
                self._dialled[link].saw(event, value)
                if event == zmq.EVENT_DISCONNECTED:
                    self._ended.append(link)

    def broken(self) -> list[Link]:
        """Return the links whose connection has ended, as far as the monitors have said."""
        if self._closed:
            return []
        self._watch()
        found, self._ended = list(dict.fromkeys(self._ended)), []
        if self._missed and self._router is not None:
            gone = self._unreachable(self._router)
            self._probes -= 1
            # a connection that has never said anything is missed by nobody
            self._missed = max(0, self._missed - len(gone)) if self._probes else 0
            found += gone
        return found

    def _unreachable(self, router: "zmq.Socket[bytes]") -> list[Link]:
        """Forget all incoming links that have no connection, and return them."""
        router.getsockopt(zmq.EVENTS)  # lets it learn of connections that have ended
        gone = []
        for identity, link in list(self._identities.items()):
            try:
                router.send_multipart((identity, *PROBE), zmq.DONTWAIT)
            except zmq.ZMQError as error:
                if error.errno == zmq.EHOSTUNREACH:
                    self.hang_up(link)
                    gone.append(link)
        if int(router.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._kick_receive()  # this has consumed the edge
        return gone

    def _take(self, socket: "zmq.Socket[bytes]") -> Iterator[list[bytes]]:
        for _ in range(MAX_FRAMES):
            parts = _next(socket)
            if parts is None:
                return
            yield parts
        self._kick_receive()

    def hang_up(self, link: Link) -> None:
        if self._closed:
            return
        if link in self._dealers:
            self._close_dealer(link)
        identity = self._by_link.pop(link, None)
        self._shown.pop(link, None)
        if identity is not None:
            del self._identities[identity]

    def fileno(self) -> int:
        return self._poll.fileno()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._poll.close()
        self._breaks.close()
        os.close(self._kick)
        # a socket that still has a monitor may wait for one that is closed already
        for socket in (self._router, *self._dealers.values()):
            if socket is not None:
                socket.disable_monitor()
        self._context.destroy(linger=FAREWELL_MS)

    # ---- inside ---------------------------------------------------------------------------------

    def _link_of(self, identity: bytes) -> Link:
        link = self._identities.get(identity)
        if link is None:
            link = self._identities[identity] = Link(next(self._names))
            self._by_link[link] = identity
            if len(self._identities) > MAX_LINKS:
                _, oldest = self._identities.popitem(last=False)
                del self._by_link[oldest]
                self._shown.pop(oldest, None)
        else:
            self._identities.move_to_end(identity)
        return link

    def _answer_zap(self, socket: zmq.Socket[bytes]) -> None:
        """Accept only links of members (ZeroMQ RFC 27). Their frames then name the key."""
        assert self._keys is not None
        while (parts := _next(socket)) is not None:
            version, request, _domain, _address, _identity, mechanism, *credentials = parts
            shown = z85_encode(credentials[0]) if mechanism == b"CURVE" else b""
            good = mechanism == b"CURVE" and self._keys.admits(shown)
            code, text = (b"200", b"OK") if good else (b"400", b"not a member")
            socket.send_multipart((version, request, code, text, shown if good else b"", b""))


def _next(socket: "zmq.Socket[bytes]") -> list[bytes] | None:
    try:
        return socket.recv_multipart(zmq.DONTWAIT)
    except zmq.Again:
        return None


def _said(monitor: "zmq.Socket[bytes]") -> list[Seen]:
    """Take all events of a monitor that are there."""
    events = []
    while (parts := _next(monitor)) is not None:
        said = parse_monitor_message(parts)
        events.append((int(said["event"]), said["value"]))
    return events
