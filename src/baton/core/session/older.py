"""What peers do not know whose protocol is older than ours.

A session speaks the older one of its sides' protocols. Nothing is said in it that came later: a new
message is not sent, and a new field gets its default value, which is left out of the frame
(`omit_defaults`). So both tables may only have hints, without which tokens are the same. What an
answer depends on is asked only of workers whose manifest states a protocol that has it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from baton.core.frames import Said
from baton.core.messages import (
    AskCache,
    Borrow,
    CacheChanged,
    Credits,
    Ended,
    Hello,
    Introduce,
    LedgerView,
    Loan,
    Register,
    Trial,
)

# the protocol that a message came with
NEW: Mapping[type[Any], int] = MappingProxyType({CacheChanged: 2, AskCache: 2})
# by message: the protocol that a field came with
NEW_FIELDS: Mapping[type[Any], Mapping[str, int]] = MappingProxyType(
    {
        Credits: {"backlog": 2, "prefill_cost": 2, "cache_changes": 2},
        Register: {"caches": 2, "local_prefill": 2},
        Trial: {"step": 2},
        Ended: {"phases": 2},
        LedgerView: {"speculation": 2},
        Borrow: {"known": 2},
        Loan: {"length": 2},
    }
)

OPTIONAL_SINCE = 2  # `Group.optional`, without which a gateway expects less of prefix caches


def as_known(message: Said, protocol: int) -> Said | None:
    """Return what is said of a message to a peer that speaks a protocol; None = nothing."""
    kind = type(message)
    if NEW.get(kind, 0) > protocol:
        return None
    if isinstance(message, Register | Introduce | Hello):
        manifest = message.manifest
        stated = msgspec.structs.replace(manifest, protocol=min(manifest.protocol, protocol))
        if protocol < OPTIONAL_SINCE:
            stated = msgspec.structs.replace(stated, table=stated.table.layout)
        message = msgspec.structs.replace(message, manifest=stated)
    new = {name for name, since in NEW_FIELDS.get(kind, {}).items() if since > protocol}
    if not new:
        return message
    defaults = {f.name: f.default for f in msgspec.structs.fields(kind) if f.name in new}
    return msgspec.structs.replace(message, **defaults)
