"""How the ranks of a worker stay one: the leader's step plans, the ranks' reports, and the fold
over them.

    rank r:  cast(what I see) -> Report            leader:  fold = MIN over ranks -> decisions
    leader:  StepPlan seq, seq + 1, ... broadcast  rank r:  apply in order of seq; nothing else changes a queue

Invariants: a report's chain equals the leader's own chain at the report's `applied`, or that rank
has diverged and the worker ends; votes are monotone within their key; a negative fact counts only
from a report that has applied the plan which ordered it.
"""

from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.errors import Bug
from baton.core.ids import BlockIndex, Boot, GroupName, Key, Page, Rank, Seq, TokenId, TokenIndex
from baton.core.manifest import Manifest
from baton.core.messages import BlockRun, Drawn, LegSums, Sampling
from baton.core.past import Past
from baton.core.statistics import RankTally


class Vote(IntEnum):
    """What a rank says of a fetch order, when all its reads have ended; of a failure at once. Of a
    copy to or from the host store it says FAILED or ARRIVED.

    The order is the fold's: failure beats waiting, so that it is acted upon soon; waiting beats
    difference, so that what is fetched once more is all that differs on any rank; difference beats
    arrival.
    """

    FAILED = 0
    WAITING = 1
    DIFFERED = 2
    ARRIVED = 3


class Suspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blocks of a leg and group that kept differing from their sums."""

    leg: int
    group: GroupName
    blocks: tuple[BlockIndex, ...]


class Ballot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's vote on one order; `suspects` with DIFFERED: all that it found, the rest has
    arrived. With the FAILED of a patient order: what was found to differ of what did arrive."""

    order: int
    vote: Vote
    why: str
    suspects: tuple[Suspect, ...]
    # with ARRIVED, if the order says `tell`: uint64 [blocks of the run, units]
    sums: dict[GroupName, bytes] = {}


# ---- step plan ----------------------------------------------------------------------------------


class ConnectOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Connect to the ranks of a worker whose state is read here, over this fabric."""

    manifest: Manifest
    fabric: str


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Append pages to a room's lists, after so many pages at their front were passed by a window
    and are the room's no more.

    A list that begins with this and has passed n pages begins n pages into the sequence.
    """

    key: Key
    pages: dict[GroupName, tuple[Page, ...]]
    passed: dict[GroupName, int] = {}
    # pages at the front of each list that are cached: computed before, by another room, and never
    # written again
    shared: int = 0


class Fetch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Read these blocks of the room from that worker into the pages the room holds, and verify
    them.

    `follows` names an earlier order for the same blocks, of which all but `only` has arrived; only
    that is read. With `patient` nothing is read twice, and a vote is given only when nothing of the
    order touches the room's pages any more: they are to be used otherwise if it fails.
    """

    order: int
    follows: int | None
    only: tuple[Suspect, ...]
    key: Key
    source: Boot
    length: int  # positions that the room's state covers
    runs: dict[GroupName, BlockRun]  # source pages
    sums: tuple[LegSums, ...]
    deadline_ms: int
    tell: bool = False  # with the vote, what the blocks sum to by unit
    patient: bool = False


class RowOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One room's part of the batch; see core/work.py Row."""

    key: Key
    start: int
    tokens: tuple[TokenId, ...]
    final: dict[GroupName, tuple[BlockIndex, BlockIndex]]
    valid: int
    sampling: Sampling | None  # draw after the last token
    index: TokenIndex
    past: Past | None = None  # what the draw looks at besides the logits


