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

from baton.core.errors import ConfigError

MAX_CHARS = 4096  # most that is read of a secret file; a valid one has 65


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair, z85-encoded."""

    public: bytes
    private: bytes

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r}, ...)"  # the private key must not get into a log


class Secret(msgspec.Struct, frozen=True):
    """The keys of all listening and of all dialling sockets."""

    server: KeyPair
    client: KeyPair


def new_secret(path: Path) -> None:
    """Write a new secret, readable only by its owner. Raises ConfigError if the file exists."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError as error:
        raise ConfigError(f"{path} exists; a secret is never overwritten") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    with os.fdopen(fd, "w") as file:
        file.write(draw_secret() + "\n")


def draw_secret() -> str:
    """Return the text of a new secret."""
    return random_source.token_hex(32)


def load_secret(path: Path) -> Secret:
    """Read a secret.

    Raises:
        ConfigError: the file is missing, readable by others, or not 64 hex digits
    """
    try:
        with path.open(encoding="ascii") as file:
            found = os.fstat(file.fileno())
            text = file.read(MAX_CHARS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the secret {path}: {error}") from error
    mode = stat.S_IMODE(found.st_mode)
    if too_open(mode, owner=found.st_uid, reader=os.geteuid()):
        raise ConfigError(f"the secret {path} has mode {mode:o}; make it 600: chmod 600 {path}")
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


def fabric_key(secret: Secret | None) -> bytes:
    """Return the 32-byte key by which fabrics prove membership; b"" without a secret."""
    return (
        b""
        if secret is None
        else blake2b(b"baton-fabric-1", key=secret.server.private, digest_size=32).digest()
    )


def engine_key(secret: Secret) -> str:
    """Return the API key of engines that members of the cluster start for its gateways."""
    return blake2b(b"baton-engine-1", key=secret.server.private, digest_size=32).hexdigest()


def _derive(seed: bytes, what: bytes) -> KeyPair:
    private = z85.encode(blake2b(b"baton-curve-1 " + what, key=seed, digest_size=32).digest())
    return KeyPair(zmq.curve_public(private), private)
