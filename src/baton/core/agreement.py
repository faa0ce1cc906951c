"""How the ranks of a worker stay in agreement: the leader's step plans, the ranks' reports, and the
fold over the reports.

    rank r:  cast(what I see) -> Report            leader:  fold = MIN over ranks -> decisions
    leader:  StepPlan seq, seq + 1, ... broadcast  rank r:  apply in order of seq; nothing else
        changes a queue

Invariants: a report's chain equals the leader's own chain at the plan that the report names as
`applied`; otherwise that rank has diverged, and the worker ends. Votes on an order are monotone. A
negative fact counts only if the report's rank has applied the plan that ordered it.
"""

from collections.abc import Iterable
from enum import IntEnum
from hashlib import blake2b

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.errors import Bug
from baton.core.ids import (
    BlockIndex,
    Boot,
    CheckpointName,
    GroupName,
    Key,
    Page,
    Rank,
    Seq,
    TokenId,
    TokenIndex,
)
from baton.core.manifest import Manifest
from baton.core.messages import BlockRun, Drawn, Grammar, LegSums, RowFailure, Sampling
from baton.core.past import Past
from baton.core.prompt_scores import PromptScores, Score
from baton.core.statistics import RankTally


class Vote(IntEnum):
    """A rank's verdict on a fetch order when all its reads have ended, or at once when one fails.
    On a copy to or from the host store it is FAILED or ARRIVED.

    The fold takes the minimum. Failure comes before waiting, so that it is acted upon soon. Waiting
    comes before difference, so that the second fetch has all blocks that differ on any rank.
    Difference comes before arrival.
    """

    FAILED = 0
    WAITING = 1
    DIFFERED = 2
    ARRIVED = 3


class Suspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Blocks of a leg and group that differed from their sums on every read."""

    leg: int
    group: GroupName
    blocks: tuple[BlockIndex, ...]


class Ballot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rank's vote on one order.

    With DIFFERED, `suspects` are all blocks that differed; the others have arrived. With the FAILED
    of a patient order, they are the blocks that differed among those that arrived.
    """

    order: int
    vote: Vote
    why: str
    suspects: tuple[Suspect, ...]
    # with ARRIVED, if the order has `tell`: uint64 [blocks of the run, units] as bytes
    sums: dict[GroupName, bytes] = {}


# ---- step plan ----------------------------------------------------------------------------------


class ConnectOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Connect over this fabric to the ranks of a worker whose state is read here."""

    manifest: Manifest
    fabric: str


class Hold(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Append pages to a room's lists. Before that, the first `passed` pages of the lists leave the
    room, because a window has passed them.

    A list that begins with this order and has passed n pages begins n pages into the sequence.
    """

    key: Key
    pages: dict[GroupName, tuple[Page, ...]]
    passed: dict[GroupName, int] = {}
    # how many pages at the front of a list are cached: another room has computed them, and they are
    # never written again
    shared: dict[GroupName, int] = {}


