"""Port: the host memory of one rank for the states of preempted rooms, and for what is kept of
prompts.

O1 No call blocks: `save` and `load` are queued, `poll` returns their ends, and the `wake` given at
construction is called. O2 After a `save` that ended well the store has a copy of its own, which no
later change of the pools reaches. O3 A `load` that ended well has brought back every byte of the
last `save` under the same key, group by group in the order of the slots, and all of it is visible
to our compute. The copy stays until `discard`. O4 A copy ends exactly once; after its end it no
longer touches the pools. O5 A copy that cannot be made (no space within the bound, nothing saved,
another number of blocks) ends with a reason, and the copies of other keys stay as they are. O6
`discard` frees the copy of a key, which need not have one.
"""

from collections.abc import Mapping
from typing import Protocol

from baton.core.ids import GroupName, StoreKey
from baton.core.work import Copied, HostCopy
from baton.ports.fabric import Pool

__all__ = ["Copied", "HostCopy", "HostStore", "Pool"]


class HostStore(Protocol):
    """Copies of parts of one rank's pools."""

    @property
    def held(self) -> Mapping[StoreKey, Mapping[GroupName, int]]:
        """Bytes of every copy, by key and group."""
        ...

    def save(self, copy: HostCopy) -> None:
        """Queue a copy out of the pools. It replaces the key's earlier copy."""
        ...

    def load(self, copy: HostCopy) -> None:
        """Queue a copy back into the pools."""
        ...

    def discard(self, key: StoreKey) -> None:
        """Forget the copy of a key. None of it may be under way."""
        ...

    def poll(self) -> list[Copied]:
        """Return all ends since the last call."""
        ...

    def close(self) -> None:
        """End the threads and free the memory. May be called twice."""
        ...
