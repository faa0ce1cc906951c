"""Reads from the monitors of ZeroMQ's sockets whose key does not fit, and says so in the log.

ZeroMQ itself drops such a connection without a word. The side that notices first closes it, and
only that side learns why:

    listener has    dialler has       the listener is told    the dialler is told
    a secret        another secret    cryptographic error     nothing
    a secret        none              nothing, or mismatch    mismatch, or nothing
    none            a secret          nothing, or mismatch    mismatch, or nothing

After an error of the protocol, which a mismatch is, a socket that dialled never connects again by
itself; its owner has to open another one (`given_up`).
"""

import os
import socket
import time
from collections.abc import Callable, Iterable

import structlog
import zmq

log = structlog.get_logger()
SAY_AGAIN_S = 30.0  # an address is not said again for as long
MOST_SAID = 16  # addresses said in this time: strangers must not fill the log
UNSURE = 3  # failures without a reason before anything is said
UNKNOWN = 10  # failures without an address before that is said
REMEDY = (
    "start both with the same --secret FILE; of identities, each must be in --members of the other"
)
EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_ACCEPTED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
)
Seen = tuple[int, int]  # an event of a monitor and its value: a descriptor or an error


class Told:
    """The addresses that the log has named lately."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def is_due(self, address: str) -> bool:
        """Whether an address is to be named now; it is then not due for a while."""
        now = time.monotonic()
        self._at = {a: at for a, at in self._at.items() if now - at < SAY_AGAIN_S}
        if address in self._at or len(self._at) >= MOST_SAID:
            return False
        self._at[address] = now
        return True


class DialledHandshakes:
    """The handshakes of a socket that dials.

    Attributes:
        given_up: the socket will not connect again by itself
    """

    def __init__(self, address: str, told: Told, *, keyed: bool) -> None:
        self.address, self.given_up = address, False
        self._told, self._keyed = told, keyed
        self._agreed = False  # the present connection's handshake has succeeded
        self._why: str | None = None  # why it has failed; None: nothing was said of it
        self._unsure = 0  # failures in a row without a reason

    def saw(self, event: int, value: int) -> None:
        """Take one event of the socket's monitor."""
        match event:
            case zmq.EVENT_CONNECTED:
                self._agreed, self._why = False, "what answers there speaks another protocol"
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._agreed, self._unsure = True, 0
            case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                self._why = "it has another secret"
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL if _is_mismatch(value):
                ours = "this process has one" if self._keyed else "it asks for one"
                self._why = f"only one of the two has a secret: {ours}"
            case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._why = None
            case zmq.EVENT_DISCONNECTED if not self._agreed:
                self._failed()

    def _failed(self) -> None:
        self.given_up = self._why is not None
        self._unsure += 1
        if not self.given_up and self._unsure < UNSURE:
            return
        why = self._why or "it ends every connection in the handshake, as if it had another secret"
        if self._told.is_due(self.address):
            log.error("key_refused", by=self.address, why=why, remedy=REMEDY)


class HeardHandshakes:
    """The handshakes of a socket that listens.

    Its monitor does not tell who a peer is. So an accepted connection is asked for the address of
    its peer while it is open, which fails if the handshake is over before we look.
    """

    def __init__(self, *, keyed: bool) -> None:
        self._told, self._keyed = Told(), keyed
        self._hosts: dict[int, str] = {}  # of open connections, by descriptor
        self._why = ""  # why the handshake of the connection that ends next has failed
        self._unknown = 0  # failures in a row of which we do not know the address

    def saw(self, take: Callable[[], list[Seen]]) -> int:
        """Take all events of the socket's monitor.

        Args:
            take: returns the events since it was called last

        Returns:
            how many connections have ended that were not refused
        """
        first = take()
        hosts = {fd: host for fd in _open(first) if (host := _peer(fd)) is not None}
        second = take()
        for event, fd in second:
            if event == zmq.EVENT_DISCONNECTED:  # we may have asked the next one of this number
                hosts.pop(fd, None)
        ended = self._count(first)
        self._hosts |= hosts
        return ended + self._count(second)

    def _count(self, events: Iterable[Seen]) -> int:
        ended = 0
        for event, value in events:
            match event:
                case zmq.EVENT_HANDSHAKE_FAILED_AUTH:
                    self._why = "it showed the key of another secret"
                case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                    self._why = self._blame(value)
                case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                    self._why = "it ended the connection before it showed a key that fits"
                case zmq.EVENT_DISCONNECTED:
                    host = self._hosts.pop(value, None)
                    if self._why:
                        self._refused(host)
                    else:
                        ended += 1
                    self._why = ""
        return ended

    def _blame(self, value: int) -> str:
        if value == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            return "it showed the key of another secret"
        if _is_mismatch(value):
            theirs = "no key" if self._keyed else "a key, and this process has no secret"
            return f"it showed {theirs}"
        return "it speaks another protocol"

    def _refused(self, host: str | None) -> None:
        self._unknown = self._unknown + 1 if host is None else 0
        if host is None and self._unknown < UNKNOWN:
            return
        if self._told.is_due(peer := host or "unknown"):
            log.warning("wrong_key", peer=peer, why=self._why, remedy=REMEDY)


def _is_mismatch(value: int) -> bool:
    return value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


def _open(events: Iterable[Seen]) -> set[int]:
    """Return the descriptors that were accepted and have not ended since."""
    fds: set[int] = set()
    for event, value in events:
        if event == zmq.EVENT_ACCEPTED:
            fds.add(value)
        elif event == zmq.EVENT_DISCONNECTED:
            fds.discard(value)
    return fds


def _peer(fd: int) -> str | None:
    """Return the host at the other end of a connection; None if it has ended."""
    try:
        with socket.socket(fileno=os.dup(fd)) as connection:
            name = connection.getpeername()
    except OSError:
        return None
    return str(name[0]) if isinstance(name, tuple) else "this machine"
