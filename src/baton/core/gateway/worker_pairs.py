"""Which of a gateway's workers can hand over to each other.

registered ──▶ introduced ──Paired──▶ a pair ──Unpaired, or one says that it has lost the other──▶ introduced again later
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from baton.core.door import PairView
from baton.core.gateway.registered_worker import RegisteredWorker
from baton.core.gateway.request import DECODE, PREFILL
from baton.core.ids import Boot, Micros

Pair = tuple[Boot, Boot]  # (prefill, decode)


class WorkerPairs:
    """The pairs of one gateway.

    changes: how often the pairs have changed
    """

    def __init__(self, workers: Mapping[Boot, RegisteredWorker], again_ms: int) -> None:
        """
        Args:
            workers: those that are registered; kept by whoever makes this
            again_ms: after which two workers that do not fit are introduced again
        """
        self._workers, self._again = workers, again_ms * 1000
        self._fabrics: dict[Pair, str] = {}
        self._introduce: dict[Pair, Micros] = {}  # try again at
        self._refusals: dict[Pair, str] = {}  # the last reason of a pair that is none
        self.changes = 0

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._fabrics)

    def joins(self, boot: Boot) -> list[Pair]:
        """A worker has registered. Returns the pairs that are to be introduced."""
        role = self._workers[boot].role
        others = [b for b, w in self._workers.items() if {role, w.role} == {PREFILL, DECODE}]
        return [(boot, b) if role == PREFILL else (b, boot) for b in others]

    def leaves(self, boot: Boot) -> None:
        """A worker is gone, with all its pairs."""
        self._fabrics = {p: fabric for p, fabric in self._fabrics.items() if boot not in p}
        self._introduce = {p: at for p, at in self._introduce.items() if boot not in p}
        self._refusals = {p: why for p, why in self._refusals.items() if boot not in p}
        self.changes += 1

    def paired(self, pair: Pair, fabric: str) -> bool:
        """Two workers have proved that they fit. Returns whether both are registered in these
        roles; else nothing changes."""
        if not self._are(pair):
            return False
        self._refusals.pop(pair, None)
        self._fabrics[pair] = fabric
        self.changes += 1
        return True

    def unpaired(self, pair: Pair, why: str, now: Micros) -> Micros | None:
        """Two workers do not fit, or not any more. Returns when they are to be introduced again."""
        self._fabrics.pop(pair, None)
        self.changes += 1
        if not self._are(pair):
            return None
        self._refusals[pair] = why
        return self._later(pair, now)

    def _are(self, pair: Pair) -> bool:
        """Return whether the two are registered as a prefill and a decode worker."""
        found = [w.role for boot in pair if (w := self._workers.get(boot)) is not None]
        return found == [PREFILL, DECODE]

    def doubt(self, pair: Pair, now: Micros) -> Micros | None:
        """One of the two says that it has lost the other: the pair is not used until decode says
        Paired again."""
        self.changes += 1
        return self._later(pair, now) if self._fabrics.pop(pair, None) is not None else None

    def _later(self, pair: Pair, now: Micros) -> Micros:
        self._introduce[pair] = at = Micros(now + self._again)
        return at

    def introduced(self, pair: Pair) -> None:
        """The two have just been told of each other."""
        self._introduce.pop(pair, None)

    def introductions(self) -> dict[Pair, Micros]:
        """Return the pairs that are to be introduced again, and when."""
        return self._introduce

    def refusals(self) -> list[str]:
        """Return which pairs cannot hand over, and why not."""
        name = {boot: worker.register.name for boot, worker in self._workers.items()}
        return [
            f"{name[d]} and {name[p]} do not fit: {why}"
            for (p, d), why in self._refusals.items()
            if {p, d} <= name.keys()
        ]

    def views(self, usable: Sequence[Pair]) -> Iterator[PairView]:
        """Yield all pairs: those that are refused first, then those that are used, then those that
        are not ready.

        usable: those that a request can be given to
        """
        workers = self._workers
        name = {boot: worker.register.name for boot, worker in workers.items()}
        for (p, d), why in self._refusals.items():
            yield PairView(name[p], name[d], why=why)
        for p, d in usable:
            yield PairView(name[p], name[d], self._fabrics.get((p, d), ""))
        sources, targets = (
            [boot for boot, worker in workers.items() if worker.role == role]
            for role in (PREFILL, DECODE)
        )
        for p, d in product(sources, targets):
            if (p, d) not in self._fabrics and (p, d) not in self._refusals:
                yield PairView(name[p], name[d], why="they have not connected to each other yet")
            elif (p, d) in self._fabrics and (p, d) not in usable:
                leaving = [name[boot] for boot in (p, d) if workers[boot].draining]
                yield PairView(name[p], name[d], why=f"{' and '.join(leaving)} drains")
