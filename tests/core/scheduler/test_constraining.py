"""Grammars that take long to build: only draws of their own rooms wait."""

from typing import Any

import msgspec
import pytest
from tests.core.build import submit
from tests.core.world import Node, World, expected

from baton.core.agreement import Ballot, Vote
from baton.core.events import ReportDue
from baton.core.ids import TokenId
from baton.core.messages import Grammar
from baton.core.work import Batch, GrammarReady

GRAMMAR = Grammar("g", (), (TokenId(7),))
PROMPT, OTHER = tuple(range(100, 119)), (1, 2, 3)


def bench(*, unified: bool) -> tuple[World, list[Node]]:
    world = World()
    roles = (("unified", 4),) if unified else (("prefill", 2), ("decode", 3))
    limits: dict[str, Any] = {"step_tokens": 8, "last_chunk_tokens": 8}
    nodes = [world.add(role, boot, pages=32, **limits) for role, boot in roles]
    world.run()
    return world, nodes


def ask(world: World, number: int, prompt: tuple[int, ...], grammar: Grammar | None) -> None:
    world.submit(msgspec.structs.replace(submit(number, prompt), grammar=grammar))
    world.run()


def ends_computed(node: Node) -> list[int]:
    """Note where the rows end that the node computes."""
    ends: list[int] = []
    compute = node.engine.compute

    def watched(batch: Batch) -> None:
        ends.extend(row.valid for row in batch.rows)
        compute(batch)

    node.engine.compute = watched  # type: ignore[method-assign]
    return ends


@pytest.mark.parametrize("unified", [False, True])
def test_all_of_a_prompt_but_its_last_chunk_is_computed_meanwhile(unified: bool) -> None:
    world, nodes = bench(unified=unified)
    ends = ends_computed(nodes[0])
    nodes[0].engine.unbuilt = []
    ask(world, 1, PROMPT, GRAMMAR)
    assert ends == [8, 16]
    ask(world, 2, OTHER, None)
    assert world.tokens(2) == expected(OTHER, 4), "others go on"
    assert world.tokens(1) == []
    nodes[0].engine.build()
    world.run()
    assert world.tokens(1) == expected(PROMPT, 4)
    assert world.clean


def test_decode_draws_nothing_of_the_room_meanwhile() -> None:
    world, (_, decode) = bench(unified=False)
    ends = ends_computed(decode)
    decode.engine.unbuilt = []
    ask(world, 1, PROMPT, GRAMMAR)
    assert world.tokens(1) == expected(PROMPT, 1), "prefill has drawn the first token"
    assert ends == []
    ask(world, 2, OTHER, None)
    assert world.tokens(2) == expected(OTHER, 4), "others go on"
    decode.engine.build()
    world.run()
    assert world.tokens(1) == expected(PROMPT, 4)
    assert world.clean


@pytest.mark.parametrize("unified", [False, True])
def test_a_request_that_is_cancelled_meanwhile_leaves_nothing(unified: bool) -> None:
    world, nodes = bench(unified=unified)
    nodes[0].engine.unbuilt = []
    ask(world, 1, PROMPT, GRAMMAR)
    world.cancel(1)
    world.run()
    assert world.clean
    nodes[0].engine.build()  # too late: it concerns nobody
    world.run()
    for node in nodes:
        assert node.leader.kept() == {}
        assert node.rank.kept() == {}


def test_a_rank_votes_once_and_only_for_a_room_that_it_has() -> None:
    world, (prefill, _) = bench(unified=False)
    prefill.engine.unbuilt = []
    ask(world, 1, PROMPT, GRAMMAR)
    (key,) = prefill.engine.unbuilt
    stranger = msgspec.structs.replace(key, room=key.room[::-1])
    votes: list[Ballot] = []
    for event in (GrammarReady(stranger), GrammarReady(key), GrammarReady(key)):
        prefill.rank.step(event, world.now)
        for report in prefill.rank.step(ReportDue(), world.now):
            votes += report.ballots  # type: ignore[union-attr]
    assert [ballot.vote for ballot in votes] == [Vote.ARRIVED]
