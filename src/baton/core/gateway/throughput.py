"""How long an answer will take, from what its worker has generated of late: none begins that would
not end in time.

    lengths of recent answers ─▶ tokens to come ────────┐
    tokens of a worker's answers ─▶ time for each token ┴▶ does it end in time, and do those beside it?

A worker with n answers under way gives each of them a token every `t` microseconds; with one more
it is taken to need t (n + 1) / n. That is so where steps take time by the row, as on a CPU. Where
they do not, more answers begin, `t` stays, and more can begin after them.
"""

from collections import deque

import msgspec

from baton.core.ids import Key, Micros
from baton.core.messages import Limits

SPARE = 1.5  # a new answer may take so many times longer than foretold,
SPARE_LATER = 1.25  # and one that is under way


class PendingAnswer(msgspec.Struct, frozen=True):
    """What is to be generated of an answer, and until when."""

    tokens: int  # still to come; the next one is the prefill worker's
    deadline: Micros
    begun: bool  # whether the client has heard some of it

    def in_time(self, pace: float, made: int, now: Micros, spare: float = 1.0) -> bool:
        """Return whether the answer ends in time, with so many of its tokens made and the others
        `pace` microseconds apart."""
        return now + spare * pace * max(0, self.tokens - made) <= self.deadline


class Throughput:
    """Counts the tokens that one worker has generated over the last two windows in which it had
    answers under way.

    A step makes a token of each answer, and they come one by one at one time: a window has all of
    them or none.
    """

    WINDOW_US, WINDOW_TOKENS = 1_000_000, 16  # a window is as long as both of these need

    def __init__(self) -> None:
        self._rows: dict[Key, int] = {}  # tokens made of each answer under way
        self._at = Micros(0)
        self._past = self._present = (0, 0, 0)  # time, time of each answer, tokens
        self._full = False  # the present window ends as soon as time passes

    def made(self, key: Key, tokens: int, now: Micros) -> None:
        """Tokens have come of an answer."""
        self._pass(now)
        self._rows[key] = self._rows.get(key, 0) + tokens
        busy, rows, made = self._present
        self._present = (busy, rows, made + tokens)
        self._full = busy >= self.WINDOW_US and made + tokens >= self.WINDOW_TOKENS

    def ended(self, key: Key, now: Micros) -> None:
        """An answer goes on here no more. It need not have begun."""
        if key in self._rows:
            self._pass(now)
            del self._rows[key]

    def _pass(self, now: Micros) -> None:
        """Time has passed. A window that was full before that is the past one."""
        if self._full and now > self._at:
            self._past, self._present, self._full = self._present, (0, 0, 0), False
        if self._rows:
            busy, rows, made = self._present
            self._present = (busy + now - self._at, rows + (now - self._at) * len(self._rows), made)
        self._at = now

    def of(self, key: Key) -> int:
        """Return how many tokens of an answer have come."""
        return self._rows.get(key, 0)

    def pace(self, answers: int, now: Micros) -> float | None:
        """Return the microseconds from token to token of each of so many answers, or None before a
        window's tokens have come."""
        self._pass(now)
        busy, rows, made = (a + b for a, b in zip(self._past, self._present, strict=True))
        if made < self.WINDOW_TOKENS or not busy:
            return None
        # A token every rows / made microseconds, with rows / busy answers under way, and one more
        # that might have been.
        return (rows / made) * answers / (rows / busy + 1)


class AnswerLengths:
    """Learns how long answers turn out to be: most of them may be far longer than they are."""

    KEPT, LEAST = 128, 16
    GUESS = 256  # tokens, before there are `LEAST`

    def __init__(self) -> None:
        self._lengths: deque[int] = deque(maxlen=self.KEPT)

    def add(self, tokens: int) -> None:
        """An answer has ended, however it did. One that ran out of time would have been longer
        still."""
        self._lengths.append(tokens)

    def expected(self, limits: Limits) -> int:
        """Return how many tokens a new answer will have.

        They are as many as it may have if nothing else ends it, else as many as 19 of 20 recent
        answers had at most.
        """
        if not (limits.eos_token_ids or limits.stop_token_ids):
            return limits.max_tokens
        known = len(self._lengths) >= self.LEAST
        return min(
            limits.max_tokens,
            sorted(self._lengths)[len(self._lengths) * 19 // 20] if known else self.GUESS,
        )
