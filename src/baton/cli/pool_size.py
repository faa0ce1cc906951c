"""How many pages each group's pool gets: as many as the memory holds, and for windows no more than all rooms can use."""

from bisect import bisect_right
from collections.abc import Mapping

import msgspec

from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.span import Span
from baton.core.state import Placement, Window


class Use(msgspec.Struct, frozen=True, kw_only=True):
    """What the rooms of a worker need at most.

    Attributes:
        rooms: at once
        tokens: positions of the longest request
        step: positions of one request that are under way at a time
    """

    rooms: int
    tokens: int
    step: int


def pool_pages(placement: Placement, use: Use, *, pages: int | None, budget: int, roomy: bool) -> dict[GroupName, int]:
    """Pages of every group's pool.

    Args:
        placement: of a rank; its bytes count
        pages: of groups that see everything, if somebody has said so
        budget: bytes of all pools together, otherwise
        roomy: nobody has named a size, so what all rooms can use together is enough

    Raises:
        ConfigError: no page fits into the budget
    """
    table, page_tokens = placement.table, placement.page_blocks * placement.table.block_tokens
    most = {g: n * use.rooms for g, n in Span(table, page_tokens).reserve(use.tokens, step=use.step).items()}
    bounded = {g.name for g in table.groups if roomy or isinstance(g.extent, Window)}
    sizes = {g.name: placement.page_bytes(g.name) for g in table.groups}

    def with_pages(n: int) -> dict[GroupName, int]:
        return {g: min(n, most[g]) if g in bounded else n for g in sizes}

    def nbytes(n: int) -> int:
        return _bytes(with_pages(n), sizes)

    if pages is not None:
        return with_pages(pages)
    found = bisect_right(range(1, budget // min(filter(None, sizes.values())) + 2), budget, key=nbytes)
    if found < 1:
        raise ConfigError(f"a pool of {budget} bytes holds no page of {sum(sizes.values())} bytes; raise --kv-memory")
    return with_pages(found)


def _bytes(pages: Mapping[GroupName, int], sizes: Mapping[GroupName, int]) -> int:
    return sum(n * sizes[g] for g, n in pages.items())
