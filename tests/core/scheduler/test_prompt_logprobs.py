"""Logprobs of a prompt: computed whatever is cached, told once and with the first token, whoever
says that first."""

from typing import Any

import msgspec
import pytest
from tests.core.build import submit
from tests.core.world import World, expected, scores

from baton.core.door import Emit, Fail, Finish, RequestId
from baton.core.handoff.fetch_back import FetchBack
from baton.core.messages import Borrow, FailCode, FirstToken, PromptLogprobs, Tokens
from baton.core.work import Batch

P, D, U = 2, 3, 4
PROMPT = tuple(range(100, 119))
TOP = 2


class Bench:
    """Workers with their caches on, and the first position and length of every row of a prompt."""

    def __init__(self, *, unified: bool = False, **limits: Any) -> None:
        self.world, self.rows = World(), list[tuple[int, int]]()
        common: dict[str, Any] = {"prefix_cache": True, "step_tokens": 64} | limits
        roles = (("unified", U),) if unified else (("prefill", P), ("decode", D))
        nodes = [self.world.add(role, boot, pages=32, **common) for role, boot in roles]
        self.world.run()
        compute = nodes[0].engine.compute

        def watched(batch: Batch) -> None:
            self.rows.extend((r.start, len(r.tokens)) for r in batch.rows if len(r.tokens) > 1)
            compute(batch)

        nodes[0].engine.compute = watched  # type: ignore[method-assign]

    def begin(self, number: int, prompt: tuple[int, ...] = PROMPT, top: int | None = TOP) -> None:
        asked = submit(number, prompt)
        sampling = msgspec.structs.replace(asked.sampling, prompt_logprobs=top)
        self.world.submit(msgspec.structs.replace(asked, sampling=sampling))

    def ask(self, number: int, prompt: tuple[int, ...] = PROMPT, top: int | None = TOP) -> None:
        """One request, to its right end."""
        self.rows.clear()
        self.begin(number, prompt, top)
        self.world.run()
        assert self.world.tokens(number) == expected(prompt, 4)
        assert self.world.clean

    def another_decode(self) -> None:
        self.world.add("decode", D + 10, pages=32, prefix_cache=True)
        self.world.run()

    def told(self, number: int) -> list[tuple[int, Any]]:
        """Indexes with which a client heard of its prompt, and what."""
        heard = self.world.heard[RequestId(number)]
        return [(h.start, h.scores) for h in heard if isinstance(h, Emit) and h.scores]

    def said(self, kind: type) -> list[Any]:
        return [message for _, _, message in self.world.log if isinstance(message, kind)]


DUE = [(0, scores(PROMPT, TOP))]


@pytest.mark.parametrize("unified", [False, True])
@pytest.mark.parametrize("step_tokens", [64, 8, 3])
def test_a_client_hears_them_once_with_its_first_token(unified: bool, step_tokens: int) -> None:
    b = Bench(unified=unified, step_tokens=step_tokens, last_chunk_tokens=step_tokens)
    b.ask(1)
    assert b.told(1) == DUE
    b.ask(2, top=0)
    assert b.told(2) == [(0, scores(PROMPT, 0))]
    b.ask(3, top=None)
    assert b.told(3) == []


@pytest.mark.parametrize("unified", [False, True])
def test_nothing_cached_is_reused_and_what_is_computed_is_cached(unified: bool) -> None:
    b = Bench(unified=unified)
    for number in (1, 2):
        b.ask(number)
        assert b.rows == [(0, len(PROMPT))]
        assert b.told(number) == DUE
    b.ask(3, top=None)
    assert b.rows == [(16, 3)]
    hits = next(iter(b.world.nodes.values())).leader.worker.reuse.tally()
    assert (hits.queries, hits.hits) == (19, 16), "only the last one looked for something"


def test_decode_still_reuses_what_it_has() -> None:
    b = Bench()
    b.ask(1)
    b.ask(2)
    decode = b.world.nodes[next(boot for boot in b.world.nodes if boot == D)]
    assert decode.leader.worker.reuse.tally().hits == 16


@pytest.mark.parametrize("unified", [False, True])
def test_a_room_that_computes_everything_follows_nobody(unified: bool) -> None:
    b = Bench(unified=unified, step_tokens=4, last_chunk_tokens=4)
    b.begin(1, top=None)
    b.begin(2)
    b.world.run()
    assert b.told(2) == DUE
    assert sum(count for _, count in b.rows) >= 2 * len(PROMPT) - 8


