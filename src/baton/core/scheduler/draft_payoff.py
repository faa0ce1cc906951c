"""Whether drafts pay, as measured: the tokens that a step gives in its time, with drafts and
without.

A step with drafts computes more positions than one without, and gives more tokens where drafts are
right. Both depend on how many rooms run, so steps are compared with those of about as many rooms.
"""

from baton.core.ids import Micros

WEIGHT = 0.1  # of the newest step among all
TRIAL_STEPS = 4  # of either kind before they are compared
EVERY = 64  # steps: then the kind that is not chosen has one, as it may have become the better one
CLASSES = 16  # of numbers of rooms: 1, 2 to 3, 4 to 7, ..


class _Kind:
    """Steps of one kind with about as many rooms."""

    def __init__(self) -> None:
        self.steps = 0
        self.us = self.tokens = 0.0  # of a step; tokens for each room

    def add(self, us: int, tokens: float) -> None:
        weight = max(WEIGHT, 1 / (self.steps + 1))
        self.us += weight * (us - self.us)
        self.tokens += weight * (tokens - self.tokens)
        self.steps += 1

    @property
    def rate(self) -> float:
        """Tokens of a room in a microsecond."""
        return self.tokens / max(self.us, 1.0)


class DraftPayoff:
    """The steps of one worker. `allows` is asked for each step, and `stepped` takes what became of
    it."""

    def __init__(self, *, lead: int) -> None:
        """lead: steps that make drafts before the first one that has some. A trial of drafts is so
        much longer."""
        self._lead = lead
        self._plain = [_Kind() for _ in range(CLASSES)]
        self._drafted = [_Kind() for _ in range(CLASSES)]
        self._asked = 0

    def allows(self, rooms: int) -> bool:
        """Return whether the next step, of so many rooms, is to have drafts."""
        self._asked += 1
        plain, drafted = self._plain[_class(rooms)], self._drafted[_class(rooms)]
        if plain.steps < TRIAL_STEPS or drafted.steps < TRIAL_STEPS:
            return drafted.steps <= plain.steps
        since = self._asked % EVERY
        return since > 0 if drafted.rate >= plain.rate else since <= self._lead

    def stepped(self, rooms: int, drafts: int, tokens: int, us: Micros) -> None:
        """A step has ended.

        Args:
            drafts: how many tokens were drafted
            tokens: how many it has given
            us: its time
        """
        kinds = self._drafted if drafts else self._plain
        kinds[_class(rooms)].add(us, tokens / rooms)


def _class(rooms: int) -> int:
    return min(rooms.bit_length(), CLASSES - 1)
