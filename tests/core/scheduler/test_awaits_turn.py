"""What others are told of a request that has its memory and waits behind other prompts."""

from collections import Counter
from itertools import pairwise

import pytest
from tests.core.scheduler.test_backlog import PROMPT, Held

from baton.core.ids import Boot, Key
from baton.core.messages import Ended
from baton.core.scheduler.room import MOST_PHASES

W = Boot(2)
OTHER, THIRD = (tuple(token + more for token in PROMPT) for more in (100, 200))
STEP_US = 25_000


def stands(held: Held) -> list[str]:
    return [room.stands for room in held.node.leader.worker.rooms.values()]


def told(held: Held) -> dict[Key, Counter[str]]:
    """How long each request was in which state on this worker, and that no two in succession are
    the same."""
    found = {}
    for message in [m for s, _, m in held.world.log if s == W and isinstance(m, Ended)]:
        names = [phase.state for phase in message.phases]
        assert all(a != b for a, b in pairwise(names))
        assert len(names) <= MOST_PHASES
        found[message.key] = Counter[str]()
        for phase in message.phases:
            found[message.key][phase.state] += phase.us
    return found


@pytest.mark.parametrize("role", ["prefill", "unified"])
@pytest.mark.parametrize("step", [16, 20])
def test_it_is_computed_while_a_step_has_a_chunk_of_it(role: str, step: int) -> None:
    """With 20 tokens, steps have space beside a chunk of 16, so that the next prompt begins before
    its turn and waits again."""
    held = Held(role, step_tokens=step)
    held.ask(1)
    came = dict.fromkeys(keys(held), held.world.now)
    for number, prompt in ((2, OTHER), (3, THIRD)):
        began = held.world.now
        held.ask(number, prompt)
        came |= {key: began for key in keys(held) if key not in came}
    first, *others = came
    assert stands(held) == ["computing", "awaits_turn", "awaits_turn"]
    due = Counter({key: held.world.now - came[key] for key in others})
    computed = Counter[Key]()
    while held.batches:
        before = held.world.now
        held.step()  # it ends at once, and then the next one is under way
        rows = {row.key for batch in held.batches for row in batch.rows}
        for key in {*keys(held)} & {*others} - rows:
            due[key] += held.world.now - before
        for key in rows:
            computed[key] += held.world.now - before
    held.world.advance(25)
    found = told(held)
    assert "awaits_turn" not in found[first], "nothing was before it"
    for key in others:
        assert found[key]["computing"] == computed[key] >= STEP_US
    if role == "unified":  # which is rid of a request when its prompt is computed
        assert {key: found[key]["awaits_turn"] for key in others} == due
    assert all(found[key]["awaits_turn"] >= STEP_US for key in others)
    spent = held.node.leader.worker.spent["awaits_turn"].view()
    assert spent.total_us == sum(counter["awaits_turn"] for counter in found.values())


def keys(held: Held) -> list[Key]:
    return [room.key for room in held.node.leader.worker.rooms.values()]


def test_who_leaves_before_its_turn_was_never_computed() -> None:
    held = Held()
    held.ask(1)
    held.ask(2, OTHER)
    held.world.cancel(2)
    held.world.advance(25)
    (left,) = told(held).values()
    assert left["awaits_turn"] >= STEP_US
    assert "computing" not in left
    held.rest()
