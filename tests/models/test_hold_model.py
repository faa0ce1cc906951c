"""All that few requests can do to each other over tiny pools; and what that finds where pages are taken in another way.

Searched whole: who holds decode's pages never waits for prefill's, no page has two owners, and from everywhere (with an epoch to
spare) all requests end and nothing is held, without the help of any deadline.
"""

from collections.abc import Mapping, Sequence

import pytest

from baton.core.agreement import Hold
from baton.core.ids import GroupName, Micros
from baton.core.memory.pages import PageState
from baton.core.messages import Admitted
from baton.core.scheduler.decode import DecodeLeader
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.generation import decode_row
from baton.core.scheduler.room import RoomState, Saw

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
    asks: Sequence[Ask], pages: tuple[int, int], faults: tuple[int, int], swift: bool, epochs: int, states: int
) -> None:
    found = explore(HoldModel(asks, pages=pages, aborts=faults[0], crashes=faults[1], swift=swift, epochs=epochs))
    assert found.bad is None, str(found)
    assert found.states > states, "an empty search proves nothing"
    assert found.done > 0


# ---- planted bugs -------------------------------------------------------------------------------


class AdmitsBeforeTheOffer(DecodeLeader):
    """Decode takes pages for a room whose prefill may hold none."""

    def _admit(self, now: Micros) -> None:
        for room in self.rooms.in_state(RoomState.QUEUED):
            _take(self, room, self.pages_for(room.length + 1))


class TakesPageByPage(DecodeLeader):
    """A room takes what it can get, a page a turn, and waits with it for the rest."""

    def _admit(self, now: Micros) -> None:
        for room in self.rooms.in_state(RoomState.QUEUED):
            group, pages = next(iter(self.ledger.held(room.key).items()))
            want = self.pages_for(room.length + 1)[group]
            if 0 in room.offers and self.ledger.fits({group: 1}):
                if len(pages) + 1 == want:
                    _take(self, room, {group: 1})
                else:
                    self.ledger.take(room.key, {group: 1}, PageState.FETCHING)


class WaitsForGrowth(DecodeLeader):
    """A room that cannot grow waits for a page, holding those it has."""

    def _compose(self) -> None:
        for room in self.rooms.in_state(RoomState.RUNNING):
            held = self.ledger.held(room.key)
            more = {g: n - len(held[g]) for g, n in self.pages_for(room.position + 1).items() if n > len(held[g])}
            if not more or _grown(self, room, more):
                self.add_row(room, decode_row(room))


def _take(leader: DecodeLeader, room: DecodeRoom, want: Mapping[GroupName, int]) -> None:
    if leader.ledger.take(room.key, want, PageState.FETCHING) is None:
        return
    leader.see(room, Saw.HELD)
    leader.draft.hold.append(Hold(room.key, dict(leader.ledger.held(room.key))))
    for boot in (room.ticket.prefill, room.ticket.gateway):
        leader.send(boot, Admitted(room.key))


def _grown(leader: DecodeLeader, room: DecodeRoom, more: Mapping[GroupName, int]) -> bool:
    taken = leader.ledger.take(room.key, more, PageState.COMMITTED)
    if taken is not None:
        leader.draft.hold.append(Hold(room.key, taken))
    return taken is not None


@pytest.mark.parametrize(
    ("decode", "asks", "pages", "why", "steps"),
    [
        (AdmitsBeforeTheOffer, YOUNGER_FIRST, (3, 3), "waits for pages on the other", 6),
        (TakesPageByPage, SAME, (5, 3), "nothing more can happen", 8),
        (TakesPageByPage, CHAIN, (5, 3), "nothing more can happen", 12),
        (WaitsForGrowth, GROWING, (4, 4), "nothing more can happen", 16),
    ],
)
def test_the_search_finds(decode: type[DecodeLeader], asks: Sequence[Ask], pages: tuple[int, int], why: str, steps: int) -> None:
    found = explore(HoldModel(asks, pages=pages, swift=True, decode=decode))
    assert found.bad is not None
    assert why in found.bad.why, str(found)
    assert len(found.bad.steps) == steps, str(found)
