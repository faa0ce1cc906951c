"""Followers: of rooms with one beginning only the first computes or fetches it, and nobody waits
for ever."""

from typing import Any

import pytest
from tests.core.build import KV, submit
from tests.core.world import World, expected

from baton.core.door import Finish
from baton.core.ids import Boot, Key
from baton.core.marks import Mark
from baton.core.messages import Admitted, Received
from baton.core.rank.rank_effects import Compute, Read
from baton.core.scheduler.room import RoomState
from baton.core.work import ReadOutcome

P, D, U = 2, 3, 4
SYSTEM = tuple(range(1, 17))  # four pages


def prompt(n: int) -> tuple[int, ...]:
    return (*SYSTEM, *(500 + 10 * n + i for i in range(3)))


class Fleet:
    """One worker of each role, each with a cache, what they compute and what is read."""

    def __init__(self, *roles: str, pages: int = 60, **limits: Any) -> None:
        self.world = World()
        for role, boot in (("prefill", P), ("decode", D), ("unified", U)):
            if role in roles:
                self.world.add(
                    role, boot, pages=pages, prefix_cache=True, stall_ms=60_000, **limits
                )
        self.world.run()
        self.computed: dict[int, int] = {}
        self.read: dict[int, int] = {}
        self.world.on_landed = self._landed
        perform = self.world._perform

        def watch(node: Any, effects: list[Any]) -> None:
            for effect in effects:
                if isinstance(effect, Compute):
                    for row in effect.batch.rows:
                        self._count(
                            self.computed,
                            row.key,
                            len(row.tokens) if row.start + len(row.tokens) <= 19 else 0,
                        )
            perform(node, effects)

        self.world._perform = watch  # type: ignore[method-assign]

    @staticmethod
    def _count(table: dict[int, int], key: Key, n: int) -> None:
        number = int(key.room, 16)
        table[number] = table.get(number, 0) + n

    def _landed(self, read: Read, node: Any) -> ReadOutcome:
        nbytes = sum(int(c.nbytes.sum()) for c in read.copies)
        self._count(self.read, read.key, nbytes // node.engine.placement.block_bytes(KV))
        return ReadOutcome.OK

    def ask(self, *numbers: int, run: bool = True) -> None:
        for n in numbers:
            self.world.submit(submit(n, prompt(n), max_tokens=4))
            if run:
                self.world.run()

    def leader(self, boot: int) -> Any:
        return self.world.nodes[Boot(boot)].leader

    def states(self, boot: int) -> dict[int, RoomState]:
        return {int(r.ticket.stamp): r.state for r in self.leader(boot).worker.rooms.values()}

    def right(self, *numbers: int) -> None:
        """They have said what they say alone, and nothing is left."""
        for n in numbers:
            assert self.world.tokens(n) == expected(prompt(n), 4)
        assert self.world.clean
        for node in self.world.nodes.values():
            assert not len(node.leader.worker.followers)
            assert node.leader.worker.ledger.pins == 0


@pytest.mark.parametrize(("roles", "boot"), [(("prefill", "decode"), P), (("unified",), U)])
def test_rooms_with_one_beginning_compute_it_once(roles: tuple[str, ...], boot: int) -> None:
    fleet = Fleet(*roles, step_tokens=8, last_chunk_tokens=8)
    fleet.ask(*range(1, 6), run=False)
    fleet.world.run()
    fleet.right(*range(1, 6))
    assert sorted(fleet.computed[n] for n in range(1, 6)) == [3, 3, 3, 3, 19]
    assert fleet.leader(boot).worker.marks[Mark.FOLLOWED] >= 2
    assert fleet.leader(boot).worker.marks[Mark.COMPUTED_TWICE] == 0


@pytest.mark.parametrize(("common", "own"), [(16, 3), (16, 15), (4, 15)])
def test_they_begin_as_soon_as_what_they_have_in_common_is_computed(common: int, own: int) -> None:
    """Not only when the prompt of the first has ended, which has far to go, nor when all of the
    second's pages are there."""
    fleet = Fleet("prefill", "decode", step_tokens=4, last_chunk_tokens=4)
    long, second = (*SYSTEM[:common], *range(600, 640)), (*SYSTEM[:common], *range(700, 700 + own))
    fleet.world.submit(submit(1, long, max_tokens=4))
    fleet.world.submit(submit(2, second, max_tokens=4))
    seen = set()
    while fleet.world.step():
        states = fleet.states(P)
        if states.get(2) in (RoomState.COMPUTING, RoomState.OFFERED):
            seen.add(states.get(1))
    assert RoomState.COMPUTING in seen
    assert [fleet.world.tokens(n) for n in (1, 2)] == [expected(long, 4), expected(second, 4)]
    assert fleet.world.clean


def test_rooms_with_one_beginning_fetch_it_once() -> None:
    fleet = Fleet("prefill", "decode")
    fleet.ask(*range(1, 7), run=False)
    fleet.world.run()
    fleet.right(*range(1, 7))
    assert sorted(fleet.read[n] for n in range(1, 7)) == [1, 1, 1, 1, 1, 5]
    assert fleet.leader(D).worker.marks[Mark.FOLLOWED] >= 2


def test_one_that_asks_the_very_same_follows_to_the_last_page() -> None:
    """Decode computes nothing of a prompt, so what follows there may be all of it."""
    fleet = Fleet("prefill", "decode")
    fleet.world.submit(submit(1, (*SYSTEM[:12], 700, 701, 702), max_tokens=4))
    fleet.world.run()
    for n in (2, 3):
        fleet.world.submit(submit(n, SYSTEM, max_tokens=4))
    fleet.world.run()
    assert [fleet.world.tokens(n) for n in (2, 3)] == [expected(SYSTEM, 4)] * 2
    assert fleet.read == {1: 4, 2: 1}, "the last page is fetched once"


def test_a_follower_holds_nothing_and_keeps_nobody_waiting() -> None:
    fleet = Fleet("prefill", "decode")
    fleet.world.freeze_reads = True
    fleet.ask(1, 2)
    other = tuple(range(700, 716))
    fleet.world.submit(submit(3, other, max_tokens=4))
    fleet.world.run()
    assert fleet.states(D) == {1: RoomState.FETCHING, 2: RoomState.QUEUED, 3: RoomState.FETCHING}
    held = fleet.leader(D).worker.ledger.held(
        next(r.key for r in fleet.leader(D).worker.rooms.values() if r.ticket.stamp == 2)
    )
    assert not any(held.values())
    fleet.world.freeze_reads = False
    fleet.world.run()
    fleet.right(1, 2)
    assert fleet.world.tokens(3) == expected(other, 4)
    told = [
        (type(m), int(m.key.room, 16))
        for _, to, m in fleet.world.log
        if isinstance(m, Received | Admitted) and to == P
    ]
    assert told.index((Received, 1)) < told.index((Admitted, 2))


@pytest.mark.parametrize("boot", [P, D])
def test_if_the_leader_goes_the_next_one_leads(boot: int) -> None:
    fleet = Fleet("prefill", "decode", step_tokens=2, last_chunk_tokens=2)
    world = fleet.world
    world.freeze_reads = boot == D
    fleet.ask(1, 2, 3, run=boot == D)
    leads = RoomState.FETCHING if boot == D else RoomState.COMPUTING
    while fleet.states(boot) != {1: leads, 2: RoomState.QUEUED, 3: RoomState.QUEUED}:
        assert world.step()
    world.cancel(1)
    while fleet.states(boot) != {2: leads, 3: RoomState.QUEUED}:
        assert world.step()
    world.freeze_reads = False
    world.run()
    fleet.right(2, 3)
    if boot == D:
        assert (fleet.read[2], fleet.read[3]) == (5, 1)
    else:
        assert fleet.computed[2] in (15, 19), "the first may have left a page"
        assert fleet.computed[3] == 3


def test_a_follower_goes_alone_when_half_of_its_patience_is_over() -> None:
    fleet = Fleet("prefill", "decode")
    fleet.world.freeze_reads = True
    fleet.ask(1, 2)
    half_ms = next(r.ticket.admit_ms for r in fleet.leader(D).worker.rooms.values()) // 2
    fleet.world.advance(half_ms - 1)
    assert fleet.states(D)[2] is RoomState.QUEUED
    fleet.world.advance(1)
    assert fleet.states(D)[2] is RoomState.FETCHING
    assert fleet.leader(D).worker.marks[Mark.FOLLOWED_IN_VAIN] == 1
    fleet.world.freeze_reads = False
    fleet.world.run()
    assert all(isinstance(fleet.world.end(n), Finish) for n in (1, 2))
    fleet.right(1, 2)


def test_who_goes_alone_does_not_follow_again() -> None:
    """A third one that came meanwhile leads nobody who has lost patience."""
    fleet = Fleet("prefill", "decode", max_rooms=1)
    fleet.world.freeze_reads = True
    fleet.ask(1, 2)
    admit_ms = next(r.ticket.admit_ms for r in fleet.leader(D).worker.rooms.values())
    fleet.world.advance(admit_ms // 2)
    assert fleet.leader(D).worker.marks[Mark.FOLLOWED_IN_VAIN] == 1
    timer = fleet.leader(D).next_wake()
    assert timer is None or timer > fleet.world.now, "it is not asked again at once"
    assert fleet.states(D)[2] is RoomState.QUEUED, "there is no place for it"
    fleet.world.freeze_reads = False
    fleet.world.run()
    fleet.right(1, 2)


@pytest.mark.parametrize("steps", range(0, 70, 2))
def test_an_abort_at_any_step_leaves_nothing(steps: int) -> None:
    fleet = Fleet("prefill", "decode", step_tokens=4, last_chunk_tokens=4)
    fleet.ask(1, 2, 3, run=False)
    for _ in range(steps):
        fleet.world.step()
    fleet.world.cancel(2)
    fleet.world.run()
    fleet.right(1, 3)
