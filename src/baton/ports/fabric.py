"""Port: the data plane. It only reads: no process writes another's memory (law 4).

F1 `submit` takes its caller less than 0.2 ms, whatever the size (engines that copy inside the call
run on the adapter's thread). F2 `Ended(OK)` means that every byte is in our pools and visible to
our compute. F3 A handle ends exactly once. After it ended OK or FAILED (cancelled ones too) nothing
of it lands any more. Where that cannot be promised the outcome is UNKNOWN, and nothing lands after
a later `Released` for the handle. F4 A failed, short or cancelled read is never reported as OK. F5
A peer that restarts at the same address is a new boot: old handles fail, nothing crashes, and names
carry the boot. F6 Limits (ranges per call, sizes, alignment) are declared in `capabilities`, and
the adapter splits reads to keep them. F7 Only the pools are exposed, read-only where the engine
can. F8 Ranges outside the peer's or our own pools are refused (FabricError) before anything is
submitted. F9 Every handle has a deadline, at which it is cancelled. If it has not ended a stated
time later, the adapter tears down its endpoint to that peer, which ends all handles to it. Handles
whose bytes may still land end UNKNOWN, until the endpoint has gone. F10 `connect` and `disconnect`
wait for nobody. Whether a peer was reached is reported once, by `Connected`, whatever its manifest
holds; it is not reported after a disconnect. F11 All pools of a rank lie in one memory, which each
states and the manifest repeats. `expose` refuses a memory that the fabric does not reach
(ConfigError), and `connect` a peer whose pools lie in one, or in another than its exposure says;
`capabilities` says which memory is reached. In a device's memory, F2 holds for all work that is
queued on the device after `poll` has returned the end.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from baton.core.ids import GroupName, Micros, RankId
from baton.core.manifest import RankManifest
from baton.core.memory.kinds import MemoryKind
from baton.core.work import Connected, Copies, FabricEvent, Handle, ReadEnded, ReadOutcome, Released

__all__ = [
    "Capabilities",
    "Connected",
    "Copies",
    "Fabric",
    "FabricEvent",
    "Handle",
    "Pool",
    "ReadEnded",
    "ReadOutcome",
    "Released",
]


class Capabilities(msgspec.Struct, frozen=True):
    """What an engine declares. The core never treats an engine specially by its name."""

    max_ranges_per_call: int
    max_range_bytes: int
    same_host_only: bool
    device_memory: bool  # F11: reaches memory of a device, ours and a peer's, besides the host's
    ended_means_quiet: bool  # F3 without UNKNOWN
    reads_read_only: bool  # F7: the source's pages cannot be written through it


class Pool(Protocol):
    """The memory of one group on one rank, allocated once."""

    @property
    def nbytes(self) -> int:
        """The size in bytes."""
        ...

    @property
    def memory(self) -> MemoryKind:
        """The memory in which the pool lies."""
        ...

    @property
    def address(self) -> int:
        """The start address in this process. Only work on the device may use that of a device."""
        ...

    @property
    def fd(self) -> int | None:
        """The descriptor of the memory file behind a host pool; None on a device."""
        ...


class Fabric(Protocol):
    """Reads from other ranks' pools into ours."""

    @property
    def name(self) -> str:
        """The name under which manifests carry this fabric's exposure."""
        ...

    @property
    def capabilities(self) -> Capabilities:
        """Limits and promises."""
        ...

    def expose(self, pools: Mapping[GroupName, Pool]) -> bytes:
        """Make our pools readable by peers and ready as targets. Returns what a peer's `connect`
        needs. Called once.

        Raises:
            ConfigError: the fabric does not reach the memory of the pools, or cannot register it
        """
        ...

    def connect(self, peer: RankId, manifest: RankManifest) -> None:
        """Begin to connect to a peer, which can be read when `Connected` says so. For a peer that
        is connected already, `Connected` comes again."""
        ...

    def disconnect(self, peer: RankId) -> None:
        """Forget a peer: its handles end, and its mappings go. Unknown peers are ignored."""
        ...

    def submit(
        self, handle: Handle, peer: RankId, copies: Sequence[Copies], *, deadline: Micros
    ) -> None:
        """Start a read. `deadline` is a duration from now.

        Raises:
            FabricError: a range is outside the pools (F8), or the peer is unknown; nothing was
                submitted
        """
        ...

    def cancel(self, handle: Handle) -> None:
        """Ask for an early end. The handle still ends exactly once, and `poll` returns that."""
        ...

    def attend(self) -> None:
        """Note that peers may soon read from us. A fabric that must call into its engine to serve
        them may sleep longer without this, so reads would begin late."""
        ...

    def poll(self) -> list[FabricEvent]:
        """Return all events since the last call, without blocking. An engine without its own thread
        makes progress here."""
        ...

    def close(self) -> None:
        """Free every thread, descriptor and mapping. May be called twice."""
        ...
