"""Whom a fabric reads from: what a peer's manifest says of it, and the peers it is connected to until it is closed."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import msgspec

from baton.adapters.reads import Desk, Read, Region, resolve
from baton.core.errors import FabricError
from baton.core.ids import GroupName, Micros, RankId
from baton.core.manifest import RankManifest
from baton.ports.clock import Clock
from baton.ports.fabric import Copies, Handle, Outcome

CLOSED = "the fabric is closed"


class Readable(Protocol):
    """A connected peer."""

    @property
    def regions(self) -> Mapping[GroupName, Region]:
        """Its pools, as its side of a range addresses them."""
        ...


P = TypeVar("P", bound=Readable)
T = TypeVar("T", bound=msgspec.Struct)


def exposure_of(name: str, peer: RankId, manifest: RankManifest, kind: type[T]) -> T:
    """What a peer's manifest carries for the fabric of that name.

    Raises:
        FabricError: nothing, or what does not parse; or the manifest is another rank's
    """
    if name not in manifest.exposures:
        raise FabricError(f"rank {peer.rank} exposes no {name}")
    if peer.boot != manifest.boot or peer.rank != manifest.rank:
        raise FabricError(f"manifest of boot {manifest.boot:x} rank {manifest.rank} given for {peer}")
    try:
        return msgspec.msgpack.decode(manifest.exposures[name], type=kind)
    except msgspec.DecodeError as error:
        raise FabricError(f"the peer's {name} exposure does not parse: {error}") from error


def require_stated(pools: Sequence[tuple[GroupName, int]], manifest: RankManifest) -> None:
    """Refuse pools, each (group, bytes), that are not those of the manifest. Raises FabricError."""
    stated = {view.group: view.nbytes for view in manifest.pools}
    if dict(pools) != stated or len(pools) != len(stated):
        raise FabricError(f"exposed pools {tuple(pools)}, the manifest says {stated}")


class Peers(Generic[P]):
    """The peers of one fabric. Everything here happens under the desk's lock.

    own: our pools, as our side of a range addresses them
    """

    def __init__(self, desk: Desk, clock: Clock) -> None:
        self._desk, self._clock = desk, clock
        self._known: dict[RankId, P] = {}
        self.own: dict[GroupName, Region] = {}
        self.closed = False

    def __iter__(self) -> Iterator[RankId]:
        return iter(list(self._known))

    def get(self, peer: RankId) -> P | None:
        """A connected peer."""
        return self._known.get(peer)

    def require_open(self) -> None:
        """Raises FabricError when the fabric is closed."""
        if self.closed:
            raise FabricError(CLOSED)

    def add(self, peer: RankId, known: P) -> None:
        """Take in a peer that has been reached. Raises FabricError when the fabric has been closed meanwhile."""
        with self._desk.lock:
            self.require_open()
            self._known[peer] = known
            self._desk.lock.notify_all()

    def drop(self, peer: RankId) -> P | None:
        """Forget a peer and ask its reads to end; what it was, None if it is unknown."""
        with self._desk.lock:
            known = self._known.pop(peer, None)
            if known is not None:
                self._desk.stop_peer(peer, "disconnected")
                self._desk.lock.notify_all()
            return known

    def begin(self, handle: Handle, peer: RankId, copies: Sequence[Copies], deadline: Micros) -> tuple[Read, P]:
        """A read from a peer, checked, not yet opened at the desk.

        Raises:
            FabricError: closed, unknown peer, or ranges outside a pool (F8)
        """
        with self._desk.lock:
            self.require_open()
            known = self._known.get(peer)
            if known is None:
                raise FabricError(f"rank {peer.rank} is not connected: {peer}")
            ranges = resolve(copies, source=known.regions, target=self.own)
            return Read(handle, peer, ranges, due=Micros(self._clock.now() + deadline)), known

    def close(self) -> None:
        """Take in nothing more and ask all reads to end."""
        with self._desk.lock:
            self.closed = True
            for read in self._desk.open_reads():
                self._desk.stop(read.handle, CLOSED)
            self._desk.lock.notify_all()

    def abandon(self, outcome: Outcome) -> None:
        """The fabric's thread has ended, perhaps of a bug: no handle hangs, and nothing is taken in any more."""
        with self._desk.lock:
            self.closed = True
            for read in self._desk.open_reads():
                self._desk.end(read, outcome, "the fabric thread has ended")
