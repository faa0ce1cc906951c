"""What must be in the pages of a prompt that goes on from a checkpoint, kept without the code under
test.

    Keep     a part of the room's prompt is computed, or all of it, or also its answer: the tokens,
             the salt, and the stamps of these positions
    Resume   another room begins with exactly these tokens, and computes the next position first
    vacate   it could not be resumed, and begins anew

Checked when a room resumes: what was kept is of the same tokens, salt and length. Whether its bytes
are right is checked when they are first read.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from baton.core.agreement import Keep, Resume
from baton.core.ids import CheckpointName, Key, TokenId, room_key
from baton.core.messages import Ticket


class KeptPrompt(msgspec.Struct, frozen=True):
    """What was kept of one sequence."""

    tokens: tuple[TokenId, ...]
    salt: str
    stamps: tuple[int, ...]  # of its positions
    beside: tuple[int, ...]  # of the same positions in groups that do not last
    author: Key
    tainted: bool  # whether it was computed from damaged memory


class Resumes:
    """The checkpoints of one worker, and the rooms that go on from them."""

    def __init__(
        self, tickets: Mapping[Key, Ticket], tainted: set[Key], violate: Callable[[str, str], None]
    ) -> None:
        self._tickets, self._tainted, self._violate = tickets, tainted, violate
        self._kept: dict[CheckpointName, KeptPrompt] = {}
        self._rooms: dict[Key, KeptPrompt] = {}

    def kept(
        self,
        order: Keep,
        tokens: Sequence[TokenId],
        stamps: Sequence[int],
        beside: Sequence[int],
        *,
        one_length: bool,
    ) -> None:
        """A rank is ordered to keep what cached pages lack of a room.

        Args:
            tokens: of the positions that are computed of it, drafts that were wrong among them
            stamps: of those of them that are no wrong drafts
            beside: of the same in groups that do not last
            one_length: whether some of its state is that of all these positions alone
        """
        ticket, length = self._tickets[order.key], order.length
        known = len(ticket.prompt) + len(ticket.said)
        exactly = one_length or length < known  # the rest of a prompt waits
        if not 0 < length <= len(stamps) or (exactly and length != len(stamps)):
            self._violate(
                "right_resume",
                f"{length} positions are kept of {_short(order.key)}, whose prompt has {known}, "
                f"and of which {len(stamps)} are computed",
            )
        tainted = order.key in self._tainted
        kept = KeptPrompt(
            tuple(tokens[:length]),
            ticket.cache_salt,
            tuple(stamps[:length]),
            tuple(beside[:length]),
            order.key,
            tainted,
        )
        self._kept.setdefault(order.name, kept)

    def begins(self, order: Resume) -> KeptPrompt:
        """A rank is ordered to bring a checkpoint into the pages of a room, or of a loan for it."""
        kept, ticket = self._kept.get(order.name), self._tickets[room_key(order.key)]
        known = (*ticket.prompt, *ticket.said)
        who = f"{_short(order.key)} goes on from position {order.length}"
        if kept is None:
            self._violate("right_resume", f"{who}, and nothing was kept under {order.name}")
            raise AssertionError
        if order.length != len(kept.tokens) or known[: order.length] != kept.tokens:
            self._violate(
                "right_resume",
                f"{who}; what was kept are {len(kept.tokens)} tokens of {_short(kept.author)}",
            )
        if ticket.cache_salt != kept.salt:
            self._violate("own_salt", f"{who}, which was kept of a request with another salt")
        if order.length >= len(known):
            self._violate("hit_leaves_a_token", f"{who}; it has {len(known)} tokens")
        self._rooms[order.key] = kept
        if kept.tainted:
            self._tainted.add(order.key)
        return kept

    def vacated(self, key: Key) -> None:
        """A room gives up its pages, and begins anew."""
        self._rooms.pop(key, None)

    def of(self, key: Key) -> KeptPrompt | None:
        """Return what a room goes on from; None if it computes its prompt from the start."""
        return self._rooms.get(key)


def _short(key: Key) -> str:
    return f"{key.room[-4:]}.{key.epoch}"
