"""Who may speak to whom: the keys that a process shows, and those that it accepts.

--secret FILE                    every member has the same file                        secret.py
--secret FILE --members FILE     every process has keys of its own, which can be revoked  identity.py
"""

import re
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from baton.core.errors import ConfigError

KEY = re.compile(r"(?P<address>[^#]*)#(?P<key>[0-9a-f]{64})")


class KeyPair(msgspec.Struct, frozen=True):
    """A CURVE key pair, z85-encoded."""

    public: bytes
    private: bytes

    def __repr__(self) -> str:
        return f"KeyPair({self.public!r}, ...)"  # the private key must not get into a log


class DoorKey(NamedTuple):
    """The key by which readers prove to a fabric that they may read; b"" = they need none.

    Attributes:
        told: readers learn it with what the fabric exposes; else they have it themselves
    """

    key: bytes
    told: bool


class Credentials(Protocol):
    """The keys of one process."""

    @property
    def server(self) -> KeyPair:
        """The pair of its listening socket."""
        ...

    @property
    def client(self) -> KeyPair:
        """The pair of its dialling sockets."""
        ...

    @property
    def door(self) -> DoorKey:
        """The key of its fabrics."""
        ...

    @property
    def engine_key(self) -> str | None:
        """The API key of engines that the cluster starts; None = they have none."""
        ...

    def expects(self, address: str) -> bytes | None:
        """Return the public key, z85-encoded, of whoever may listen at an address; None: nobody."""
        ...

    def admits(self, public: bytes) -> bool:
        """Whether whoever shows this public key, z85-encoded, may dial us."""
        ...

    def announced(self, address: str) -> str:
        """Return our own address, with what others must know to dial it."""
        ...

    def changed(self) -> bool:
        """Whether other keys are accepted than when this was asked last."""
        ...


def bare(address: str) -> str:
    """Return an address without the key that may stand behind it."""
    found = KEY.fullmatch(address)
    return found["address"] if found else address


def load_credentials(secret: str | None, members: str | None) -> Credentials | None:
    """Read the keys of a process; None = there are none.

    Raises:
        ConfigError: a file is missing, readable by others or no such file, or one is needed too
    """
    from baton.adapters.identity import is_identity, load_identity
    from baton.adapters.secret import load_secret

    if secret is None:
        if members is not None:
            raise ConfigError(f"--members {members}: give this process its identity with --secret")
        return None
    identity = is_identity(Path(secret))
    if identity and members is None:
        raise ConfigError(
            f"--secret {secret} is an identity, which baton worker and baton gateway take, with "
            "--members FILE; elsewhere give a secret (baton secret new FILE)"
        )
    if members is not None and not identity:
        raise ConfigError(
            f"--members {members} needs an identity, and --secret {secret} is none; make one with: "
            "baton secret identity NAME --members FILE"
        )
    return (
        load_identity(Path(secret), Path(members))
        if members is not None
        else load_secret(Path(secret))
    )
