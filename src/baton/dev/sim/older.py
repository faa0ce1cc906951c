"""What a process of the version before makes of a frame: it takes none with a message or a field
that it does not know, and would be sent it again for ever.

It stands for the decoder of that version. So its lists are its own, and not read from the tables by
which the shipped code leaves out what is new.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

UNKNOWN_MESSAGES = frozenset({"cache_changed", "ask_cache"})
UNKNOWN_FIELDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "credits": frozenset({"backlog", "prefill_cost", "cache_changes"}),
        "register": frozenset({"caches", "local_prefill"}),
        "trial": frozenset({"step"}),
        "ended": frozenset({"phases"}),
    }
)


def not_understood(frame: bytes) -> str:
    """Return what such a process does not know of a frame; empty if it knows everything."""
    for message in msgspec.msgpack.decode(frame).get("messages", ()):
        tag = message["type"]
        if tag in UNKNOWN_MESSAGES:
            return f"the message {tag}"
        if new := UNKNOWN_FIELDS.get(tag, frozenset()) & message.keys():
            return f"{', '.join(sorted(new))} of the message {tag}"
    return ""
