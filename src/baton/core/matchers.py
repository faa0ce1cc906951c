"""The matchers of the rooms whose answers follow a grammar: which tokens may come next.

          add ──▶ matcher of the room ──answer so far──▶ it accepts what is new ──▶ allowed tokens
                      ▲      └── release ──▶ spare ──┐
                      └── reuse: the same grammar ───┘

What is allowed is a function of the grammar and the answer so far. A matcher only remembers how far
it has come: it goes on from there if the answer does, and goes back if it does not. So a new epoch,
another worker and a preemption need no state. The matcher of a room that has ended is kept for the
next room with the same grammar, because building one takes milliseconds and the first masks of a
new one are slow.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, NoReturn, Protocol, TypeVar

from baton.core.ids import Key, TokenId
from baton.core.messages import Grammar

M = TypeVar("M", covariant=True)
Answer = tuple[TokenId, ...]


class GrammarError(ValueError):
    """A grammar cannot be built or followed; the text says why."""


class Matcher(Protocol[M]):
    """One grammar, and the tokens that it has accepted."""

    def accept(self, tokens: Sequence[TokenId]) -> None:
        """Go on with these tokens.

        Raises:
            GrammarError: the grammar does not allow one of them
        """
        ...

    def go_back(self, count: int) -> None:
        """Forget the last `count` tokens."""
        ...

    def allowed(self) -> M:
        """Return which tokens may come next; there is at least one.

        Raises:
            GrammarError: this takes more work than a step may
        """
        ...


class NoMatcher:
    """The matcher of a grammar that cannot be followed here."""

    def __init__(self, why: str) -> None:
        self._why = why

    def accept(self, tokens: Sequence[TokenId]) -> NoReturn:
        raise GrammarError(self._why)

    def go_back(self, count: int) -> NoReturn:
        raise GrammarError(self._why)

    def allowed(self) -> NoReturn:
        raise GrammarError(self._why)


class _Constrained(Generic[M]):
    """One room: its grammar, and how far its matcher has come."""

    def __init__(self, grammar: Grammar, matcher: Matcher[M]) -> None:
        self.grammar, self.matcher = grammar, matcher
        self.accepted: Answer = ()

    def go_to(self, answer: Answer) -> None:
        """Bring the matcher to where it has accepted exactly `answer`."""
        same = common(self.accepted, answer)
        if same < len(self.accepted):
            self.matcher.go_back(len(self.accepted) - same)
            self.accepted = answer[:same]
        if same < len(answer):
            self.matcher.accept(answer[same:])
            self.accepted = answer


class Matchers(Generic[M]):
    """The matchers of one rank.

    Args:
        spares: how many matchers of ended rooms are kept
    """

    def __init__(self, *, spares: int) -> None:
        self._most = spares
        self._rooms: dict[Key, _Constrained[M]] = {}
        self._spares: OrderedDict[Grammar, _Constrained[M]] = OrderedDict()  # oldest first

    def __len__(self) -> int:
        """The number of rooms with a grammar."""
        return len(self._rooms)

    def knows(self, key: Key) -> bool:
        """Whether a room has a grammar."""
        return key in self._rooms

    def reuse(self, key: Key, grammar: Grammar) -> bool:
        """Give a room the matcher of an ended one with the same grammar. Returns whether there is
        one; otherwise its own must be built and added."""
        spare = self._spares.pop(grammar, None)
        if spare is not None:
            self._rooms[key] = spare
        return spare is not None

    def add(self, key: Key, grammar: Grammar, matcher: Matcher[M]) -> None:
        """A room's answer follows this grammar, whose matcher is new."""
        assert key not in self._rooms, "a request has one grammar"
        self._rooms[key] = _Constrained(grammar, matcher)

    def allowed(self, key: Key, answer: Answer) -> M | None:
        """Return which tokens may follow the answer so far; None if the grammar has not begun.

        Raises:
            GrammarError: the answer does not follow the grammar, or the grammar takes too much work
        """
        room = self._rooms[key]
        begin = begins(answer, room.grammar.after)
        if begin is None:
            return None
        room.go_to(answer[begin:])
        return room.matcher.allowed()

    def release(self, key: Key) -> None:
        """A room has ended; its matcher becomes a spare one."""
        room = self._rooms.pop(key)
        try:
            room.go_to(())
        except GrammarError:
            return  # it has failed, and stays so
        self._spares[room.grammar] = room
        if len(self._spares) > self._most:
            self._spares.popitem(last=False)


def begins(answer: Answer, after: Answer) -> int | None:
    """Return where the grammar begins in an answer: behind the first place of `after`; None if the
    answer does not have it."""
    if not after:
        return 0
    at = -1
    while True:
        try:
            at = answer.index(after[0], at + 1)
        except ValueError:
            return None
        if answer[at : at + len(after)] == after:
            return at + len(after)


def common(one: Answer, other: Answer) -> int:
    """Return the length of the longest beginning that both have."""
    short = min(len(one), len(other))
    if one[:short] == other[:short]:  # nearly always
        return short
    return next(i for i in range(short) if one[i] != other[i])