class Rehash(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hash these blocks of the room again and report the sums."""

    order: int
    key: Key
    length: int
    group: GroupName
    blocks: tuple[BlockIndex, ...]


class Inspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hash these pages of the prefix cache as they lie and report what their blocks sum to.

    They belong to no room, and may be given to one while they are hashed: what they sum to says
    something of pages that are cached from the order to the last rank's answer, and of no others.
    """

    order: int
    numbers: tuple[int, ...]  # of each page in its sequence, from 0
    pages: dict[GroupName, tuple[Page, ...]]


class Offload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy the room's whole state into the host store, with the sum of every block; the room keeps
    its pages until `vacate`."""

    order: int
    key: Key
    length: int  # positions that the state covers


class Restore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy the room's state from the host store into the pages it holds now, verify it, and forget
    the copy."""

    order: int
    key: Key
    length: int


class StepPlan(msgspec.Struct, frozen=True, tag="step_plan", forbid_unknown_fields=True):
    """The leader's decisions, applied by every rank in order of `seq`, fields in the order written
    here."""

    seq: Seq
    connect: tuple[ConnectOrder, ...] = ()
    disconnect: tuple[Boot, ...] = ()  # disconnect from these workers
    # end these rooms: cancel reads, say `quiet` when nothing touches their pages
    drop: tuple[Key, ...] = ()
    # these rooms' state is in the host store: their pages are theirs no more
    vacate: tuple[Key, ...] = ()
    clear: tuple[GroupName, ...] = ()  # zero the pools of these groups; no room holds a page
    hold: tuple[Hold, ...] = ()
    fetch: tuple[Fetch, ...] = ()
    offload: tuple[Offload, ...] = ()
    restore: tuple[Restore, ...] = ()
    rehash: tuple[Rehash, ...] = ()
    inspect: tuple[Inspect, ...] = ()
    commit: tuple[Key, ...] = ()
    batch: tuple[RowOrder, ...] = ()


# ---- report -------------------------------------------------------------------------------------


class RowResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Sums of one row's newly final blocks: per group, uint64 [blocks, units] in native order, as
    bytes."""

    key: Key
    drawn: Drawn | None  # from the rank that samples
    sums: dict[GroupName, bytes]
    # why the row has no token, which it wants: the request's own fault, or at least not that of the
    # others
    failed: str = ""


class StepResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of the batch of one plan: its rows in their order."""

    seq: Seq
    rows: tuple[RowResult, ...]


class ConnectResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a ConnectOrder: `why` is empty when connected."""

    peer: Boot
    why: str


class Rehashed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a Rehash or an Inspect: by group uint64 [blocks, units] as bytes, of those
    that the rank holds a part of."""

    order: int
    sums: dict[GroupName, bytes]


class Wedged(msgspec.Struct, frozen=True, tag="wedged", forbid_unknown_fields=True):
    """Work of a rank that does not end. A step may wait for another rank; hashes and copies wait
    for nobody."""

    seq: Seq | None  # the step; None of anything else
    why: str


class Report(msgspec.Struct, frozen=True, tag="report", forbid_unknown_fields=True):
    """What one rank sees that its leader has not been told yet."""

    rank: Rank
    boot: Boot
    applied: Seq
    chain: bytes
    ballots: tuple[Ballot, ...]
    quiet: tuple[Key, ...]
    steps: tuple[StepResult, ...]  # batches that have ended, in order of their plans
    connected: tuple[ConnectResult, ...]
    rehashed: tuple[Rehashed, ...]
    reads: int  # under way, for the ledger view
    # rooms of which its host store holds something, or of which a copy is under way; for the ledger
    # view
    copies: int = 0
    counted: RankTally = RankTally()
    wedged: tuple[Wedged, ...] = ()  # each once


def unpack_sums(raw: bytes, units: int) -> NDArray[np.uint64]:
    """The array behind a report's sums: uint64 [blocks, units]."""
    return (
        np.frombuffer(raw, dtype="<u8").reshape(-1, units)
        if units
        else np.zeros((0, 0), dtype=np.uint64)
    )


# ---- chain and fold -----------------------------------------------------------------------------

FIRST_CHAIN = b"\0" * 16


class Chain:
    """H(chain, plan) over all plans so far."""

    def __init__(self) -> None:
        self.seq = Seq(0)
        self.value = FIRST_CHAIN
        self._encoder = msgspec.msgpack.Encoder()

    def extend(self, plan: StepPlan) -> bytes:
        """Add the next plan; raises Bug if it is not the next."""
        if plan.seq != self.seq + 1:
            raise Bug(f"plan {plan.seq} came after plan {self.seq}")
        self.seq = plan.seq
        self.value = blake2b(self.value + self._encoder.encode(plan), digest_size=16).digest()
        return self.value


def fold(votes: Iterable[Vote]) -> Vote:
    """MIN over ranks: a room proceeds only where every rank has it."""
    return min(votes, default=Vote.WAITING)


class Agreement:
    """The leader's view of its ranks: chains, votes, who has applied what."""

    def __init__(self, ranks: int) -> None:
        self.ranks = ranks
        self.chain = Chain()
        self._chains: dict[Seq, bytes] = {Seq(0): FIRST_CHAIN}
        self._applied: dict[Rank, Seq] = {Rank(r): Seq(0) for r in range(ranks)}
        self._votes: dict[int, dict[Rank, Ballot]] = {}
        self._quiet: dict[Key, set[Rank]] = {}
        self._dropped_at: dict[Key, Seq] = {}
        self.reads: dict[Rank, int] = {}
        self.copies: dict[Rank, int] = {}
        self.counted: dict[Rank, RankTally] = {}

    def __len__(self) -> int:
        """Orders whose votes are still counted, and dropped rooms that some rank has not said quiet
        of."""
        return len(self._votes) + len(self._dropped_at)

    def issue(self, plan: StepPlan) -> None:
        """Note a plan that goes out now."""
        self._chains[plan.seq] = self.chain.extend(plan)
        orders: list[Fetch | Offload | Restore] = [*plan.fetch, *plan.offload, *plan.restore]
        self._votes |= {order.order: {} for order in orders}
        for key in plan.drop:
            self._dropped_at[key] = plan.seq
            self._quiet[key] = set()

    def take(self, report: Report) -> None:
        """Add a rank's report.

        Raises:
            Bug: the rank has diverged, or it reports of a plan it has not been given
        """
        chain = self._chains.get(report.applied)
        if chain != report.chain:
            raise Bug(
                f"rank {report.rank} (boot {report.boot:x}) diverged at plan {report.applied}"
            )
        if report.applied > self._applied[report.rank]:
            self._applied[report.rank] = report.applied
            floor = min(self._applied.values())
            for seq in [s for s in self._chains if s < floor]:
                del self._chains[seq]
        self.reads[report.rank], self.counted[report.rank] = report.reads, report.counted
        self.copies[report.rank] = report.copies
        for ballot in report.ballots:
            self._vote(report.rank, ballot)
        for key in report.quiet:
            at = self._dropped_at.get(key)
            if at is not None and report.applied >= at:
                self._quiet[key].add(report.rank)

    def _vote(self, rank: Rank, ballot: Ballot) -> None:
        votes = self._votes.get(ballot.order)
        if votes is None:
            return  # the order was settled already
        earlier = votes.get(rank)
        if (
            earlier is not None
            and earlier.vote is not Vote.WAITING
            and earlier.vote is not ballot.vote
        ):
            raise Bug(
                f"rank {rank} changed its vote on order {ballot.order} from "
                f"{earlier.vote} to {ballot.vote}"
            )
        votes[rank] = ballot

    def verdict(self, order: int) -> tuple[Vote, dict[Rank, Ballot]]:
        """The fold over all ranks, and the ballots behind it, of those that have voted."""
        votes = self._votes[order]
        found = [
            votes[Rank(r)].vote if Rank(r) in votes else Vote.WAITING for r in range(self.ranks)
        ]
        return fold(found), dict(votes)

    def settle(self, order: int) -> None:
        """Forget an order."""
        self._votes.pop(order, None)

    def all_applied(self, seq: Seq) -> bool:
        """Whether every rank has applied that plan."""
        return min(self._applied.values()) >= seq

    def newly_quiet(self) -> list[Key]:
        """Dropped rooms on whose pages no rank has anything under way; each is returned once."""
        if not self._quiet:
            return []
        keys = [key for key, ranks in self._quiet.items() if len(ranks) == self.ranks]
        for key in keys:
            del self._quiet[key], self._dropped_at[key]
        return keys


class PlanDraft:
    """Decisions collected during one turn of a leader, issued as one plan."""

    def __init__(self) -> None:
        self.connect: list[ConnectOrder] = []
        self.disconnect: list[Boot] = []
        self.drop: list[Key] = []
        self.vacate: list[Key] = []
        self.clear: list[GroupName] = []
        self.hold: list[Hold] = []
        self.fetch: list[Fetch] = []
        self.offload: list[Offload] = []
        self.restore: list[Restore] = []
        self.rehash: list[Rehash] = []
        self.inspect: list[Inspect] = []
        self.commit: list[Key] = []
        self.batch: list[RowOrder] = []

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def finish(self, seq: Seq) -> StepPlan:
        """The plan of everything added so far."""
        return StepPlan(seq=seq, **{field: tuple(items) for field, items in vars(self).items()})
