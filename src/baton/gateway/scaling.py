"""How many workers of each role the load asks for: a signal for whoever starts and ends workers.

    what workers state, once a second ──▶ demand, the mean of 30 s ──▶ wanted: up at once, down after 5 minutes

Demand is counted in workers: two that compute prompts half of the time do the work of one. A role
needs as many workers as the resource asks for that is shortest, and each resource has a share up to
which it may be used:

    computing  the time for which prompts are left to compute. At 0.7 a prompt waits, in the mean, 1.2
               times as long as it takes to compute (M/D/1: 0.7 / (2 x 0.3))
    memory     pages
    places     rooms that run at once (--max-num-seqs), which bounds the time between tokens

A request that waits at the gateway waits for the roles that are fully used, and counts there.

The rules against changes to and fro are those of Kubernetes' HorizontalPodAutoscaler: a tenth too
much or too little changes nothing, and fewer workers are wanted only if never within 5 minutes more
were.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from math import ceil
from types import MappingProxyType

import msgspec

from baton.core.gateway.request import PREFILL
from baton.core.messages import Credits, Register

WINDOW_S, DOWN_S = 30.0, 300.0
DRAIN_S = 30.0  # within which what waits to be computed is to be worked off
TOLERANCE = 0.1
FULL = 0.9  # what is used so much keeps others waiting


class Resource(Enum):
    """What a worker may be short of."""

    COMPUTING = "computing"
    MEMORY = "memory"
    PLACES = "places"


Shares = dict[Resource, float]
# up to which shares they may be used
TARGETS: Mapping[Resource, float] = MappingProxyType(
    {Resource.COMPUTING: 0.7, Resource.MEMORY: 0.85, Resource.PLACES: 0.85}
)


class WorkerLoad(msgspec.Struct, frozen=True):
    """What one worker has stated of its capacity; None: nothing yet."""

    role: str
    credits: Credits | None


def loads_of(workers: Iterable[Register], stated: Mapping[str, Credits]) -> list[WorkerLoad]:
    """Return what each worker has stated, by its name. Guests are left out: they do not know what
    their engine has left."""
    return [
        WorkerLoad(worker.manifest.role, stated.get(worker.name))
        for worker in workers
        if not worker.manifest.guest
    ]


class RoleDemand(msgspec.Struct, frozen=True):
    """What the load asks of one role.

    Attributes:
        workers: those that take requests now
        wanted: how many there should be
        demand: how many would do this work with nothing to spare
        shortest: what they would be short of first: computing, memory or places
    """

    workers: int
    wanted: int
    demand: float
    shortest: str


class ScalingSignal:
    """Keeps the demand of the last minutes, by role.

    A role that has no worker is left out: whether there should be one is not for its load to say.
    """

    def __init__(self) -> None:
        self._roles: dict[str, _RoleHistory] = {}

    def sample(self, loads: Sequence[WorkerLoad], *, queued: int, at: float) -> None:
        """Note what workers state now. Those that drain do not count.

        Args:
            queued: requests that wait at the gateway
            at: seconds, of a clock that never goes back
        """
        lasting = [w for w in loads if w.credits is None or not w.credits.draining]
        kept: dict[str, _RoleHistory] = {}
        for role in {w.role for w in lasting}:
            of_role = [w for w in lasting if w.role == role]
            kept[role] = self._roles.get(role) or _RoleHistory(at)
            kept[role].add(_Sample(at, len(of_role), _demand(of_role, queued)))
        self._roles = kept

    def wanted(self) -> dict[str, RoleDemand]:
        """Return what the load asks of each role."""
        return {role: self._roles[role].wanted() for role in sorted(self._roles)}


class _Sample(msgspec.Struct, frozen=True):
    at: float
    workers: int
    demand: Shares


class _RoleHistory:
    """What is kept of one role."""

    def __init__(self, since: float) -> None:
        self._since = since
        self._samples: deque[_Sample] = deque()
        self._asked: deque[tuple[float, int]] = deque()  # when, and for how many workers

    def add(self, sample: _Sample) -> None:
        self._samples.append(sample)
        while self._samples[0].at <= sample.at - WINDOW_S:
            self._samples.popleft()
        self._asked.append((sample.at, self._asks(sample.workers)))
        while self._asked[0][0] <= sample.at - DOWN_S:
            self._asked.popleft()

    def _shortest(self) -> tuple[Resource, float]:
        """Return what asks for the most workers, and the demand for it."""
        means = {r: sum(s.demand[r] for s in self._samples) / len(self._samples) for r in Resource}
        shortest = max(Resource, key=lambda r: means[r] / TARGETS[r])
        return shortest, means[shortest]

    def _asks(self, workers: int) -> int:
        resource, demand = self._shortest()
        needed = round(demand / TARGETS[resource], 3)
        return workers if abs(needed - workers) <= TOLERANCE * workers else max(1, ceil(needed))

    def wanted(self) -> RoleDemand:
        workers, (at, asked) = self._samples[-1].workers, self._asked[-1]
        if asked < workers:
            long_enough = at - self._since >= DOWN_S
            asked = min(workers, max(n for _, n in self._asked)) if long_enough else workers
        resource, demand = self._shortest()
        return RoleDemand(workers, asked, round(demand, 3), resource.value)


def _demand(workers: Sequence[WorkerLoad], queued: int) -> Shares:
    """Return the demand for each resource, in workers of one role."""
    stated = [(w.role, w.credits) for w in workers if w.credits is not None]
    found: Shares = {}
    for resource, used_of in USED.items():
        used = sum(used_of(role, credits) for role, credits in stated)
        waiting_for_it = queued if used >= FULL * len(workers) else 0
        found[resource] = used + WAITING[resource]([c for _, c in stated], used, waiting_for_it)
    return found


def _computing(role: str, credits: Credits) -> float:
    return float(credits.backlog.us > 0)


def _memory(role: str, credits: Credits) -> float:
    """Return the share of its pages that a worker has in use, of the fullest group."""
    shares = [1 - credits.free_pages.get(g, 0) / n for g, n in credits.total_pages.items() if n]
    return max(shares, default=0.0)


def _places(role: str, credits: Credits) -> float:
    """Return the share of rooms that run; on a prefill worker only pages limit them."""
    return (
        0.0 if role == PREFILL else credits.running / max(1, credits.running + credits.free_rooms)
    )


def _prompts_to_come(stated: Sequence[Credits], used: float, queued: int) -> float:
    """Return the workers that compute within DRAIN_S what is left of prompts at workers, and so
    many more prompts like them."""
    prompts, us = sum(c.backlog.prompts for c in stated), sum(c.backlog.us for c in stated)
    return us / 1e6 / DRAIN_S * (1 + queued / max(1, prompts))


def _rooms_to_come(stated: Sequence[Credits], used: float, queued: int) -> float:
    """Return what rooms that wait at workers, and so many more, will use if they are like those
    that run."""
    each = used / max(1, sum(c.running for c in stated))
    return each * (queued + sum(c.waiting for c in stated))


USED: Mapping[Resource, Callable[[str, Credits], float]] = MappingProxyType(
    {Resource.COMPUTING: _computing, Resource.MEMORY: _memory, Resource.PLACES: _places}
)
WAITING: Mapping[Resource, Callable[[Sequence[Credits], float, int], float]] = MappingProxyType(
    {
        Resource.COMPUTING: _prompts_to_come,
        Resource.MEMORY: _rooms_to_come,
        Resource.PLACES: _rooms_to_come,
    }
)
