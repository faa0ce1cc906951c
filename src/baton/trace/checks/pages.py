"""A page has one owner, unless it is shared.

- The pages of a dropped room are reused only after every rank has said `quiet`.
- The pages of a preempted room are reused only after every rank has its state in the host store.
- The pages of a room that does not resume from a checkpoint, its own worker's or decode's, are
  reused only after every rank has said that it copies or reads nothing into them any more.
- Rooms that share a page have the same tokens at the same positions there.
"""

from collections import Counter
from collections.abc import Iterator

from typing_extensions import override

from baton.core.agreement import Hold, Report, StepPlan, Vote
from baton.core.events import MessageReceived, RankReported
from baton.core.ids import GroupName, Key, Page, Rank, Seq
from baton.core.memory.state import Unit, Window
from baton.core.messages import Ended, Ticket
from baton.core.parts import LeaderParts
from baton.trace.checks.check import Check, brief, plans, sent
from baton.trace.log import CoreKind, Parts, Step

Place = tuple[GroupName, Page]


class PageBooks(Check):
    """Tracks the owners of pages, from plans and reports only."""

    name = "page_books"
    cores = (CoreKind.LEADER,)
    invariant = (
        "a page has one owner, or rooms that share its tokens, and is given anew only after "
        "every rank said quiet, or has its"
        " state in the host store"
    )

    def __init__(self) -> None:
        self._ranks: frozenset[Rank] = frozenset()
        self._totals: dict[GroupName, int] = {}
        # tokens in a page, for groups with pages; a slot holds a whole sequence
        self._page_tokens: dict[GroupName, int] = {}
        self._holders: dict[Place, set[Key]] = {}
        # room that a page was first given to, and its number there
        self._made: dict[Place, tuple[Key, int]] = {}
        self._tickets: dict[Key, Ticket] = {}
        self._held: dict[Key, list[Place]] = {}
        # pages given to each room, also passed ones
        self._counts: dict[Key, Counter[GroupName]] = {}
        self._passed: dict[Key, Counter[GroupName]] = {}
        self._windows: dict[GroupName, int] = {}
        self._dropped: dict[Key, Seq] = {}
        self._quiet: dict[Key, set[Rank]] = {}
        self._offloads: dict[int, Key] = {}
        self._stored: dict[Key, set[Rank]] = {}
        self._used: set[Key] = set()  # rooms with whose pages something was ordered
        # rooms that resume from checkpoints, or fetch back, and the ranks that have voted on that
        self._resumes: dict[int, Key] = {}
        self._voted: dict[Key, set[Rank]] = {}

    @override
    def made(self, parts: Parts) -> None:
        if isinstance(parts, LeaderParts):
            self._ranks = frozenset(Rank(r.rank) for r in parts.manifest.ranks)
            self._totals = parts.totals
            tokens = parts.manifest.page_blocks * parts.manifest.table.block_tokens
            groups = parts.manifest.table.groups
            self._page_tokens = {g.name: tokens for g in groups if g.unit is Unit.PAGE}
            self._windows = {
                g.name: g.extent.tokens for g in groups if isinstance(g.extent, Window)
            }

    @override
    def see(self, step: Step) -> Iterator[str]:
        match step.event:
            case RankReported(report=report):
                yield from self._hear(report)
            case MessageReceived(message=Ticket() as ticket):
                self._tickets[ticket.key] = ticket
            case _:
                pass
        for _, ended in sent(step, Ended):
            if ended.key in self._held or ended.key in self._dropped:
                yield (
                    f"the end of {brief(ended.key)} was told while its pages were not quiet "
                    "on every rank"
                )
        for plan in plans(step):
            yield from self._plan(plan)

    def _hear(self, report: Report) -> Iterator[str]:
        for ballot in report.ballots:
            if ballot.order in self._offloads and ballot.vote is Vote.ARRIVED:
                self._stored[self._offloads[ballot.order]].add(report.rank)
            if ballot.order in self._resumes:
                self._voted[self._resumes[ballot.order]].add(report.rank)
        for key in report.quiet:
            at = self._dropped.get(key)
            if at is None or report.applied < at:
                yield (
                    f"rank {report.rank} said quiet of {brief(key)} without having been "
                    "told to drop it"
                )
                continue
            self._quiet[key].add(report.rank)
            if self._quiet[key] == self._ranks:
                del self._dropped[key], self._quiet[key]
                self._stored.pop(key, None)
                self._offloads = {order: of for order, of in self._offloads.items() if of != key}
                self._end_resume(key)
                self._free(key)

    def _end_resume(self, key: Key) -> set[Rank]:
        """A room resumes no more. Returns the ranks that have voted."""
        self._resumes = {order: of for order, of in self._resumes.items() if of != key}
        return self._voted.pop(key, set())

    def _free(self, key: Key) -> None:
        """A room gives up its pages."""
        self._counts.pop(key, None)
        self._passed.pop(key, None)
        self._used.discard(key)
        for place in self._held.pop(key, []):
            self._holders[place].discard(key)

    def _plan(self, plan: StepPlan) -> Iterator[str]:
        gone = set(self._dropped)
        for key in plan.drop:
            if key in gone:
                yield f"plan {plan.seq} drops {brief(key)} a second time"
            self._dropped.setdefault(key, plan.seq)
            self._quiet.setdefault(key, set())
        for key in plan.vacate:
            if key in self._voted:
                if self._end_resume(key) != self._ranks:
                    yield (
                        f"plan {plan.seq} takes the pages of {brief(key)}, and some rank may "
                        "still copy a checkpoint into them, or read one"
                    )
            elif key in self._used and self._stored.pop(key, set()) != self._ranks:
                yield (
                    f"plan {plan.seq} takes the pages of {brief(key)}, whose state is not "
                    "in every rank's host store"
                )
            self._free(key)
        for offload in plan.offload:
            self._offloads[offload.order], self._stored[offload.key] = offload.key, set()
        patient = [fetch for fetch in plan.fetch if fetch.patient]
        brings: list[tuple[int, Key]] = [(o.order, o.key) for o in plan.resume]
        brings += [(o.order, o.key) for o in patient]
        for order, key in brings:
            self._resumes[order], self._voted[key] = key, set()
        self._used.update(key for _, key in brings)
        self._used.update(o.key for o in plan.fetch)
        self._used.update(o.key for o in plan.offload)
        self._used.update(o.key for o in plan.batch)
        for hold in plan.hold:
            if hold.key in gone:
                yield f"plan {plan.seq} gives pages to {brief(hold.key)}, which was dropped"
            yield from self._hold(plan.seq, hold)
        for fetch in plan.fetch:
            if fetch.key in gone or fetch.key not in self._held:
                yield (
                    f"plan {plan.seq} fetches into {brief(fetch.key)}, which holds nothing any more"
                )
        for row in plan.batch:
            past = row.start + len(row.tokens)
            if row.key in self._dropped:
                yield f"plan {plan.seq} computes {brief(row.key)}, which was dropped"
            elif any(
                self._counts.get(row.key, Counter())[g] * n < past
                for g, n in self._page_tokens.items()
            ):
                yield (
                    f"plan {plan.seq} computes {brief(row.key)} up to position {past}, "
                    "beyond the pages it holds"
                )
            elif any(
                max(0, row.start - window + 1)
                < self._passed.get(row.key, Counter())[g] * self._page_tokens[g]
                for g, window in self._windows.items()
            ):
                yield (
                    f"plan {plan.seq} computes {brief(row.key)} from position {row.start} "
                    "on, whose window it has given up"
                )

    def _hold(self, seq: Seq, hold: Hold) -> Iterator[str]:
        held, counts = (
            self._held.setdefault(hold.key, []),
            self._counts.setdefault(hold.key, Counter()),
        )
        passed = self._passed.setdefault(hold.key, Counter())
        for group, n in hold.passed.items():
            front = [place for place in held if place[0] == group][:n]
            for place in front:
                held.remove(place)
                self._holders[place].discard(hold.key)
            passed[group] += n
            counts[group] += n - len(front)
        for group, pages in hold.pages.items():
            for n, page in enumerate(pages):
                place = (group, page)
                what = f"plan {seq} gives {brief(hold.key)} page {page} of group {group}"
                if not 0 <= page < self._totals.get(group, 0):
                    yield f"{what}, which does not exist"
                elif n < hold.shared.get(group, 0):
                    yield from self._share(what, place, hold.key, n)
                else:
                    yield from self._own(what, place)
                    self._holders[place], self._made[place] = set(), (hold.key, counts[group])
                self._holders.setdefault(place, set()).add(hold.key)
                held.append(place)
                counts[group] += 1

    def _own(self, what: str, place: Place) -> Iterator[str]:
        """A page is given to a room as its own."""
        for owner in sorted(self._holders.get(place, ()))[:1]:
            how = "not quiet on every rank" if owner in self._dropped else "open"
            yield f"{what}; {brief(owner)} has it, and is {how}"

    def _share(self, what: str, place: Place, key: Key, n: int) -> Iterator[str]:
        """A page of another room is given to this one as well, as number `n` of its list."""
        if place not in self._made:
            yield f"{what} as computed before, and it was given to nobody"
            return
        author, at = self._made[place]
        theirs, ours = self._tickets.get(author), self._tickets.get(key)
        if theirs is None or ours is None:
            return  # the ticket is not in the log
        past = (n + 1) * self._page_tokens[place[0]]
        then, now = ((*ticket.prompt, *ticket.said)[:past] for ticket in (theirs, ours))
        # may have generated tokens at its end
        if at != n or theirs.cache_salt != ours.cache_salt or now[: len(then)] != then:
            yield (
                f"{what} as number {n}; it was number {at} of {brief(author)}, and their "
                "beginnings or salts are not the same"
            )
