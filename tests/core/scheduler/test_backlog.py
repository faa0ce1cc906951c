"""What a worker says of the prompts that it has still to compute."""

from collections import deque
from typing import Any

import pytest
from msgspec.structs import replace
from tests.core.build import GREEDY, submit
from tests.core.world import World

from baton.core.ids import Boot
from baton.core.messages import Credits, Offer, Sampling
from baton.core.prefill_cost import Backlog
from baton.core.scheduler.computing import Computing
from baton.core.work import Batch

W, D = Boot(2), Boot(3)
PROMPT = tuple(range(41))  # ten pages and a token
STEP = 16  # tokens


class Held:
    """A worker whose steps end when a test says so. Time passes after everything, so that the
    worker states its figures."""

    def __init__(self, role: str = "unified", *, caches: bool = True, **limits: Any) -> None:
        self.world = World()
        fields = {"prefix_cache": caches, "step_tokens": STEP, "last_chunk_tokens": STEP} | limits
        self.node = self.world.add(role, W, **{"pages": 64} | fields)
        if role == "prefill":
            self.world.add("decode", D, pages=64)
        self.world.run()
        self.world.advance(25)
        self.batches: deque[Batch] = deque()
        self._compute = self.node.engine.compute
        self.node.engine.compute = self.batches.append  # type: ignore[method-assign]

    def ask(self, number: int, prompt: tuple[int, ...] = PROMPT, **changes: Any) -> None:
        self.world.submit(replace(submit(number, prompt, max_tokens=1), **changes))
        self.world.advance(25)

    def step(self) -> None:
        """The oldest step under way ends."""
        self._compute(self.batches.popleft())
        self.world.advance(25)

    def rest(self) -> None:
        """All steps end."""
        while self.batches:
            self.step()

    def said(self, worker: Boot = W) -> Credits:
        """What the worker stated last."""
        sent = [m for s, _, m in self.world.log if s == worker and isinstance(m, Credits)]
        return sent[-1]

    @property
    def backlog(self) -> tuple[int, int]:
        """Prompts and tokens."""
        said = self.said().backlog
        return said.prompts, said.tokens


@pytest.mark.parametrize("role", ["prefill", "unified"])
def test_it_gets_less_as_steps_end(role: str) -> None:
    held = Held(role)
    assert held.backlog == (0, 0)
    held.ask(1)
    assert held.backlog == (1, 41), "what is under way is not computed"
    said = []
    while held.batches:
        held.step()
        said.append(held.backlog)
    assert said == [(1, 25), (1, 9), (0, 0)]


def test_its_time_is_what_the_stated_cost_makes_of_it() -> None:
    held = Held()
    held.ask(1)
    said = held.said()
    assert said.backlog.us == 41 * 500, "nothing is measured yet"
    held.step()
    held.ask(2, tuple(range(100, 120)))
    said = held.said()
    assert said.prefill_cost == held.node.leader.worker.prefill.cost
    assert said.prefill_cost.token_us > 501, "a step of 16 tokens has taken 25 ms"
    assert said.backlog == Backlog(
        2, 25 + 20, round(said.prefill_cost.time(16, 41) + said.prefill_cost.time(0, 20))
    )


def test_what_is_cached_does_not_count() -> None:
    held = Held()
    held.ask(1)
    held.rest()
    held.ask(2, (*PROMPT[:24], *range(500, 510)))
    assert held.backlog == (1, 10)
    held.ask(3)
    assert held.backlog == (2, 10 + 1)


def test_a_common_beginning_of_prompts_that_wait_counts_once() -> None:
    held = Held()
    held.ask(1)
    held.ask(2, (*PROMPT[:30], *range(500, 505)))  # seven pages in common
    held.ask(3, (*PROMPT[:30], *range(500, 503), *range(600, 620)))  # and eight with that one
    assert held.backlog == (3, 41 + (35 - 28) + (53 - 32))
    held.step()
    assert held.backlog == (3, 25 + 7 + 21)
    held.rest()
    assert held.backlog == (0, 0)


def test_where_nothing_is_cached_every_prompt_counts_in_full() -> None:
    held = Held(caches=False)
    for number in (1, 2):
        held.ask(number)
    assert held.backlog == (2, 82)


def test_prompts_with_another_salt_have_nothing_in_common() -> None:
    held = Held()
    for number in (1, 2):
        held.ask(number, cache_salt=f"{number}")
    assert held.backlog == (2, 82)


@pytest.mark.parametrize(
    ("sampling", "tokens"), [(GREEDY, 1), (replace(GREEDY, prompt_logprobs=0), 41)]
)
@pytest.mark.parametrize("waits", [False, True])
def test_of_a_cached_prompt_as_much_counts_as_will_be_computed_whether_it_waits_or_not(
    waits: bool, sampling: Sampling, tokens: int
) -> None:
    """All of it, if its logprobs are wanted."""
    held = Held(max_rooms=1)
    held.ask(1)
    held.rest()
    if waits:
        held.ask(2, tuple(range(100, 130)))
    held.ask(3, sampling=sampling)
    assert held.said().waiting == waits
    assert held.backlog == (1 + waits, tokens + 30 * waits)


def test_prompts_that_wait_for_memory_count() -> None:
    held = Held(pages=16, caches=False)
    for number in (1, 2):
        held.ask(number)
    assert held.said().waiting == 1
    assert held.backlog == (2, 82)


def test_what_was_foreseen_counts_no_more_when_it_has_not_come() -> None:
    """The first prompt ends when 16 of its tokens are computed; the second had waited for it."""
    held = Held()
    held.ask(1)
    held.ask(2)
    assert held.backlog == (2, 41 + 1)
    held.step()
    held.world.cancel(1)
    held.world.advance(25)
    assert held.backlog == (1, 41 - 16)


def test_decode_has_no_prompts_to_compute() -> None:
    held = Held("prefill")
    held.world.hold = lambda source, target, message: isinstance(message, Offer)
    held.ask(1)
    assert held.said(D).waiting == 1
    assert held.said(D).backlog == Backlog()
    held.rest()
    assert held.backlog == (0, 0), "it is offered, and decode does not fetch it"


def test_nothing_is_kept_of_prompts_that_have_ended() -> None:
    held = Held()
    for number in (1, 2, 3):
        held.ask(number)
    held.world.cancel(2)
    held.rest()
    held.world.advance(25)
    stage = held.node.leader.stage(Computing)
    assert {name: len(some) for name, some in stage.kept().items()} == {"steps": 0, "chains": 0}
    assert len(stage._coming) == 0
    assert held.world.clean
