"""Pages of a prefill worker that change under it on order: between the last offer of a room and the
read of it.

    prefill computes ─ seals ─ offers ──▶ here the page changes ──▶ decode reads, and sees by the seal

The control plane says when (`heed`), the fabric port where (`fabric` learns the pools).
"""

import ctypes
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, cast

import msgspec
import numpy as np
import structlog

from baton.core.ids import GroupName, Key
from baton.core.messages import AnyMessage, Doubt, Offer, Register
from baton.ports.fabric import Fabric, Pool

log = structlog.get_logger()


class Change(Enum):
    """What becomes of a page that was just offered."""

    # it holds what another page holds, until decode doubts it: then it holds its own again
    LENT = "lent"
    REUSED = "reused"  # it holds what another page holds, for good
    FLIPPED = "flipped"  # one of its bits is turned over, for good


class PageRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The change, and how many rooms' last offers meet it (None = all)."""

    change: Change
    count: int | None = 1


class SourcePages:
    """The pools of one worker, and what happens to them."""

    def __init__(self) -> None:
        self._rule: PageRule | None = None
        self._used = 0
        self._pools: Mapping[GroupName, Pool] = {}
        self._pages: Mapping[GroupName, int] = {}
        self._lent: dict[Key, Callable[[], None]] = {}  # how to restore

    def order(self, rule: PageRule | None) -> None:
        """From now on this rule; what was changed stays so."""
        self._rule, self._used = rule, 0

    def fabric(self, inner: Fabric) -> Fabric:
        """The same fabric; its pools are ours to change."""
        return cast(Fabric, _Learning(inner, self))

    def learn(self, pools: Mapping[GroupName, Pool]) -> None:
        """These are the pools."""
        self._pools = pools

    def count_pages(self, pages: Mapping[GroupName, int]) -> None:
        """So many pages are in each pool."""
        self._pages = pages

    def heed(self, message: AnyMessage, ours: bool) -> None:
        """A message that is about to be said or heard."""
        match message:
            case Register() if ours:
                self.count_pages(
                    {p.group: p.pages for r in message.manifest.ranks for p in r.pools}
                )
            case Offer(record=record) if ours and record is not None:
                self._change(message)
            case Doubt() if not ours and message.key in self._lent:
                self._lent.pop(message.key)()
                log.warning("planted_over", room=message.key.room, epoch=message.key.epoch)

    def page(self, group: GroupName, page: int) -> np.ndarray:
        """The bytes of a page, as they lie."""
        pool = self._pools[group]
        nbytes = pool.nbytes // self._pages[group]
        return np.ctypeslib.as_array(
            (ctypes.c_uint8 * nbytes).from_address(pool.address + page * nbytes)
        )

    def _change(self, offer: Offer) -> None:
        rule = self._rule
        if rule is None or (rule.count is not None and self._used >= rule.count):
            return
        self._used += 1
        group, run = next(iter(offer.runs.items()))
        number = run.pages[0]
        page = self.page(group, number)
        own = page.copy()
        if rule.change is Change.FLIPPED:
            page[page.size // 3] ^= 0x10
        else:
            page[:] = self.page(group, number - 1 if number else number + 1)
        assert not np.array_equal(page, own), "nothing was changed"
        if rule.change is Change.LENT:
            self._lent[offer.key] = lambda: page.__setitem__(slice(None), own)
        log.warning(
            "planted",
            change=rule.change.value,
            page=number,
            room=offer.key.room,
            epoch=offer.key.epoch,
        )


class _Learning:
    def __init__(self, inner: Fabric, pages: SourcePages) -> None:
        self._inner, self._pages = inner, pages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def expose(self, pools: Mapping[GroupName, Pool]) -> bytes:
        self._pages.learn(pools)
        return self._inner.expose(pools)
