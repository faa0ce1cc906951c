"""The threads of a rank's grammars: building one keeps no mask waiting."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from baton.core.errors import ConfigError
from baton.core.ids import Epoch, Key, Room, TokenId, TokenIndex
from baton.core.matchers import GrammarError, Matcher
from baton.core.messages import Drawn, Grammar, Sampling
from baton.core.past import Past
from baton.core.work import Draw, GrammarReady, Row
from baton.engine.grammars import BuildMatcher, Grammars
from baton.engine.sampler import draw_along
from baton.grammar.matcher import Mask

SOON = 20.0  # seconds after which a test gives up
GREEDY = Sampling(temperature=0.0, top_p=1.0, top_k=0, seed=1, logprobs=None)
Reported = "queue.SimpleQueue[GrammarReady | BaseException]"


def key(n: int) -> Key:
    return Key(Room(f"{n:032x}"), Epoch(1))


def grammar(text: str) -> Grammar:
    return Grammar(text, (), (TokenId(0),))


class Says:
    """Allows as many tokens as its grammar's text has characters."""

    def __init__(self, grammar: Grammar) -> None:
        self._allows = len(grammar.text)

    def accept(self, tokens: Sequence[TokenId]) -> None: ...

    def go_back(self, count: int) -> None: ...

    def allowed(self) -> Mask:
        return np.arange(8) < self._allows


def row(n: int) -> Row:
    draw = Draw(GREEDY, TokenIndex(0), Past((), (), (), constrained=True))
    return Row(key(n), 0, (TokenId(1),), {}, {}, 1, draw)


@contextmanager
def grammars(build: BuildMatcher = Says) -> Iterator[tuple[Grammars, Reported]]:
    reported: queue.SimpleQueue[GrammarReady | BaseException] = queue.SimpleQueue()
    found = Grammars(build, report=reported.put)
    try:
        yield found, reported
    finally:
        found.close()


def slow(gate: threading.Event, begun: threading.Event) -> Callable[[Grammar], Matcher[Mask]]:
    """Build `slow` only when the gate opens, and everything else at once."""

    def build(grammar: Grammar) -> Matcher[Mask]:
        if grammar.text == "slow":
            begun.set()
            assert gate.wait(SOON)
        return Says(grammar)

    return build


def test_masks_of_others_do_not_wait_for_a_grammar_that_is_being_built() -> None:
    gate, begun = threading.Event(), threading.Event()
    with grammars(slow(gate, begun)) as (found, reported):
        found.constrain(key(1), grammar("ab"))
        assert reported.get(timeout=SOON) == GrammarReady(key(1))
        found.constrain(key(2), grammar("slow"))
        assert begun.wait(SOON)
        masks = found.masks([row(1)])
        assert masks[0][0]().sum() == 2  # type: ignore[union-attr]
        assert reported.empty(), "the slow one is not ready"
        gate.set()
        assert reported.get(timeout=SOON) == GrammarReady(key(2))
        assert found.masks([row(2)])[0][0]().sum() == 4  # type: ignore[union-attr]


def test_a_room_that_ends_while_its_grammar_is_built_is_not_reported() -> None:
    gate, begun = threading.Event(), threading.Event()
    with grammars(slow(gate, begun)) as (found, reported):
        found.constrain(key(1), grammar("slow"))
        assert begun.wait(SOON)
        found.release(key(1))
        gate.set()
        found.constrain(key(2), grammar("a"))
        assert reported.get(timeout=SOON) == GrammarReady(key(2))
        assert reported.empty()
        assert len(found._matchers) == 1


def test_the_matcher_of_an_ended_room_serves_the_next_one_with_its_grammar() -> None:
    built: list[Grammar] = []

    def build(grammar: Grammar) -> Matcher[Mask]:
        built.append(grammar)
        return Says(grammar)

    with grammars(build) as (found, reported):
        for n in (1, 2):
            found.constrain(key(n), grammar("a"))
            assert reported.get(timeout=SOON) == GrammarReady(key(n))
            found.release(key(n))
    assert built == [grammar("a")]


@pytest.mark.parametrize("error", [GrammarError("no such rule"), ConfigError("no vocabulary")])
def test_a_grammar_that_cannot_be_built_fails_its_own_room(error: Exception) -> None:
    def build(grammar: Grammar) -> Matcher[Mask]:
        raise error

    with grammars(build) as (found, reported):
        found.constrain(key(1), grammar("a"))
        assert reported.get(timeout=SOON) == GrammarReady(key(1))
        with pytest.raises(GrammarError, match=str(error)):
            found.masks([row(1)])[0][0]()


def test_an_unforeseen_error_is_reported_as_what_it_is() -> None:
    def build(grammar: Grammar) -> Matcher[Mask]:
        raise ZeroDivisionError("a bug")

    with grammars(build) as (found, reported):
        found.constrain(key(1), grammar("a"))
        assert isinstance(reported.get(timeout=SOON), ZeroDivisionError)


class Counts:
    """Allows the number of tokens so far, and nothing beyond 3."""

    def __init__(self, grammar: Grammar) -> None:
        self.accepted: list[TokenId] = []

    def accept(self, tokens: Sequence[TokenId]) -> None:
        for token in tokens:
            if token != len(self.accepted):
                raise GrammarError(f"{token} is not allowed")
            self.accepted.append(token)

    def go_back(self, count: int) -> None:
        del self.accepted[len(self.accepted) - count :]

    def allowed(self) -> Mask:
        return np.arange(8) == len(self.accepted)


def drafted(n: int, drafts: Sequence[int]) -> Row:
    """A row that has said nothing so far, with drafts."""
    pasts = [Past((), tuple(map(TokenId, drafts[:i])), (), True) for i in range(len(drafts) + 1)]
    draws = [Draw(GREEDY, TokenIndex(i), past) for i, past in enumerate(pasts)]
    tokens = (TokenId(7), *map(TokenId, drafts))
    return Row(key(n), 0, tokens, {}, {}, 1, draws[0], ahead=tuple(draws[1:]))


@pytest.mark.parametrize(
    ("drafts", "said"),
    [
        ((), [0]),
        ((0, 1, 2), [0, 1, 2, 3]),
        ((0, 5, 2), [0, 1]),
        ((4, 1), [0]),
        ((0, 1, 1), [0, 1, 2]),
    ],
)
def test_each_draw_after_drafts_has_its_own_mask(drafts: tuple[int, ...], said: list[int]) -> None:
    logits = torch.zeros(len(drafts) + 1, 8)
    with grammars(Counts) as (found, reported):
        found.constrain(key(1), grammar("a"))
        assert reported.get(timeout=SOON) == GrammarReady(key(1))
        for _ in range(2):  # the second time it has gone back
            row = drafted(1, drafts)
            drawn = draw_along(logits, row.draws, row.tokens, found.masks([row])[0])
            assert [d.token for d in drawn if isinstance(d, Drawn)] == said


def test_a_mask_that_is_asked_for_after_its_room_has_ended_says_so() -> None:
    with grammars(Counts) as (found, reported):
        found.constrain(key(1), grammar("a"))
        assert reported.get(timeout=SOON) == GrammarReady(key(1))
        first, later = found.masks([drafted(1, (0,))])[0]
        found.release(key(1))
        assert first() is not None
        with pytest.raises(GrammarError, match="ended"):
            later()
