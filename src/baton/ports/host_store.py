"""Port: host memory of one rank, for the states of preempted rooms.

O1 No call blocks: `save` and `load` are queued, and their ends are seen by `poll`; the `wake` given
at construction is called. O2 After a `save` that ended well the store has a copy of its own: no
later change of the pools reaches it. O3 A `load` that ended well has brought every byte of the
room's last `save`, group by group in the order of the slots, and all of it is visible to our
compute. The copy stays until `discard`. O4 A copy ends exactly once; after its end nothing of it
touches the pools. O5 A copy that cannot be made (no space within the bound, nothing saved, another
number of blocks) ends with a reason, and what the store held of other rooms is untouched. O6
`discard` frees a room's copy; a room that has none is no error.
"""

from collections.abc import Mapping
from typing import Protocol

from baton.core.ids import GroupName, Key
from baton.core.work import Copied, HostCopy
from baton.ports.fabric import Pool

__all__ = ["Copied", "HostCopy", "HostStore", "Pool"]


class HostStore(Protocol):
    """Copies of parts of one rank's pools."""

    @property
    def held(self) -> Mapping[Key, Mapping[GroupName, int]]:
        """Bytes of every copy, by room and group."""
        ...

    def save(self, copy: HostCopy) -> None:
        """Queue a copy out of the pools; a room's earlier copy is replaced."""
        ...

    def load(self, copy: HostCopy) -> None:
        """Queue a copy back into the pools."""
        ...

    def discard(self, key: Key) -> None:
        """Forget a room's copy; none of its copies is under way."""
        ...

    def poll(self) -> list[Copied]:
        """All ends since the last call."""
        ...

    def close(self) -> None:
        """End the threads, free the memory. May be called twice."""
        ...
