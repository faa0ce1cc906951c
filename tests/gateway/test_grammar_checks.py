"""Checks of grammars in turns: what is checked once, who waits for whom, and who is told what.

The checks are threads that end when a test says so, and the clock is a number.
"""

import asyncio
import threading

import pytest

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.gateway import grammar_checks
from baton.gateway.faults import HttpFault
from baton.gateway.grammar_checks import THREADS, WAITING, WAITING_EACH, GrammarChecks

LONG_S = 60.0  # a deadline that no test reaches


class World:
    """Checks whose grammars are named, begin in an order, and end when they are told."""

    def __init__(self, *, deadline_s: float = LONG_S) -> None:
        self.begun: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.asked: list[asyncio.Task] = []
        self.checks = GrammarChecks(retry_after_s=7, deadline_s=deadline_s)

    def ask(self, client: str, name: str, *, wrong: bool = False) -> asyncio.Task:
        gate = self.gates.setdefault(name, threading.Event())

        def check() -> Grammar:
            self.begun.append(name)
            assert gate.wait(20)
            if wrong:
                raise GrammarError(f"{name} is wrong")
            return Grammar(name, (), (TokenId(1),))

        task = asyncio.ensure_future(self.checks.grammar(name.encode(), client, check))
        self.asked.append(task)
        return task

    async def settle(self, begun: int) -> None:
        """Wait until so many checks have begun, and everything that can happen has happened."""
        for _ in range(5000):
            if len(self.begun) >= begun:
                break
            await asyncio.sleep(0.001)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(self.begun) == begun

    def end_all(self) -> None:
        for gate in self.gates.values():
            gate.set()


def run(scenario, **settings) -> World:
    world = World(**settings)

    async def go() -> None:
        try:
            await scenario(world)
        finally:
            world.end_all()
            await asyncio.gather(*world.asked, return_exceptions=True)

    asyncio.run(go())
    return world


async def told(task: asyncio.Task) -> HttpFault:
    with pytest.raises(HttpFault) as found:
        await task
    return found.value


def test_what_was_checked_is_not_checked_again_right_or_wrong():
    async def scenario(world: World) -> None:
        world.gates = {name: threading.Event() for name in ("right", "bad")}
        world.end_all()
        for _ in range(3):
            assert (await world.ask("a", "right")).text == "right"
            with pytest.raises(GrammarError, match="bad is wrong"):
                await world.ask("a", "bad", wrong=True)

    assert run(scenario).begun == ["right", "bad"]


def test_requests_with_the_same_grammar_wait_for_one_check():
    async def scenario(world: World) -> None:
        both = [world.ask("a", "same"), world.ask("b", "same")]
        await world.settle(1)
        world.end_all()
        assert {g.text for g in await asyncio.gather(*both)} == {"same"}

    assert run(scenario).begun == ["same"]


def test_a_client_has_one_check_at_a_time_and_clients_take_turns():
    async def scenario(world: World) -> None:
        for i in range(4):
            world.ask("flood", f"flood {i}")
        await world.settle(1)
        world.ask("b", "b 0")
        await world.settle(2)
        world.ask("c", "c 0")
        world.ask("b", "b 1")
        world.gates["flood 0"].set()
        await world.settle(3)
        assert world.begun == ["flood 0", "b 0", "c 0"], "before the rest of the flood"
        world.gates["c 0"].set()
        await world.settle(4)
        assert world.begun[3] == "flood 1"

    run(scenario)


def test_a_queue_that_is_full_is_said_at_once():
    async def scenario(world: World) -> None:
        for i in range(1 + WAITING_EACH):
            world.ask("flood", f"flood {i}")
        await world.settle(1)
        full = await told(world.ask("flood", "one more"))
        assert (full.status, full.fault.code) == (429, "overloaded")
        assert full.headers["retry-after"] == "7"
        assert f"at most {WAITING_EACH}" in full.fault.message
        world.ask("b", "b 0")
        await world.settle(2)
        world.gates["b 0"].set()
        await world.asked[-1]

    run(scenario)


def test_all_clients_together_have_a_bound():
    async def scenario(world: World) -> None:
        for i in range(THREADS + WAITING):
            world.ask(f"client {i}", f"{i}")
        await world.settle(THREADS)
        assert (await told(world.ask("another", "x"))).status == 429

    run(scenario)


def test_a_check_that_takes_long_says_nothing_about_its_grammar():
    """The machine is busy: what bounds a grammar is its work."""

    async def scenario(world: World) -> None:
        fault = await told(world.ask("a", "slow"))
        assert (fault.status, fault.fault.code) == (503, "queue_timeout")

    run(scenario, deadline_s=0.01)


def test_a_check_that_only_waited_is_told_to_come_again():
    async def scenario(world: World) -> None:
        world.ask("a", "slow 1")
        world.ask("b", "slow 2")
        fault = await told(world.ask("c", "waits"))
        assert (fault.status, fault.fault.code) == (503, "queue_timeout")
        assert fault.headers["retry-after"] == "7"

    world = run(scenario, deadline_s=0.01)
    assert "waits" not in world.begun, "nobody waits for it any more"


def test_a_check_that_ends_after_its_deadline_is_remembered():
    async def scenario(world: World) -> None:
        assert (await told(world.ask("a", "slow"))).status == 503
        world.gates["slow"].set()
        while not world.checks.knows(b"slow"):
            await asyncio.sleep(0.001)
        assert (await world.ask("a", "slow")).text == "slow"

    assert run(scenario, deadline_s=0.01).begun == ["slow"]


def test_verdicts_are_forgotten_oldest_use_first(monkeypatch):
    monkeypatch.setattr(grammar_checks, "REMEMBERED_CHARS", 10)

    async def scenario(world: World) -> None:
        world.gates = {name: threading.Event() for name in ("aaaa", "bbbb", "cccc")}
        world.end_all()
        for name in ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb"):
            await world.ask("a", name)

    assert run(scenario).begun == ["aaaa", "bbbb", "cccc", "bbbb"]


def test_a_bug_in_a_check_is_no_verdict():
    async def scenario(world: World) -> None:
        def check() -> Grammar:
            raise ZeroDivisionError

        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                await world.checks.grammar(b"x", "a", check)

    run(scenario)
