"""All that few requests can do to each other over tiny pools; and what that finds where pages are
taken in another way.

Searched whole: who holds decode's pages never waits for prefill's, no page has two owners, and from
everywhere (with an epoch to spare) all requests end and nothing is held, without the help of any
deadline.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from baton.core.agreement import Hold
from baton.core.ids import GroupName
from baton.core.memory.pages import PageState
from baton.core.messages import Admitted
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.preemption import Preemption
from baton.core.scheduler.room import RoomState, Saw
from baton.core.scheduler.stage import Stage
from baton.core.scheduler.worker import Worker

from .explore import explore
from .hold_model import Ask, HoldModel

OLD, MID, YOUNG = 1, 2, 3
SAME = (Ask(0, 0, stamp=OLD), Ask(0, 0, stamp=MID))
YOUNGER_FIRST = (Ask(0, 0, stamp=MID), Ask(0, 0, stamp=OLD))
ANY_ORDER = (Ask(0, 0, stamp=MID, gateway=0), Ask(0, 0, stamp=OLD, gateway=1))
GROWING = (Ask(0, 0, prompt=1, tokens=3, stamp=OLD), Ask(0, 0, prompt=1, tokens=3, stamp=MID))
SHARED_DECODE = (Ask(0, 0, stamp=OLD), Ask(1, 0, stamp=MID))
QUEUE = (Ask(0, 0, stamp=OLD), Ask(0, 0, stamp=MID), Ask(1, 0, stamp=YOUNG))
CHAIN = (Ask(0, 0, stamp=OLD), Ask(0, 1, stamp=MID), Ask(1, 1, stamp=YOUNG))
FORK = (Ask(0, 0, stamp=OLD), Ask(0, 1, stamp=MID), Ask(1, 0, stamp=YOUNG))
YOUNGEST_FIRST = (Ask(0, 0, stamp=YOUNG), Ask(0, 0, stamp=MID), Ask(0, 0, stamp=OLD))
MIDDLE_FIRST = (Ask(0, 0, stamp=MID), Ask(0, 0, stamp=YOUNG), Ask(0, 0, stamp=OLD))


@pytest.mark.parametrize(
    ("asks", "pages", "faults", "swift", "epochs", "states"),
    [
        (YOUNGER_FIRST, (3, 3), (0, 0), False, 3, 10_000),
        (ANY_ORDER, (3, 3), (0, 0), True, 3, 20_000),
        (GROWING, (4, 4), (0, 0), True, 3, 15_000),
        (SAME, (3, 3), (0, 1), True, 2, 15_000),
        (SHARED_DECODE, (3, 3), (1, 0), True, 2, 20_000),
        (QUEUE, (3, 3), (0, 0), False, 2, 12_000),
        (CHAIN, (3, 3), (0, 0), True, 2, 30_000),
        pytest.param(FORK, (3, 3), (0, 0), True, 2, 30_000, marks=pytest.mark.slow),
        pytest.param(YOUNGER_FIRST, (3, 3), (1, 0), True, 2, 70_000, marks=pytest.mark.slow),
        pytest.param(YOUNGER_FIRST, (3, 3), (0, 1), True, 2, 120_000, marks=pytest.mark.slow),
        pytest.param(SHARED_DECODE, (3, 3), (0, 1), True, 2, 150_000, marks=pytest.mark.slow),
        pytest.param(YOUNGEST_FIRST, (3, 3), (0, 0), True, 2, 300_000, marks=pytest.mark.slow),
        pytest.param(MIDDLE_FIRST, (5, 3), (0, 0), True, 2, 200_000, marks=pytest.mark.slow),
    ],
)
def test_every_way_requests_can_go(
    asks: Sequence[Ask],
    pages: tuple[int, int],
    faults: tuple[int, int],
    swift: bool,
    epochs: int,
    states: int,
) -> None:
    found = explore(
        HoldModel(
            asks, pages=pages, aborts=faults[0], crashes=faults[1], swift=swift, epochs=epochs
        )
    )
    assert found.bad is None, str(found)
    assert found.states > states, "an empty search proves nothing"
    assert found.done > 0


# ---- planted bugs -------------------------------------------------------------------------------


class AdmitsBeforeTheOffer(Preemption[DecodeRoom]):
    """Decode takes pages for a room whose prefill may hold none."""

    def waiting(self) -> list[DecodeRoom]:
        for room in self.worker.rooms.in_state(RoomState.QUEUED):
            _take(self.worker, room, self.worker.pages_for(room, room.length + 1))
        return []


class TakesPageByPage(Preemption[DecodeRoom]):
    """A room takes what it can get, a page a turn, and waits with it for the rest."""

    def waiting(self) -> list[DecodeRoom]:
        worker = self.worker
        for room in worker.rooms.in_state(RoomState.QUEUED):
            group, pages = next(iter(worker.ledger.held(room.key).items()))
            want = worker.pages_for(room, room.length + 1)[group]
            if 0 in room.offers and worker.ledger.fits({group: 1}):
                if len(pages) + 1 == want:
                    _take(worker, room, {group: 1})
                else:
                    worker.ledger.take(room.key, {group: 1}, PageState.FETCHING)
        return []


class WaitsForGrowth(Preemption[DecodeRoom]):
    """A room that cannot grow waits for a page, holding those it has."""

    def ready(self, running: Sequence[DecodeRoom]) -> list[DecodeRoom]:
        found = []
        for room in running:
            held = self.worker.ledger.held(room.key)
            more = {
                g: n - len(held[g])
                for g, n in self.worker.pages_for(room, room.position + 1).items()
                if n > len(held[g])
            }
            if not more or _grown(self.worker, room, more):
                found.append(room)
        return found


def _take(worker: Worker[DecodeRoom], room: DecodeRoom, want: Mapping[GroupName, int]) -> None:
    if worker.ledger.take(room.key, want, PageState.FETCHING) is None:
        return
    worker.see(room, Saw.HELD)
    worker.draft.hold.append(Hold(room.key, dict(worker.ledger.held(room.key))))
    for boot in (room.ticket.prefill, room.ticket.gateway):
        worker.send(boot, Admitted(room.key))


def _grown(worker: Worker[DecodeRoom], room: DecodeRoom, more: Mapping[GroupName, int]) -> bool:
    taken = worker.ledger.take(room.key, more, PageState.COMMITTED)
    if taken is not None:
        worker.draft.hold.append(Hold(room.key, taken))
    return taken is not None


@pytest.mark.parametrize(
    ("stage", "asks", "pages", "why", "steps"),
    [
        (AdmitsBeforeTheOffer, YOUNGER_FIRST, (3, 3), "waits for pages on the other", 6),
        (TakesPageByPage, SAME, (5, 3), "nothing more can happen", 8),
        (TakesPageByPage, CHAIN, (5, 3), "nothing more can happen", 12),
        (WaitsForGrowth, GROWING, (4, 4), "nothing more can happen", 16),
    ],
)
def test_the_search_finds(
    stage: type[Stage[Any]], asks: Sequence[Ask], pages: tuple[int, int], why: str, steps: int
) -> None:
    found = explore(HoldModel(asks, pages=pages, swift=True, planted={"Preemption": stage}))
    assert found.bad is not None
    assert why in found.bad.why, str(found)
    assert len(found.bad.steps) == steps, str(found)
