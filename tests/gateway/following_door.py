"""A door to a model that follows grammars: of the tokens that are allowed it takes what ends an answer
soonest; without a grammar it says hello, or calls a function."""

from functools import cache
from itertools import cycle

import numpy as np

from baton.core.door import Submit
from baton.core.ids import TokenId
from baton.core.messages import FinishReason, Grammar
from baton.gateway.door import Capacity, Hear
from baton.grammar.matcher import LlguidanceMatcher
from baton.grammar.vocabulary import Vocabulary

from .fake_door import FakeDoor
from .templates import vocabulary_with_marks

SIZE = 300  # of the vocabulary, as templates.write_talker says
TEXTS = ("hey", '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>')
MARKS = ("</think>", "</tool_call>", "<tool_call>")
CLOSING = tuple(b'"}]')  # in a text the others may stand, too
PLAIN = range(ord("!"), ord("~") + 1)


@cache
def vocabulary() -> Vocabulary:
    return Vocabulary(vocabulary_with_marks().to_str, size=SIZE)


@cache
def marks() -> tuple[int, ...]:
    ids = [vocabulary_with_marks().token_to_id(mark) for mark in MARKS]
    assert None not in ids
    return tuple(ids)


def follow(grammar: Grammar, most: int) -> tuple[list[int], FinishReason]:
    """An answer of a grammar, and why it ends."""
    matcher, said = LlguidanceMatcher(grammar, vocabulary()), list[int]()
    while len(said) < most:
        token = _soonest(np.flatnonzero(matcher.allowed()).tolist(), grammar.ends)
        said.append(token)
        if token in grammar.ends:
            return said, FinishReason.STOP
        matcher.accept([TokenId(token)])
    return said, FinishReason.LENGTH


def _soonest(allowed: list[int], ends: tuple[TokenId, ...]) -> int:
    wanted = (*ends, *marks(), *CLOSING, *PLAIN)
    return next((token for token in wanted if token in allowed), allowed[0])


class FollowingDoor(FakeDoor):
    """Answers every request at once, and forgets it. `constrained` counts those with a grammar."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Capacity(max_model_len=2048, pool_tokens=4096)
        self.constrained = 0
        self._texts = cycle(vocabulary_with_marks().encode(text).ids for text in TEXTS)

    def submit(self, submit: Submit, hear: Hear) -> None:
        if submit.grammar is None:
            said = next(self._texts)
            self.script = [said[:2], said[2:], FinishReason.STOP]
        else:
            self.constrained += 1
            said, why = follow(submit.grammar, submit.limits.max_tokens)
            self.script = [said, why]
        super().submit(submit, hear)
        self.submitted.clear()
