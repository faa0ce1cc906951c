"""How a request of vLLM names its room: `kv_transfer_params = {"room": HEX, "epoch": N}`; and the
name of the only group of pages.

The gateway draws the room, which nobody can guess; nothing else of a handoff is taken from the body
of a request.
"""

import re
from collections.abc import Mapping
from typing import Any

from baton.core.ids import Epoch, GroupName, Key, Room

FULL = GroupName("full")
ROOM = re.compile(r"[0-9a-f]{32}")


def key_of(params: Mapping[str, Any] | None) -> Key | None:
    """Return the room and epoch that a request names; None if it names none."""
    if not params:
        return None
    room, epoch = params.get("room"), params.get("epoch")
    if not isinstance(room, str) or ROOM.fullmatch(room) is None or not isinstance(epoch, int):
        return None
    return Key(Room(room), Epoch(epoch))