class Constrain(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The tokens of this room are drawn by a grammar, until the room is dropped. A rank votes when
    it can do so: then no step waits for the grammar to be built."""

    order: int
    key: Key
    grammar: Grammar


class Fetch(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Read these blocks of the room from that worker into the pages that the room holds, and verify
    them.

    `follows` names an earlier order for the same blocks, of which all but `only` have arrived; only
    those are read. With `patient` nothing is read twice, and a rank votes only when nothing of the
    order touches the room's pages any more, because they are used for something else if it fails.
    """

    order: int
    follows: int | None
    only: tuple[Suspect, ...]
    key: Key
    source: Boot
    length: int  # positions that the room's state covers
    runs: dict[GroupName, BlockRun]  # with the pages of the source
    sums: tuple[LegSums, ...]
    deadline_ms: int
    tell: bool = False  # the vote is to carry the sums of the blocks, by unit
    patient: bool = False


class RowOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One room's part of the batch; see Row in core/work.py."""

    key: Key
    start: int
    tokens: tuple[TokenId, ...]
    final: dict[GroupName, tuple[BlockIndex, BlockIndex]]
    valid: int
    sampling: Sampling | None  # draw a token after the last one; None = draw none
    index: TokenIndex
    past: Past | None = None  # what the draw needs besides the logits
    score: Score | None = None  # compute the logprobs of the prompt's tokens
    said: int = 0  # how many of its tokens, the last ones, were generated
    # so many of its tokens, the last ones, are drafts: what a draw after each of them needs, if
    # those before it were drawn
    ahead: tuple[Past | None, ...] = ()
    cold: bool = False  # whether its room has not computed the positions before it itself
    drafts: int = 0  # of the tokens after the last one drawn, which the draft layer is to make


class Rehash(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hash these blocks of the room again and report the sums."""

    order: int
    key: Key
    length: int
    group: GroupName
    blocks: tuple[BlockIndex, ...]


class Inspect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hash these pages of the prefix cache where they lie, and report the sums of their blocks.

    The pages belong to no room, and may be given to one while they are hashed. So the sums count
    only for pages that are cached from the order until the last rank's answer.
    """

    order: int
    numbers: tuple[int, ...]  # of each page in its sequence, from 0
    pages: dict[GroupName, tuple[Page, ...]]


class Offload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy the room's whole state into the host store, with the sum of every block. The room keeps
    its pages until `vacate`."""

    order: int
    key: Key
    length: int  # positions that the state covers


class Restore(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy the room's state from the host store into the pages that it holds now, verify it, and
    forget the copy."""

    order: int
    key: Key
    length: int


class Keep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy what cached pages lack of this room's state into the host store, under a name of its own
    (memory/checkpoints.py). The copy outlives the room, and the room keeps its pages until then."""

    order: int
    name: CheckpointName
    key: Key
    length: int  # positions that the state covers
    seal: bool = False  # whether ranks report the sums of its blocks, which the leader lacks


class Resume(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copy what was kept under this name into the pages that the room holds now, and report the
    sums of its blocks. The copy stays."""

    order: int
    name: CheckpointName
    key: Key
    length: int


class StepPlan(msgspec.Struct, frozen=True, tag="step_plan", forbid_unknown_fields=True):
    """The leader's decisions. Every rank applies plans in the order of `seq`, and the fields of a
    plan in the order in which they stand here."""

    seq: Seq
    connect: tuple[ConnectOrder, ...] = ()
    disconnect: tuple[Boot, ...] = ()  # disconnect from these workers
    forget: tuple[CheckpointName, ...] = ()  # nobody resumes from these any more
    # before `drop`: what a room leaves is still copied when the room ends in the same plan
    keep: tuple[Keep, ...] = ()
    # end these rooms: cancel reads, and report `quiet` when nothing touches their pages
    drop: tuple[Key, ...] = ()
    # these rooms give up their pages: their state is in the host store, or could not be resumed
    vacate: tuple[Key, ...] = ()
    clear: tuple[GroupName, ...] = ()  # zero the pools of these groups; no room holds a page
    hold: tuple[Hold, ...] = ()
    constrain: tuple[Constrain, ...] = ()
    fetch: tuple[Fetch, ...] = ()
    offload: tuple[Offload, ...] = ()
    restore: tuple[Restore, ...] = ()
    resume: tuple[Resume, ...] = ()
    rehash: tuple[Rehash, ...] = ()
    inspect: tuple[Inspect, ...] = ()
    commit: tuple[Key, ...] = ()
    batch: tuple[RowOrder, ...] = ()


# ---- report -------------------------------------------------------------------------------------


class RowResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of one row. `sums` has the newly final blocks of each group: uint64 [blocks,
    units] in native order, as bytes."""

    key: Key
    drawn: Drawn | None  # only from the rank that samples
    sums: dict[GroupName, bytes]
    failed: RowFailure | None = None
    scores: PromptScores | None = None  # if the order wants them; only from the rank that samples
    more: tuple[Drawn, ...] = ()  # the tokens after `drawn`, where drafts were what was drawn
    drafts: tuple[TokenId, ...] = ()  # of the tokens after these; only from the rank that samples


class StepResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of the batch of one plan, with its rows in order."""

    seq: Seq
    rows: tuple[RowResult, ...]


class ConnectResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a ConnectOrder. `why` is empty when the rank is connected."""

    peer: Boot
    why: str


class Rehashed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The outcome of a Rehash or an Inspect: uint64 [blocks, units] as bytes, for each group of
    which the rank holds a part."""

    order: int
    sums: dict[GroupName, bytes]


class Wedged(msgspec.Struct, frozen=True, tag="wedged", forbid_unknown_fields=True):
    """Work of a rank that does not end. A step may be waiting for another rank; hashes and copies
    wait for no other."""

    seq: Seq | None  # the step; None for any other work
    why: str


class Report(msgspec.Struct, frozen=True, tag="report", forbid_unknown_fields=True):
    """What one rank has seen that its leader has not been told yet."""

    rank: Rank
    boot: Boot
    applied: Seq
    chain: bytes
    ballots: tuple[Ballot, ...]
    quiet: tuple[Key, ...]
    steps: tuple[StepResult, ...]  # batches that have ended, in order of their plans
    connected: tuple[ConnectResult, ...]
    rehashed: tuple[Rehashed, ...]
    reads: int  # reads under way, for the ledger view
    # rooms with state in its host store or a copy under way, for the ledger view; what is kept of
    # prompts is nobody's, and does not count
    copies: int = 0
    counted: RankTally = RankTally()
    wedged: tuple[Wedged, ...] = ()  # each is reported once


def unpack_sums(raw: bytes, units: int) -> NDArray[np.uint64]:
    """Return the array in a report's bytes: uint64 [blocks, units]."""
    return (
        np.frombuffer(raw, dtype="<u8").reshape(-1, units)
        if units
        else np.zeros((0, 0), dtype=np.uint64)
    )


# ---- chain and fold -----------------------------------------------------------------------------

FIRST_CHAIN = b"\0" * 16


class Chain:
    """The hash over all plans so far: H(chain, plan), where H is BLAKE2b with 16 bytes."""

    def __init__(self) -> None:
        self.seq = Seq(0)
        self.value = FIRST_CHAIN
        self._encoder = msgspec.msgpack.Encoder()

    def extend(self, plan: StepPlan) -> bytes:
        """Add the next plan, and return the new value.

        Raises:
            Bug: it is not the next plan
        """
        if plan.seq != self.seq + 1:
            raise Bug(f"plan {plan.seq} came after plan {self.seq}")
        self.seq = plan.seq
        self.value = blake2b(self.value + self._encoder.encode(plan), digest_size=16).digest()
        return self.value


def fold(votes: Iterable[Vote]) -> Vote:
    """Return the minimum over ranks: a room goes on only when every rank has what it needs."""
    return min(votes, default=Vote.WAITING)


class Agreement:
    """The leader's view of its ranks: their chains, their votes, and the plans applied."""

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
        """Return the number of orders whose votes are still counted, and of dropped rooms that are
        not quiet on some rank."""
        return len(self._votes) + len(self._dropped_at)

    def issue(self, plan: StepPlan) -> None:
        """Note a plan that goes out now."""
        self._chains[plan.seq] = self.chain.extend(plan)
        orders: list[Constrain | Fetch | Offload | Restore | Keep | Resume]
        orders = [*plan.keep, *plan.constrain, *plan.fetch]
        orders += [*plan.offload, *plan.restore, *plan.resume]
        self._votes |= {order.order: {} for order in orders}
        for key in plan.drop:
            self._dropped_at[key] = plan.seq
            self._quiet[key] = set()

    def take(self, report: Report) -> None:
        """Add a rank's report.

        Raises:
            Bug: the rank has diverged, changed its vote, or reports on a plan that it was not given
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
        """Return the fold over all ranks, and the ballots of those that have voted."""
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

    def drops(self, key: Key) -> bool:
        """Whether a plan has dropped this room, and some rank may still touch its pages."""
        return key in self._dropped_at

    def newly_quiet(self) -> list[Key]:
        """Return the dropped rooms whose pages no rank touches any more; each is returned once."""
        if not self._quiet:
            return []
        keys = [key for key, ranks in self._quiet.items() if len(ranks) == self.ranks]
        for key in keys:
            del self._quiet[key], self._dropped_at[key]
        return keys


class PlanDraft:
    """The decisions of one turn of a leader, which are issued as one plan."""

    def __init__(self) -> None:
        self.connect: list[ConnectOrder] = []
        self.disconnect: list[Boot] = []
        self.forget: list[CheckpointName] = []
        self.keep: list[Keep] = []
        self.drop: list[Key] = []
        self.vacate: list[Key] = []
        self.clear: list[GroupName] = []
        self.hold: list[Hold] = []
        self.constrain: list[Constrain] = []
        self.fetch: list[Fetch] = []
        self.offload: list[Offload] = []
        self.restore: list[Restore] = []
        self.resume: list[Resume] = []
        self.rehash: list[Rehash] = []
        self.inspect: list[Inspect] = []
        self.commit: list[Key] = []
        self.batch: list[RowOrder] = []

    def __bool__(self) -> bool:
        return any(vars(self).values())

    def finish(self, seq: Seq) -> StepPlan:
        """Return the plan of everything added so far."""
        return StepPlan(seq=seq, **{field: tuple(items) for field, items in vars(self).items()})
