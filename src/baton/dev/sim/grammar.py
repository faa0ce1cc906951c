"""The toy grammar of simulated requests: which tokens may come next depends on its seed and on all
tokens before, so a matcher that has missed one, or has one too many, allows others.

`allowed` computes this from nothing, for the oracle. `ToyMatcher` goes on from where it is, as a
real matcher does, and runs in the shipped table of matchers.
"""

from collections.abc import Sequence

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.dev.sim.content import END_OF_SEQUENCE, MASK, VOCABULARY, scramble

Allowed = frozenset[int]


def toy(seed: int) -> Grammar:
    """Return a grammar. Some begin behind a token that may never come."""
    after = (TokenId(seed % VOCABULARY),) if seed % 3 == 0 else ()
    return Grammar(str(seed), after, (END_OF_SEQUENCE,))


def allowed(grammar: Grammar, answer: Sequence[TokenId]) -> Allowed | None:
    """Return which tokens may follow the whole answer so far; None if the grammar has not begun."""
    part = list(answer)
    if grammar.after:
        (mark,) = grammar.after
        if mark not in part:
            return None
        part = part[part.index(mark) + 1 :]
    state = _start(grammar)
    for token in part:
        state = _next(state, token)
    return _choices(state, grammar)


def refused(grammar: Grammar | None, answer: Sequence[TokenId], tokens: Sequence[TokenId]) -> str:
    """Say which of these tokens, which follow the answer so far, is the first that the grammar does
    not allow; empty if it allows all."""
    if grammar is None:
        return ""
    said = list(answer)
    for token in tokens:
        may = allowed(grammar, said)
        if may is not None and token not in may:
            return f"token {token} with index {len(said)}; its grammar allows {sorted(may)}"
        said.append(token)
    return ""


def _start(grammar: Grammar) -> int:
    return scramble(int(grammar.text) + 1)


def _next(state: int, token: TokenId) -> int:
    return scramble(state * 31 + token & MASK)


def _choices(state: int, grammar: Grammar) -> Allowed:
    """Some tokens, the end tokens among them now and then, or those alone."""
    ends = frozenset(grammar.ends)
    if state % 11 == 0:
        return ends
    some = {t for t in range(VOCABULARY) if scramble(state + t) % 4 == 0} - ends
    return frozenset(some) | (ends if state % 3 == 0 or not some else frozenset())


class ToyMatcher:
    """Implements core.matchers.Matcher."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar
        self._states = [_start(grammar)]  # after no token, one token, ...

    def accept(self, tokens: Sequence[TokenId]) -> None:
        for token in tokens:
            if token not in self.allowed():
                raise GrammarError(f"token {token} is not allowed after {len(self._states) - 1}")
            self._states.append(_next(self._states[-1], token))

    def go_back(self, count: int) -> None:
        del self._states[len(self._states) - count :]

    def allowed(self) -> Allowed:
        return _choices(self._states[-1], self._grammar)