def test_nothing_is_fetched_back() -> None:
    b = Bench(fetch_back=FetchBack.ALWAYS)
    b.ask(1)
    b.world.front.ask_reset_cache(f"prefill-{P}")
    b.world.run()
    b.ask(2)
    assert b.said(Borrow) == []
    assert b.told(2) == DUE


def test_decode_tells_them_if_its_tokens_come_first() -> None:
    b = Bench()
    b.world.hold = lambda source, target, message: (
        source == P and isinstance(message, FirstToken | PromptLogprobs)
    )
    b.ask(1)
    assert b.told(1) == DUE
    b.world.release()
    b.world.run()
    assert b.told(1) == DUE


def test_both_sides_say_the_same_before_their_first_token() -> None:
    b = Bench()
    b.ask(1)
    said = [
        (source, type(message))
        for source, target, message in b.world.log
        if target == World.GATEWAY and isinstance(message, FirstToken | Tokens | PromptLogprobs)
    ]
    for boot, first in ((P, FirstToken), (D, Tokens)):
        assert [kind for source, kind in said if source == boot][:2] == [PromptLogprobs, first]
    assert [m.scores for m in b.said(PromptLogprobs)] == [scores(PROMPT, TOP)] * 2


def test_an_epoch_that_goes_on_after_some_tokens_computes_none() -> None:
    b = Bench()
    b.world.hold = lambda source, target, message: isinstance(message, Tokens) and message.start > 1
    b.begin(1)
    b.world.run()
    assert b.told(1) == DUE
    b.world.log.clear()
    b.world.held.clear()
    b.world.hold = lambda source, target, message: False
    b.another_decode()
    b.world.lose(D)
    b.world.run()
    assert b.world.tokens(1) == expected(PROMPT, 4)
    assert b.told(1) == DUE
    assert b.said(PromptLogprobs) == []


def test_an_epoch_that_ended_before_the_first_token_leaves_none_behind() -> None:
    b = Bench()
    b.world.hold = lambda source, target, message: isinstance(message, FirstToken | Tokens)
    b.begin(1)
    b.world.run()
    assert b.said(PromptLogprobs)
    request = next(iter(b.world.front.requests))
    assert request.scores is not None
    b.world.held.clear()
    b.another_decode()
    b.world.lose(D)
    assert request.scores is None, "the next epoch computes its own"
    b.world.hold = lambda source, target, message: False
    b.world.run()
    assert b.told(1) == DUE


def lies(b: Bench, change: Any) -> None:
    """Workers that say this in the place of the scores."""
    deliver = b.world._deliver

    def altered(source: int, target: int, message: Any) -> None:
        for said in change(message) if isinstance(message, PromptLogprobs) else (message,):
            deliver(source, target, said)

    b.world._deliver = altered  # type: ignore[method-assign,assignment]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: (), "logprobs of the prompt are lacking"),
        (
            lambda m: (PromptLogprobs(m.key, scores(PROMPT[3:], TOP)),),
            "logprobs of 15 tokens came with a prompt of 19 tokens",
        ),
    ],
)
def test_a_first_token_without_them_fails_the_request(change: Any, why: str) -> None:
    b = Bench()
    lies(b, change)
    b.begin(1)
    b.world.run()
    assert b.world.tokens(1) == []
    end = b.world.end(1)
    assert isinstance(end, Fail)
    assert (end.code, end.detail) == (FailCode.HANDOFF_FAILED, why)
    assert b.world.clean


def test_those_that_nobody_wants_fail_the_request() -> None:
    b = Bench()
    b.world.hold = lambda source, target, message: isinstance(message, FirstToken | Tokens)
    b.begin(1, top=None)
    b.world.run()
    request = next(iter(b.world.front.requests))
    b.world._send(P, World.GATEWAY, PromptLogprobs(request.key, scores(PROMPT, TOP)))
    b.world.release()
    b.world.run()
    end = b.world.end(1)
    assert isinstance(end, Fail)
    assert end.detail == "logprobs of the prompt came unasked"


def test_a_prompt_of_one_token_has_an_empty_answer() -> None:
    b = Bench()
    b.ask(1, (7,))
    heard = next(h for h in b.world.heard[RequestId(1)] if isinstance(h, Emit))
    assert heard.scores == scores((7,), TOP)
    assert isinstance(b.world.end(1), Finish)
