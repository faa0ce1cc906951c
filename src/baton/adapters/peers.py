"""Whom a fabric reads from: what a peer's manifest says of it, and the peers it is connected to until it is closed.

connect ─▶ Peers.want ─▶ Attempt ─▶ Peers.reach, on a thread of the adapter ─▶ known, Connected("")
                                        └─▶ Connected(why)          disconnected meanwhile: let go of, and nothing is said
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec

from baton.adapters.reads import OpenRead, OpenReads, Region, resolve
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


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One call of `connect` that is to be answered."""

    peer: RankId
    manifest: RankManifest


class Peers(Generic[P]):
    """The peers of one fabric. Everything here happens under the lock of the open reads, but for the reaching itself.

    own: our pools, as our side of a range addresses them
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
        """A connected peer."""
        return self._known.get(peer)

    def require_open(self) -> None:
        """Raises FabricError when the fabric is closed."""
        if self.closed:
            raise FabricError(CLOSED)

    def want(self, peer: RankId, manifest: RankManifest) -> Attempt | None:
        """A peer is to be reached. None where nothing is to be done: it is known, or being reached, or the fabric is closed."""
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

    def reach(self, attempt: Attempt, how: Callable[[RankId, RankManifest], P], let_go: Callable[[P], None]) -> P | None:
        """Carry out an attempt and say what came of it; the peer, if it is known now.

        how: reaches it, however long that takes. Raises FabricError or ConfigError
        let_go: of a peer that was reached when nobody wanted it any more
        """
        if not self._wanted(attempt):
            return None
        known, why = None, ENDED  # of a bug, should that be the way out
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
        """An attempt cannot even be made."""
        self._settle(attempt, None, why)

    def _wanted(self, attempt: Attempt) -> bool:
        with self._reads.lock:
            return self._attempts.get(attempt.peer) is attempt and not self.closed

    def _settle(self, attempt: Attempt, known: P | None, why: str) -> bool:
        """Say what came of an attempt, if that is still of interest; whether `known` is known from now on."""
        with self._reads.lock:
            if not self._wanted(attempt):
                return False
            del self._attempts[attempt.peer]
            if known is not None:
                self._known[attempt.peer] = known
            self._reads.say(Connected(attempt.peer, why))
            return known is not None

    def drop(self, peer: RankId) -> P | None:
        """Forget a peer and ask its reads to end; what it was, None if it is not known."""
        with self._reads.lock:
            self._attempts.pop(peer, None)
            self._reads.unsay(peer)
            known = self._known.pop(peer, None)
            if known is not None:
                self._reads.stop_peer(peer, "disconnected")
                self._reads.lock.notify_all()
            return known

    def begin(self, handle: Handle, peer: RankId, copies: Sequence[Copies], deadline: Micros) -> tuple[OpenRead, P]:
        """A read from a peer, checked, not yet opened there.

        Raises:
            FabricError: closed, unknown peer, or ranges outside a pool (F8)
        """
        with self._reads.lock:
            self.require_open()
            known = self._known.get(peer)
            if known is None:
                raise FabricError(f"rank {peer.rank} is not connected: {peer}")
            ranges = resolve(copies, source=known.regions, target=self.own)
            return OpenRead(handle, peer, ranges, due=Micros(self._clock.now() + deadline)), known

    def close(self) -> None:
        """Take in nothing more and ask all reads to end."""
        with self._reads.lock:
            self._refuse_attempts(CLOSED)
            self.closed = True
            for read in self._reads.open_reads():
                self._reads.stop(read.handle, CLOSED)
            self._reads.lock.notify_all()

    def abandon(self, outcome: ReadOutcome) -> None:
        """The fabric's thread has ended, perhaps of a bug: nothing hangs, and nothing is taken in any more."""
        with self._reads.lock:
            self._refuse_attempts(ENDED)
            self.closed = True
            for read in self._reads.open_reads():
                self._reads.end(read, outcome, ENDED)

    def _refuse_attempts(self, why: str) -> None:
        for attempt in list(self._attempts.values()):
            self.refuse(attempt, why)
