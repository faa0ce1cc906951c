"""An identity: a key pair of one process, and the file of all members' public keys.

    identity file, for its process alone       members file, the same everywhere, no secret
    baton-identity decode-3 PRIVATE             gateway  PUBLIC
                                                decode-3 PUBLIC

The members file is read again when it changes, so whoever is taken out of it is out within a
second. Gateways share the identity `gateway`, as workers know their addresses alone. A worker
announces its key behind its address (`tcp://10.0.0.2:41000#PUBLIC`). Keys are 64 hex digits.
"""

import re
import secrets as random_source
import time
from pathlib import Path

import structlog
import zmq
from zmq.utils import z85

from baton.adapters.credentials import KEY, DoorKey, KeyPair
from baton.adapters.secret import read_private, write_private
from baton.core.errors import ConfigError

log = structlog.get_logger()
GATEWAY = "gateway"
HEAD = "baton-identity"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
HEX = re.compile(r"[0-9a-f]{64}")
LOOK_S = 0.5  # between two looks at the members file
MAX_MEMBERS_CHARS = 1 << 20


class Members:
    """The public keys of all members, by name, as the file has them now."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError: the file is missing or damaged."""
        self._path = path
        self._seen: tuple[int, ...] = ()
        self._look_at = 0.0
        self._keys: dict[str, bytes] = {}
        self.revision = 0
        self._read()

    def __contains__(self, public: bytes) -> bool:
        self.look()
        return public in self._keys.values()

    def get(self, name: str) -> bytes | None:
        """Return a member's key; None = there is no such member."""
        self.look()
        return self._keys.get(name)

    def look(self) -> None:
        """Read the file again if it has changed. A damaged one changes nothing, and is told."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_S
        try:
            if _stamp(self._path) != self._seen:
                self._read()
        except (ConfigError, OSError) as error:
            log.error("members_unreadable", path=str(self._path), why=str(error))

    def _read(self) -> None:
        try:
            seen = _stamp(self._path)
            with self._path.open(encoding="ascii") as file:
                text = file.read(MAX_MEMBERS_CHARS)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read the members {self._path}: {error}") from error
        keys = {}
        for number, line in enumerate(text.splitlines(), 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2 or not NAME.fullmatch(words[0]) or not HEX.fullmatch(words[1]):
                raise ConfigError(
                    f"the members {self._path}, line {number}: write a name and a public key of 64 "
                    "hex digits, as 'baton secret identity' does"
                )
            if words[0] in keys:
                raise ConfigError(f"the members {self._path} name {words[0]} twice; take one out")
            keys[words[0]] = z85.encode(bytes.fromhex(words[1]))
        self._keys, self._seen, self.revision = keys, seen, self.revision + 1


class Identity:
    """Implements Credentials."""

    def __init__(self, name: str, pair: KeyPair, members: Members) -> None:
        self.name, self.server, self.client = name, pair, pair
        self.door = DoorKey(random_source.token_bytes(32), told=True)
        self.engine_key: str | None = None
        self._members, self._revision = members, members.revision

    def expects(self, address: str) -> bytes | None:
        found = KEY.fullmatch(address)
        if found is None:
            return self._members.get(GATEWAY)
        public = z85.encode(bytes.fromhex(found["key"]))
        return public if public in self._members else None

    def admits(self, public: bytes) -> bool:
        return public in self._members

    def announced(self, address: str) -> str:
        return f"{address}#{z85.decode(self.server.public).hex()}"

    def changed(self) -> bool:
        self._members.look()
        known, self._revision = self._revision, self._members.revision
        return known != self._revision


def is_identity(path: Path) -> bool:
    """Whether a file is an identity. One that cannot be read is none; whoever reads it says why."""
    try:
        with path.open("rb") as file:
            return file.read(len(HEAD)) == HEAD.encode()
    except OSError:
        return False


def load_identity(path: Path, members: Path) -> Identity:
    """Read an identity.

    Raises:
        ConfigError: a file is missing or damaged, the identity is readable by others, or it is not
            among the members
    """
    words = read_private(path, "identity").split()
    if len(words) != 3 or words[0] != HEAD or not HEX.fullmatch(words[2]):
        raise ConfigError(
            f"the identity {path} is damaged; make one with: baton secret identity NAME"
        )
    private = z85.encode(bytes.fromhex(words[2]))
    pair, known = KeyPair(zmq.curve_public(private), private), Members(members)
    if pair.public not in known:
        raise ConfigError(f"{members} has not the public key of {words[1]}, the identity in {path}")
    return Identity(words[1], pair, known)


def new_identity(name: str, path: Path, members: Path) -> None:
    """Write a new identity, readable only by its owner, and add it to the members.

    Raises:
        ConfigError: the name is invalid or taken, or a file cannot be written
    """
    if not NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r} is no name of a member: up to 64 letters, digits, '.', '_' and '-'"
        )
    known = Members(members) if members.exists() else None
    if known is not None and known.get(name) is not None:
        raise ConfigError(f"{members} has {name} already; take its line out to revoke it")
    public, private = zmq.curve_keypair()
    write_private(path, f"{HEAD} {name} {z85.decode(private).hex()}\n")
    try:
        with members.open("a", encoding="ascii") as file:
            file.write(f"{name} {z85.decode(public).hex()}\n")
    except OSError as error:
        path.unlink()
        raise ConfigError(f"cannot write {members}: {error.strerror}") from error


def _stamp(path: Path) -> tuple[int, ...]:
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns
