"""What a decode leader lends of its prefix cache: to the prefill worker of a room, of that room's prompt, while the room is open.

    prefill ──Borrow(key, start)──▶ decode      pins the cached beginning of the room's context, as far as its sums are known
            ◀──Loan(key, runs, sums)──          pages and seals of the blocks behind `start`; nothing, if there are none
            ── reads, verifies ──
            ──Doubt(key, blocks)──▶             where something differs: has the pages hashed, gives up what is damaged
            ──Returned(key)──▶                  unpins
            ◀──Verdict──

What is looked for are the tokens of the room's own ticket, so page sizes may differ. A room has one loan at most. It ends with
`Returned`, with the room, or with the session to its prefill worker, whichever is first; each of these is bounded, so a pin is.
Lent pages promise nothing (they are read as all state is, and verified against their sums), the pin is a courtesy.
"""

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from baton.core.errors import BatonError
from baton.core.handoff.birth_sums import sums_of
from baton.core.handoff.leg_sums import leg_sums
from baton.core.handoff.plan import PairPlan
from baton.core.ids import BlockIndex, GroupName, Page
from baton.core.manifest import Manifest
from baton.core.memory.prefix_cache import CachedPage
from baton.core.messages import BlockRun, Borrow, Doubt, Lends, Loan
from baton.core.scheduler.generation import Generation
from baton.core.scheduler.leader import Leader


def way(leader: Leader[Any], theirs: Manifest, fabric: str) -> Lends | None:
    """How a worker that this one reads from may read from it: over the same fabric, the plan turned round."""
    plan = _plan(leader, theirs)
    return Lends(fabric, plan.digest) if plan is not None else None


def _plan(leader: Leader[Any], theirs: Manifest) -> PairPlan | None:
    ours = leader.manifest
    sides = ([worker.placement(rank.rank) for rank in worker.ranks] for worker in (ours, theirs))
    try:
        return leader.plans.pair(*sides)
    except BatonError:  # they fit one way alone
        return None


def lend(leader: Leader[Any], room: Generation, borrow: Borrow, theirs: Manifest) -> Loan:
    """What the cache has of a room's context from a block on; it is pinned until the ledger is told that the loan has ended."""
    k, plan = leader.manifest.page_blocks, _plan(leader, theirs)
    chain = tuple(takewhile(lambda entry: entry.sums, leader.reuse.find(room)))
    end = BlockIndex(len(chain) * k)
    if end <= borrow.start or plan is None:
        return Loan(room.key, {}, ())
    leader.ledger.lend(room.key, chain)
    leader.reuse.lent(end - borrow.start)
    blocks = {group.name: (borrow.start, end) for group in leader.state_table.groups}
    runs = {group: BlockRun(start, past, _pages(chain, group, start // k)) for group, (start, past) in blocks.items()}
    return Loan(room.key, runs, leg_sums(plan, sums_of(chain), blocks, dict.fromkeys(blocks, 0)))


def doubted(leader: Leader[Any], room: Generation, doubt: Doubt) -> list[CachedPage]:
    """Cached pages that hold these blocks of what is lent for a room; nothing if one of them is not lent, or is held no more.

    Legs are those of the plan by which prefill reads. Whole pages are looked at on all ranks, so it does not matter which.
    """
    k, lent = leader.manifest.page_blocks, leader.ledger.loan(room.key)
    if doubt.group not in leader.ledger.pools or not all(0 <= block // k < len(lent) for block in doubt.blocks):
        return []
    found = [lent[at] for at in sorted({block // k for block in doubt.blocks})]
    return found if all(leader.ledger.cache.holds(entry) for entry in found) else []


def _pages(chain: Sequence[CachedPage], group: GroupName, first: int) -> tuple[Page, ...]:
    return tuple(entry.pages[group] for entry in chain[first:])
