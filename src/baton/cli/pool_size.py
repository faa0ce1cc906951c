"""Computes how many pages and slots each group's pool gets.

Pages: as many as fit in memory, and for windows no more than all rooms can use. Slots: one for each
room, but at most a share of the memory, because a slot of recurrent state is as large as hundreds
of tokens in pages.
"""

from bisect import bisect_right
from collections.abc import Mapping

import msgspec

from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.memory.span import Span
from baton.core.memory.state import Placement, Unit, Window

SLOT_SHARE = 0.5  # most of the budget that slots get; the rest is for pages


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """The most that the rooms of a worker can use.

    Attributes:
        rooms: most rooms at once
        tokens: positions of the longest request
        step: most positions of one request in one step
    """

    rooms: int
    tokens: int
    step: int


def pool_pages(
    placement: Placement, use: Use, *, pages: int | None, budget: int
) -> dict[GroupName, int]:
    """Return the number of pages (or slots) of every group's pool.

    Args:
        placement: placement of the rank whose pools these are
        pages: pages of groups with full attention, if given; slots are then as many, but at most
            one for each room
        budget: bytes of all pools together, if `pages` is None

    Raises:
        ConfigError: no page fits into the budget
    """
    table, page_tokens = placement.table, placement.page_blocks * placement.table.block_tokens
    most = {
        g: n * use.rooms
        for g, n in Span(table, page_tokens).reserve(use.tokens, step=use.step).items()
    }
    bounded = {g.name for g in table.groups if isinstance(g.extent, Window)}
    sizes = {g.name: placement.page_bytes(g.name) for g in table.groups}
    slotted = {g.name for g in table.groups if g.unit is Unit.SLOT}
    slot = sum(sizes[g] for g in slotted)
    slots = min(
        use.rooms, pages if pages is not None else max(1, int(budget * SLOT_SHARE) // max(1, slot))
    )

    def with_pages(n: int) -> dict[GroupName, int]:
        return {g: slots if g in slotted else min(n, most[g]) if g in bounded else n for g in sizes}

    def nbytes(n: int) -> int:
        return _bytes(with_pages(n), sizes)

    if pages is not None:
        return with_pages(pages)
    smallest = min((n for g, n in sizes.items() if n and g not in slotted), default=budget)
    found = bisect_right(range(1, budget // smallest + 2), budget, key=nbytes)
    if found < 1:
        raise ConfigError(
            f"a pool of {budget} bytes holds no page of {sum(sizes.values())} "
            "bytes; raise --kv-memory"
        )
    return with_pages(found)


def _bytes(pages: Mapping[GroupName, int], sizes: Mapping[GroupName, int]) -> int:
    return sum(n * sizes[g] for g, n in pages.items())
