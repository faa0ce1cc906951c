"""Finds gateways: addresses that are given, and names that are looked up again and again.

tcp://HOST:PORT, ipc://PATH     that gateway
dns://NAME:PORT                 a gateway at every address of the name, as with a headless
                                Service of Kubernetes; gateways come and go with its records
"""

import re
import socket
import threading
from collections.abc import Callable, Sequence

import structlog

from baton.core.errors import ConfigError

log = structlog.get_logger()
LOOK_S = 2.0
NAMED = re.compile(r"dns://(?P<name>[A-Za-z0-9._-]+):(?P<port>\d+)")
Resolve = Callable[[str], Sequence[str]]


def is_named(address: str) -> bool:
    """Whether an address is one that is looked up.

    Raises:
        ConfigError: it begins as one, and does not parse
    """
    if address.startswith("dns://") and NAMED.fullmatch(address) is None:
        raise ConfigError(f"gateway {address!r} is not of the form dns://NAME:PORT")
    return address.startswith("dns://")


def resolve(name: str) -> Sequence[str]:
    """Return the IPv4 addresses of a name, or its IPv6 addresses if it has no others: a gateway
    that has both is one gateway.

    Raises:
        OSError: they cannot be learned
    """
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    four = [str(address[0]) for family, *_, address in found if family == socket.AF_INET]
    return four or [str(address[0]) for *_, address in found]


class GatewayDirectory:
    """Implements ports.directory.Directory. It has a thread if an address is to be looked up.

    Args:
        wake: called from the thread when the addresses have changed

    Raises:
        ConfigError: an address does not parse
    """

    def __init__(
        self,
        addresses: Sequence[str],
        wake: Callable[[], None],
        *,
        resolve: Resolve = resolve,
        look_s: float = LOOK_S,
    ) -> None:
        self._wake, self._resolve, self._look_s = wake, resolve, look_s
        self._fixed = [a for a in addresses if not is_named(a)]
        self._named = [a for a in addresses if is_named(a)]
        self._found: dict[str, list[str]] = {}  # by named address
        self._silent: set[str] = set()  # named addresses of which nothing can be learned
        self._now = tuple(sorted(self._fixed))
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        if self._named:
            self._thread = threading.Thread(target=self._run, name="gateways", daemon=True)
            self._thread.start()

    def addresses(self) -> tuple[str, ...]:
        """Return the control addresses of all gateways that are known."""
        return self._now

    def close(self) -> None:
        """Stop looking. The thread ends when it has its last answer."""
        self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            for address in self._named:
                self._look_up(address)
            found = [a for each in self._found.values() for a in each]
            now = tuple(sorted({*self._fixed, *found}))
            if now != self._now and not self._stop.is_set():
                log.info("gateways", addresses=now)
                self._now = now
                self._wake()
            self._stop.wait(self._look_s)

    def _look_up(self, address: str) -> None:
        parts = NAMED.fullmatch(address)
        assert parts is not None, "checked at the start"
        try:
            hosts = self._resolve(parts["name"])
        except OSError as error:
            if address not in self._silent:
                why = f"{error.strerror or error}; the gateways known before stay"
                log.warning("gateways_unknown", name=parts["name"], why=why)
            self._silent.add(address)
            return
        self._silent.discard(address)
        self._found[address] = [
            f"tcp://[{host}]:{parts['port']}" if ":" in host else f"tcp://{host}:{parts['port']}"
            for host in hosts
        ]
