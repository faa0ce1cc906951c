"""Which pages a room holds while its sequence grows.

    full      [0 ─────────────────────────▶ past)      all from the first on
    window    . . . passed . . . [gone ───▶ past)      what no later step looks back on is given up
    slot      one, whatever the length

A prompt's window moves within pages that were taken before its first chunk: what it passes is taken again at its end, so that
a room that computes never waits for memory. While a room generates, what it passes returns to the pool.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.agreement import Hold
from baton.core.ids import GroupName
from baton.core.memory.pages import PageState
from baton.core.memory.prefix_cache import CachedPage
from baton.core.scheduler.generation import Generation
from baton.core.scheduler.leader import Leader
from baton.core.scheduler.room import OpenRoom


def take(
    leader: Leader[Any],
    room: OpenRoom,
    want: Mapping[GroupName, int],
    state: PageState,
    *,
    position: int = 0,
    reuse: Sequence[CachedPage] = (),
) -> bool:
    """Give a room its first pages, which are `want` from those on that a step at `position` looks back on; False where they
    are not free. reuse: cached pages with which its lists begin; they are part of `want`."""
    begins = {g: n for g, n in leader.span.gone(position).items() if n}
    taken = leader.ledger.take(room.key, beyond(want, reuse), state, begins=begins, reuse=reuse)
    if taken is None:
        return False
    leader.draft.hold.append(Hold(room.key, taken, begins, len(reuse)))
    return True


def beyond(want: Mapping[GroupName, int], reuse: Sequence[CachedPage]) -> dict[GroupName, int]:
    """Pages that a room needs of its own, of those it needs in all."""
    return {g: n - len(reuse) for g, n in want.items()}


def slide(leader: Leader[Any], room: OpenRoom, position: int, *, tokens: int) -> None:
    """Positions before `position` are computed on all ranks: pages that their windows have passed move to the end of the
    room's lists, as far as a sequence of `tokens` needs them, and to the pool otherwise."""
    passed = leader.ledger.let_pass(room.key, leader.span.gone(position))
    if not passed:
        return
    past, begins, held = leader.span.past(tokens), leader.ledger.begins(room.key), leader.ledger.held(room.key)
    more = {g: min(n, past[g] - begins[g] - len(held[g])) for g, n in passed.items()}
    taken = leader.ledger.take(room.key, {g: n for g, n in more.items() if n > 0}, leader.ledger.state(room.key))
    assert taken is not None, "they were the room's a moment ago"
    leader.draft.hold.append(Hold(room.key, taken, passed))


def grow(leader: Leader[Any], room: Generation, position: int) -> bool:
    """The next step computes `position`: what it does not look back on is given up, and a page for it is taken; False where
    none is free."""
    if room.covered == position - 1 and not leader.span.moves(position):  # as nearly always
        room.covered = position
    if room.covered == position:
        return True
    passed = leader.ledger.let_pass(room.key, leader.span.gone(position))
    past, begins, held = leader.span.past(position + 1), leader.ledger.begins(room.key), leader.ledger.held(room.key)
    more = {g: n for g in past if (n := past[g] - begins[g] - len(held[g])) > 0}
    taken = leader.ledger.take(room.key, more, PageState.COMMITTED) if more else {}
    if passed or taken:
        leader.draft.hold.append(Hold(room.key, taken or {}, passed))
    room.covered = position if taken is not None else None
    return taken is not None
