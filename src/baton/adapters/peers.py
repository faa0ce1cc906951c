"""The peers that a fabric reads from: their metadata, and the connections to them.

connect ─▶ Peers.want ─▶ Attempt ─▶ Peers.reach, on a thread of the adapter ─▶ known, Connected("")
                                        └─▶ Connected(why)

A peer that was disconnected meanwhile is dropped, and nothing is reported.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from baton.adapters.reads import OpenRead, OpenReads, Region, resolve
from baton.adapters.unpack import unpack
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import GroupName, Micros, RankId
from baton.core.manifest import RankManifest
from baton.ports.clock import Clock
from baton.ports.fabric import Connected, Copies, Handle, ReadOutcome

CLOSED = "the fabric is closed"
ENDED = "the fabric thread has ended"


class Readable(Protocol):
    """A connected peer."""

    @property
    def regions(self) -> Mapping[GroupName, Region]:
        """The peer's pools, with the addresses that a range uses on the peer's side."""
        ...


P = TypeVar("P", bound=Readable)
T = TypeVar("T", bound=msgspec.Struct)


def exposure_of(name: str, peer: RankId, manifest: RankManifest, kind: type[T]) -> T:
    """Return a peer's metadata for the fabric of that name.

    Raises:
        FabricError: the manifest has none, or it does not parse, or the manifest is another rank's
    """
    if name not in manifest.exposures:
        raise FabricError(f"rank {peer.rank} exposes no {name}")
    if peer.boot != manifest.boot or peer.rank != manifest.rank:
        raise FabricError(
            f"manifest of boot {manifest.boot:x} rank {manifest.rank} given for {peer}"
        )
    return unpack(manifest.exposures[name], kind, what=f"the peer's {name} exposure")


def require_stated(pools: Sequence[tuple[GroupName, int]], manifest: RankManifest) -> None:
    """Raise FabricError unless the pools, each (group, bytes), are those of the manifest."""
    stated = {view.group: view.nbytes for view in manifest.pools}
    if dict(pools) != stated or len(pools) != len(stated):
        raise FabricError(f"exposed pools {tuple(pools)}, the manifest says {stated}")


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One call of `connect` that has not been answered."""

    peer: RankId
    manifest: RankManifest


class Peers(Generic[P]):
    """The peers of one fabric. All state is changed under the lock of the open reads.

    Attributes:
        own: our pools, with the addresses that a range uses on our side
    """

    def __init__(self, reads: OpenReads, clock: Clock) -> None:
        self._reads, self._clock = reads, clock
        self._known: dict[RankId, P] = {}
        self._attempts: dict[RankId, Attempt] = {}
        self.own: dict[GroupName, Region] = {}
        self.closed = False

    def __iter__(self) -> Iterator[RankId]:
        return iter(list(self._known))

    def get(self, peer: RankId) -> P | None:
        """Return a connected peer, or None."""
        return self._known.get(peer)

    def require_open(self) -> None:
        """Raise FabricError if the fabric is closed."""
        if self.closed:
            raise FabricError(CLOSED)

    def want(self, peer: RankId, manifest: RankManifest) -> Attempt | None:
        """Begin to connect to a peer.

        Returns None if there is nothing to do: the peer is known or being connected, or the fabric
        is closed.
        """
        with self._reads.lock:
            if self.closed:
                self._reads.say(Connected(peer, CLOSED))
            elif peer in self._known:
                self._reads.say(Connected(peer, ""))
            elif peer not in self._attempts:
                self._attempts[peer] = Attempt(peer, manifest)
                self._reads.lock.notify_all()
                return self._attempts[peer]
            return None

    def reach(
        self,
        attempt: Attempt,
        how: Callable[[RankId, RankManifest], P],
        let_go: Callable[[P], None],
    ) -> P | None:
        """Carry out an attempt and report its result; returns the peer if it is now known.

        Args:
            how: connects to the peer, and may block; raises FabricError or ConfigError
            let_go: drops a connection that is no longer wanted
        """
        if not self._wanted(attempt):
            return None
        known, why = None, ENDED  # reported if `how` raises anything else, which is a bug
        try:
            known, why = how(attempt.peer, attempt.manifest), ""
        except (FabricError, ConfigError) as error:
            why = str(error)
        finally:
            taken = self._settle(attempt, known, why)
        if known is not None and not taken:
            let_go(known)
        return known if taken else None

    def refuse(self, attempt: Attempt, why: str) -> None:
        """Report that an attempt cannot be made."""
        self._settle(attempt, None, why)

    def _wanted(self, attempt: Attempt) -> bool:
        with self._reads.lock:
            return self._attempts.get(attempt.peer) is attempt and not self.closed

    def _settle(self, attempt: Attempt, known: P | None, why: str) -> bool:
        """Report the result of an attempt, if still
        wanted; returns whether `known` is now a peer."""
        with self._reads.lock:
            if not self._wanted(attempt):
                return False
            del self._attempts[attempt.peer]
            if known is not None:
                self._known[attempt.peer] = known
            self._reads.say(Connected(attempt.peer, why))
            return known is not None

    def drop(self, peer: RankId) -> P | None:
        """Forget a peer and ask its reads to end; returns the peer, or None if it is not known."""
        with self._reads.lock:
            self._attempts.pop(peer, None)
            self._reads.unsay(peer)
            known = self._known.pop(peer, None)
            if known is not None:
                self._reads.stop_peer(peer, "disconnected")
                self._reads.lock.notify_all()
            return known

    def begin(
        self, handle: Handle, peer: RankId, copies: Sequence[Copies], deadline: Micros
    ) -> tuple[OpenRead, P]:
        """Check a read and resolve its addresses; it is not opened yet.

        Raises:
            FabricError: the fabric is closed, the peer unknown, or a range outside a pool (F8)
        """
        with self._reads.lock:
            self.require_open()
            known = self._known.get(peer)
            if known is None:
                raise FabricError(f"rank {peer.rank} is not connected: {peer}")
            ranges = resolve(copies, source=known.regions, target=self.own)
            return OpenRead(handle, peer, ranges, due=Micros(self._clock.now() + deadline)), known

    def close(self) -> None:
        """Accept nothing more, and ask all reads to end."""
        with self._reads.lock:
            self._refuse_attempts(CLOSED)
            self.closed = True
            for read in self._reads.open_reads():
                self._reads.stop(read.handle, CLOSED)
            self._reads.lock.notify_all()

    def abandon(self, outcome: ReadOutcome) -> None:
        """End all reads and accept nothing more, because the fabric's thread has ended."""
        with self._reads.lock:
            self._refuse_attempts(ENDED)
            self.closed = True
            for read in self._reads.open_reads():
                self._reads.end(read, outcome, ENDED)

    def _refuse_attempts(self, why: str) -> None:
        for attempt in list(self._attempts.values()):
            self.refuse(attempt, why)
