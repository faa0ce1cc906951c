"""The shared secret of a cluster: two CURVE key pairs derived from one file.

The file has 32 random bytes as hex. The server pair identifies every listening socket, the client
pair every dialling one. A process that has the file is a member of the cluster; others cannot get a
frame through.
"""

import os
import secrets as random_source
import stat
from hashlib import blake2b
from pathlib import Path

import msgspec
import zmq
from zmq.utils import z85

from baton.adapters.credentials import DoorKey, KeyPair
from baton.core.errors import ConfigError

MAX_CHARS = 4096  # most that is read of a secret file; a valid one has 65


class Secret(msgspec.Struct, frozen=True):
    """Implements Credentials: all members have the keys of all listening and dialling sockets."""

    server: KeyPair
    client: KeyPair

    @property
    def door(self) -> DoorKey:
        made = blake2b(b"baton-fabric-1", key=self.server.private, digest_size=32)
        return DoorKey(made.digest(), told=False)

    @property
    def engine_key(self) -> str:
        return blake2b(b"baton-engine-1", key=self.server.private, digest_size=32).hexdigest()

    def expects(self, address: str) -> bytes:
        return self.server.public

    def admits(self, public: bytes) -> bool:
        return public == self.client.public

    def announced(self, address: str) -> str:
        return address

    def changed(self) -> bool:
        return False


def new_secret(path: Path) -> None:
    """Write a new secret, readable only by its owner. Raises ConfigError if the file exists."""
    write_private(path, draw_secret() + "\n")


def write_private(path: Path, text: str) -> None:
    """Write a new file, readable only by its owner. Raises ConfigError if the file exists."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists; a secret is never overwritten") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(fd, "w") as file:
        file.write(text)


def draw_secret() -> str:
    """Return the text of a new secret."""
    return random_source.token_hex(32)


def load_secret(path: Path) -> Secret:
    """Read a secret.

    Raises:
        ConfigError: the file is missing, readable by others, or not 64 hex digits
    """
    text = read_private(path, "secret")
    try:
        seed = bytes.fromhex(text)
    except ValueError as error:
        raise ConfigError(
            f"the secret {path} is not hex; make one with: baton secret new FILE"
        ) from error
    if len(seed) != 32:
        raise ConfigError(
            f"the secret {path} has {len(seed)} bytes, not 32; make one with: baton secret new FILE"
        )
    return Secret(_derive(seed, b"server"), _derive(seed, b"client"))


def read_private(path: Path, what: str) -> str:
    """Read a short text that nobody else may read.

    Raises:
        ConfigError: the file is missing, or readable by others
    """
    try:
        with path.open(encoding="ascii") as file:
            found = os.fstat(file.fileno())
            text = file.read(MAX_CHARS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {what} {path}: {error}") from error
    mode = stat.S_IMODE(found.st_mode)
    if too_open(mode, owner=found.st_uid, reader=os.geteuid()):
        raise ConfigError(f"the {what} {path} has mode {mode:o}; make it 600: chmod 600 {path}")
    return text


def too_open(mode: int, *, owner: int, reader: int) -> bool:
    """Whether a secret's file is open to more than those who should read it.

    A file of root may be readable by its group, because Kubernetes mounts a Secret in this way for
    a container of another user. Every other file is for its owner alone.

    Args:
        mode: the permission bits
        owner: user id of the file
        reader: user id of this process
    """
    lent = owner == 0 and reader != 0
    return bool(mode & ~(stat.S_IRWXU | (stat.S_IRGRP if lent else 0)))


def _derive(seed: bytes, what: bytes) -> KeyPair:
    private = z85.encode(blake2b(b"baton-curve-1 " + what, key=seed, digest_size=32).digest())
    return KeyPair(zmq.curve_public(private), private)
