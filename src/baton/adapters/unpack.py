"""Decodes what another process has sent or stated about itself."""

from typing import TypeVar

import msgspec

from baton.core.errors import FabricError

T = TypeVar("T")


def unpack(raw: bytes, kind: type[T], *, what: str) -> T:
    """Return the struct in these msgpack bytes.

    Raises:
        FabricError: there is none; `what` names it. A text that is not UTF-8 is an error of its own
            kind, which msgspec does not wrap.
    """
    try:
        return msgspec.msgpack.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FabricError(f"{what} does not parse: {error}") from error
