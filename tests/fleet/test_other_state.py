"""Models with windows or recurrent state: what a fleet's workers have of these limits how many
requests run, as it does in a worker."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.fleet.build import mix, one, profile, serve, split, times

from baton.core.ids import TokenId
from baton.core.scheduler.room import RoomState
from baton.dev.fleet.fleet import Fleet, FleetRequest, FleetSettings
from baton.dev.fleet.profile import GroupMemory, MachineProfile

PAGE, WINDOW, STEP = 16, 64, 128
HOLDING = (RoomState.COMPUTING, RoomState.FETCHING, RoomState.COMMITTING, RoomState.RUNNING)


def slots(count: int) -> GroupMemory:
    return GroupMemory(name="slot", window=None, count=count, nbytes=4_096)


def windows(count: int) -> GroupMemory:
    return GroupMemory(name="window", window=WINDOW, count=count, nbytes=1_024)


def machine(*others: GroupMemory, **changes: Any) -> MachineProfile:
    found = profile(step_tokens=STEP, **changes)
    return replace(found, memory=replace(found.memory, others=others))


def together(count: int, prompt: int, answer: int) -> list[FleetRequest]:
    """Requests that come at once, and begin differently."""
    return [FleetRequest(0, (TokenId(n + 1),) * prompt, answer) for n in range(count)]


def most_at_once(roles: tuple[str, ...], machine: MachineProfile, count: int) -> int:
    """The most requests that hold memory of the last worker at once."""
    fleet = Fleet(roles, machine, FleetSettings(most_steps=1))
    requests, worker = together(count, 40, 30), list(fleet.workers.values())[-1]
    most = 0
    serving = iter(requests)
    advance = fleet.clock.advance

    def watched() -> bool:
        nonlocal most
        most = max(most, len(worker.leader.worker.rooms.in_state(*HOLDING)))
        return advance()

    fleet.clock.advance = watched  # type: ignore[method-assign]
    served = fleet.serve(serving)
    assert all(one.last is not None for one in served)
    assert worker.leader.worker.ledger.clean
    return most


@pytest.mark.parametrize("roles", [("unified",), split(1, 1)])
@pytest.mark.parametrize("count", [1, 3])
def test_there_are_no_more_requests_than_slots(roles: tuple[str, ...], count: int) -> None:
    assert most_at_once(roles, machine(slots(count)), 8) == count
    assert most_at_once(roles, machine(slots(64)), 8) == 8


@pytest.mark.parametrize("roles", [("unified",), split(1, 1)])
def test_pages_of_windows_limit_requests_too(roles: tuple[str, ...]) -> None:
    """A request of 40 + 30 positions has 3 to 5 pages of a window of 64."""
    few = most_at_once(roles, machine(windows(12)), 8)
    assert 2 <= few <= 4
    assert most_at_once(roles, machine(windows(8 * 5)), 8) == 8


@pytest.mark.parametrize("others", [(windows(60),), (slots(6),), (windows(60), slots(6))])
@pytest.mark.parametrize("roles", [("unified",), split(1, 2)])
def test_steps_that_are_skipped_change_nothing(
    roles: tuple[str, ...], others: tuple[GroupMemory, ...]
) -> None:
    requests = mix(30, rate=6.0, prompt=300, answer=60)
    _, each = serve(roles, requests, machine(*others), most_steps=1)
    fleet, ahead = serve(roles, requests, machine(*others))
    moments = [[moment for both in times(served) for moment in both] for served in (each, ahead)]
    assert moments[0] == pytest.approx(moments[1], abs=2)
    engines = [worker.engine for worker in fleet.workers.values()]
    assert sum(e.turns for e in engines) < sum(e.steps for e in engines), "some were skipped"


def test_more_state_takes_longer_to_hand_over() -> None:
    """A slot goes over with each request, and of a window what is left of it."""
    plain, more = machine(), machine(slots(8))
    ((first, last),) = times(serve(split(1, 1), one(400, 2), plain)[1])
    large = replace(
        more, memory=replace(more.memory, others=(replace(slots(8), nbytes=400_000_000),))
    )
    ((_, later),) = times(serve(split(1, 1), one(400, 2), large)[1])
    assert first is not None
    assert last is not None
    assert later is not None
    assert later - last >= 350_000, "400 MB at a gigabyte a second, behind the last chunk"


@pytest.mark.parametrize("nbytes", [0, 3, 10])
def test_a_size_that_no_state_has_is_refused(nbytes: int) -> None:
    with pytest.raises(ValueError, match=f"nbytes of window {nbytes}"):
        GroupMemory(name="window", window=64, count=1, nbytes=nbytes)
