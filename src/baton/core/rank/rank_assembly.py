"""The ranks of a worker come together: each says what it is, and the leader makes the worker's
manifest of it."""

import msgspec

from baton.core.errors import ConfigError
from baton.core.frames import Join
from baton.core.ids import Boot, Rank
from baton.core.manifest import Manifest


class RankAssembly:
    """Knows which ranks have joined so far. `own` is the leader's own view: rank 0 as the only
    rank."""

    def __init__(self, own: Manifest) -> None:
        self._own = own
        self._ranks = {Rank(0): own.ranks[0]}
        self._pids: dict[Rank, int] = {}
        self._host: dict[Rank, int] = {}

    @property
    def missing(self) -> list[Rank]:
        """The ranks that have not joined."""
        return [Rank(r) for r in range(self._own.tp * self._own.pp) if Rank(r) not in self._ranks]

    @property
    def whole(self) -> Manifest | None:
        """The worker, once all its ranks have joined."""
        if self.missing:
            return None
        return msgspec.structs.replace(
            self._own, ranks=tuple(self._ranks[r] for r in sorted(self._ranks))
        )

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes of the ranks that have joined, by rank."""
        return tuple(self._pids[r] for r in sorted(self._pids))

    @property
    def host_bytes(self) -> tuple[int, ...]:
        """The host memory of the ranks that have joined, by rank."""
        return tuple(self._host[r] for r in sorted(self._host))

    def rank_of(self, boot: Boot) -> Rank | None:
        """Return which rank a process is, or None if it has not joined."""
        return next((r for r, m in self._ranks.items() if m.boot == boot), None)

    def take(self, sender: Boot, join: Join) -> None:
        """A rank joins.

        Raises:
            ConfigError: it was started with other settings, weights or code than rank 0, or as a
                rank that is there already; names the field and both values
        """
        theirs = join.manifest
        for field in Manifest.__struct_fields__:
            ours, other = getattr(self._own, field), getattr(theirs, field)
            if field != "ranks" and ours != other:
                raise ConfigError(
                    f"a rank of this worker differs from rank 0 in {field}: "
                    f"{other!r}, and {ours!r} at rank 0"
                )
        if len(theirs.ranks) != 1 or theirs.ranks[0].boot != sender:
            raise ConfigError(
                f"boot {sender:x} joins as {[r.rank for r in theirs.ranks]}; a rank joins as itself"
            )
        rank = Rank(theirs.ranks[0].rank)
        if rank not in self.missing:
            raise ConfigError(
                f"boot {sender:x} joins as rank {rank}; rank(s) {self.missing} of "
                f"{self._own.tp * self._own.pp} miss"
            )
        self._ranks[rank], self._pids[rank], self._host[rank] = (
            theirs.ranks[0],
            join.pid,
            join.host_bytes,
        )
