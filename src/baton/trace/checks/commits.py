"""A room is committed only when its record has come and every block has arrived on every rank."""

from collections.abc import Iterable, Iterator

from typing_extensions import override

from baton.core.agreement import Ballot, Fetch, Hold, Report, Suspect, Vote
from baton.core.events import GuestComputes, MessageReceived, RankReported
from baton.core.ids import Boot, GroupName, Key, Rank, Seq
from baton.core.memory.state import Full, StateTable, Window
from baton.core.messages import Offer, Received, Ticket
from baton.core.parts import LeaderParts
from baton.trace.checks.check import Check, brief, plans, sent
from baton.trace.log import CoreKind, Parts, Step

Blocks = set[tuple[GroupName, int]]


def needed(table: StateTable, length: int) -> Blocks:
    """Return the blocks that the handoff of a sequence of `length` positions must transfer.

    The core computes the same. This is a second implementation, so that the check does not share
    the core's bugs.
    """
    found: Blocks = set()
    size = table.block_tokens
    for group in table.groups:
        match group.extent:
            case Full():
                first, past = 0, length
            case Window(tokens=tokens):
                first, past = max(0, length - tokens + 1), length
            case _:
                first, past = 0, 1
        found |= {(group.name, b) for b in range(first // size, -(-past // size))}
    return found


def each(suspects: Iterable[Suspect]) -> set[tuple[int, GroupName, int]]:
    """Return (leg, group, block) for every block of the suspects."""
    return {(s.leg, s.group, int(b)) for s in suspects for b in s.blocks}


# More than any sequence has: a file may be damaged, or made up.
MOST_BLOCKS = 1 << 18


class _Room:
    """The state of a room that decode has not committed."""

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.recorded = False
        self.ordered: Blocks = set()
        self.arrived: Blocks = set()


class CommitAfterArrival(Check):
    """The check, for the log of a decode worker. Other workers commit nothing."""

    name = "commit_after_arrival"
    cores = (CoreKind.LEADER,)
    invariant = (
        "a room is committed only after all its blocks arrived on every rank, and its record"
    )

    def __init__(self) -> None:
        self._parts: LeaderParts | None = None
        self._ranks: frozenset[Rank] = frozenset()
        self._rooms: dict[Key, _Room] = {}
        self._early: set[Key] = set()  # rooms whose record came before their ticket
        self._own: set[Key] = set()  # rooms whose prompt is computed here
        self._orders: dict[int, tuple[Key, Blocks]] = {}
        self._votes: dict[int, dict[Rank, Vote]] = {}
        # by fetch order: (leg, group, block)
        self._differed: dict[int, set[tuple[int, GroupName, int]]] = {}
        self._applied: dict[Rank, Seq] = {}
        self._committed: dict[Key, Seq] = {}

    @override
    def made(self, parts: Parts) -> None:
        if isinstance(parts, LeaderParts) and parts.manifest.role == "decode":
            self._parts, self._ranks = parts, frozenset(Rank(r.rank) for r in parts.manifest.ranks)
            self._applied = dict.fromkeys(self._ranks, Seq(0))

    @override
    def see(self, step: Step) -> Iterator[str]:
        if self._parts is None:
            return
        match step.event:
            case MessageReceived(sender=sender, message=Ticket() as ticket):
                self._open(ticket)
            case MessageReceived(sender=sender, message=Offer(record=record) as offer) if (
                record is not None
            ):
                self._record(sender, offer)
            case RankReported(report=report):
                yield from self._hear(report)
            case _:
                pass
        yield from self._commits(step, self._parts.manifest.table)

    def _open(self, ticket: Ticket) -> None:
        if ticket.prefill == ticket.decode:
            self._own.add(ticket.key)
            return
        room = self._rooms.setdefault(ticket.key, _Room(ticket))
        room.recorded |= ticket.key in self._early

    def _record(self, sender: Boot, offer: Offer) -> None:
        room = self._rooms.get(offer.key)
        if room is None:
            self._early.add(offer.key)
        elif room.ticket.prefill == sender:
            room.recorded = True

    def _hear(self, report: Report) -> Iterator[str]:
        self._applied[report.rank] = report.applied
        for ballot in report.ballots:
            yield from self._vote(report.rank, ballot)

    def _vote(self, rank: Rank, ballot: Ballot) -> Iterator[str]:
        votes = self._votes.setdefault(ballot.order, {})
        if votes.get(rank, ballot.vote) is not ballot.vote:
            yield (
                f"rank {rank} voted {ballot.vote.name} on order {ballot.order} after "
                f"{votes[rank].name}"
            )
        votes[rank] = ballot.vote
        self._differed.setdefault(ballot.order, set()).update(each(ballot.suspects))
        if ballot.order in self._orders and all(votes.get(r) is Vote.ARRIVED for r in self._ranks):
            key, blocks = self._orders[ballot.order]
            if key in self._rooms:
                self._rooms[key].arrived |= blocks

    def _commits(self, step: Step, table: StateTable) -> Iterator[str]:
        # The plan of this very step may drop the room, so this is looked at first.
        for _, received in sent(step, Received):
            if step.event == GuestComputes(received.key):
                continue  # the engine computes the prompt itself: nothing is taken from prefill
            at = self._committed.get(received.key)
            if at is None or any(self._applied[r] < at for r in self._ranks):
                yield (
                    f"{brief(received.key)} was received before its commit was applied on "
                    "every rank"
                )
        for plan in plans(step):
            for hold in plan.hold:
                self._begins(hold)
            for fetch in plan.fetch:
                yield from self._follows(fetch)
                blocks = {
                    (g, int(b))
                    for g, run in fetch.runs.items()
                    for b in range(run.start, min(run.end, run.start + MOST_BLOCKS))
                }
                self._orders[fetch.order] = fetch.key, blocks
                if fetch.key in self._rooms:
                    self._rooms[fetch.key].ordered |= blocks
            for key in plan.commit:
                yield from self._judge(key, table)
                self._committed[key] = plan.seq
            for row in plan.batch:
                if row.key not in self._committed and row.key not in self._own:
                    yield f"plan {plan.seq} computes {brief(row.key)}, which was not committed"
            for key in plan.drop:
                self._forget(key)

    def _begins(self, hold: Hold) -> None:
        """Count the blocks in cached pages as arrived:
        they arrived for another room, or were computed."""
        assert self._parts is not None
        if hold.key in self._rooms:
            k = {group: self._parts.manifest.blocks_per_page(group) for group in hold.pages}
            self._rooms[hold.key].arrived |= {
                (group, b)
                for group in hold.pages
                for b in range(min(hold.shared.get(group, 0) * k[group], MOST_BLOCKS))
            }

    def _follows(self, fetch: Fetch) -> Iterator[str]:
        """Check that blocks left out of an order have arrived by the order that it follows."""
        if fetch.follows is None:
            return
        votes = self._votes.get(fetch.follows, {})
        if any(votes.get(r) not in (Vote.ARRIVED, Vote.DIFFERED) for r in self._ranks):
            yield f"order {fetch.order} follows {fetch.follows}, on which not every rank has voted"
        if each(fetch.only) != self._differed.get(fetch.follows, set()):
            yield (
                f"order {fetch.order} fetches other blocks once more than those that "
                f"differed in {fetch.follows}"
            )

    def _judge(self, key: Key, table: StateTable) -> Iterator[str]:
        room = self._rooms.get(key)
        if room is None:
            yield f"{brief(key)} was committed without a ticket"
            return
        if not room.recorded:
            yield f"{brief(key)} was committed without its record"
        due = needed(table, len(room.ticket.prompt) + len(room.ticket.said))
        missing = sorted((due | room.ordered) - room.arrived)
        if missing:
            yield (
                f"{brief(key)} was committed before {len(missing)} of its blocks had "
                f"arrived on every rank: {missing[:4]}"
            )

    def _forget(self, key: Key) -> None:
        self._rooms.pop(key, None)
        self._early.discard(key)
        self._own.discard(key)
        self._committed.pop(key, None)
        for order in [n for n, (k, _) in self._orders.items() if k == key]:
            del self._orders[order]
            self._votes.pop(order, None)
            self._differed.pop(order, None)
