"""What the prefix cache of a decode worker must hold, kept from what its leader says and orders,
without the code under test.

    Received of a room    its prompt is committed: complete pages of it are cached
    its step has ended    on every rank, a chunk of its prompt or a generated token: pages that it completes are cached;
                          of one step first those of generated tokens
    Tokens of a room      all but the last are computed
    Hold                  a page that is given as the room's own is cached no more

A page enters behind those of its room that have entered, and only if no other page holds the same
tokens with the same salt; so it is known exactly what is cached. Only where a prompt is computed
that may go on from checkpoints alone, its pages may enter beside others with the same tokens, as
*twins*, which no room finds by its tokens. Such a room begins with the pages above which its
checkpoint was computed, and with none without one. Checked: the leader takes the same
pages for cached; a room begins with the longest beginning that is cached, and with nothing else;
cached blocks are not fetched, and all others are; a page that enters holds on every rank what its
tokens imply, and is never written.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from baton.core.agreement import Fetch, Hold, RowOrder, StepPlan, StepResult
from baton.core.effects import Effect, GiveUp, Issue, Send
from baton.core.frames import Said
from baton.core.ids import (
    BlockIndex,
    CheckpointName,
    GroupName,
    Key,
    Rank,
    Seq,
    TokenId,
    is_loan,
    loan_key,
)
from baton.core.memory.state import Full, StateTable, Unit, extent_blocks
from baton.core.messages import Admitted, BlockRun, FirstToken, Loan, Received, Ticket, Tokens
from baton.dev.sim import content
from baton.dev.sim.at_rest import AtRest, Kept, Where
from baton.dev.sim.collective import Collective
from baton.dev.sim.loans import Lent

Digest = tuple[str, int]  # the salt, and a digest of all tokens up to a page's end


class Held(msgspec.Struct):
    """A room that holds pages."""

    tokens: list[TokenId]
    length: int  # the length of the ticket's context
    pages: dict[GroupName, list[int]]
    shared: int  # how many of them, at the front, are cached
    reused: int  # how many of them were cached when the room was admitted
    chain: list[Kept]  # the shared ones
    enters: bool = True
    # positions that steps have computed here, and whose whole blocks are sealed
    sealed: int = 0
    fetched: dict[GroupName, set[BlockIndex]] = {}


class _Step(msgspec.Struct):
    rows: dict[Key, RowOrder]  # in the order in which their pages enter
    waits: int  # for so many ranks


class CacheBook:
    """The book of one decode worker, of the groups whose pages last."""

    def __init__(
        self,
        name: str,
        table: StateTable,
        page_blocks: int,
        collective: Collective,
        tickets: Mapping[Key, Ticket],
        violate: Callable[[str, str], None],
        *,
        on: bool,
        verify_ms: int,
    ) -> None:
        self._name, self._table, self._collective, self._tickets, self._violate = (
            name,
            table,
            collective,
            tickets,
            violate,
        )
        self.on = on
        self._lasting = [
            g.name for g in table.groups if g.unit is Unit.PAGE and isinstance(g.extent, Full)
        ]
        self._page_tokens, self._k = page_blocks * table.block_tokens, page_blocks
        self._kept: dict[Digest, Kept] = {}
        self._at: dict[Where, Digest] = {}
        self._rooms: dict[Key, Held] = {}
        # pages that checkpoints are brought into to be lent, by loan key
        self._lodged: dict[Key, Mapping[GroupName, list[int]]] = {}
        # the pages above which checkpoints were computed; and of those that are brought back for
        # rooms that have not computed since, and for loans
        self._beneath: dict[CheckpointName, tuple[Kept, ...]] = {}
        self._goes_on: dict[Key, tuple[Kept, ...]] = {}
        self._claimed: Collection[Where] = ()  # what the leader takes for cached after this turn
        self._judged: dict[Key, Held] = {}  # rooms whose commit was ordered
        # steps under way: what each computes, and on how many ranks it has not ended
        self._steps: dict[Seq, _Step] = {}
        self.hits = 0  # pages with which rooms have begun
        self.at_rest = AtRest(name, verify_ms * 1000, collective, violate)

    # ---- what the leader does -------------------------------------------------------------------

    def acts(self, effects: Sequence[Effect], claimed: set[Where]) -> None:
        """Judge a leader's effects, in order: the messages about its rooms, and the plans that it
        issues.

        claimed: the pages that it takes for cached
        """
        if not self.on:
            if claimed:
                self._violate(
                    "cache_exact", f"{self._name} caches {sorted(claimed)}, and may cache nothing"
                )
            return
        self._claimed = claimed
        left = self._condemned(claimed)
        anew = self._begin_anew(effects)
        self._computed()
        done = 0  # holds of the plan that comes next
        for at, effect in enumerate(effects):
            if isinstance(effect, Issue):
                self._give(effect.plan.hold[done:], effect.plan)
                done = 0
                self._plan(effect.plan, anew)
            elif isinstance(effect, Send):
                self._collective.world.loans.said(self._collective.boot, effect.message)
                done = self._says(effect.message, effects[at:], done)
        if self._at.keys() != claimed:
            wrong = sorted(self._at.keys() ^ claimed)
            self._violate(
                "cache_exact",
                f"{self._name} has cached {sorted(claimed)}; it is wrong about {wrong}",
            )
        # one that gives up ends with all its rooms, and issues no plan any more
        ends = any(isinstance(effect, GiveUp) for effect in effects)
        if (left or self.at_rest.due) and not ends:
            rooms = {_short(key): room.chain for key, room in self._rooms.items()}
            self.at_rest.turned(self._kept.values(), left, rooms)

    def _condemned(self, claimed: set[Where]) -> list[Kept]:
        """Return the pages that the leader has taken out of its cache as damaged, and those above
        them."""
        if claimed >= self._at.keys():
            return []
        gone = [
            (digest, kept)
            for digest, kept in self._kept.items()
            if not claimed >= {*kept.pages.items()}
        ]
        found = [(digest, kept) for digest, kept in gone if self.at_rest.may_leave(kept)]
        for digest, kept in found:
            del self._kept[digest]
            for where in kept.pages.items():
                del self._at[where]
        return [kept for _, kept in found]

    def answered(self, rank: Rank, orders: Iterable[int]) -> None:
        """A rank has sent its leader the sums of pages that it was ordered to hash."""
        self.at_rest.answered(rank, orders, self._kept.values())

    def stepped(self, steps: Iterable[StepResult]) -> None:
        """A rank tells its leader of steps that have ended."""
        for result in steps if self.on else ():
            if (step := self._steps.get(result.seq)) is not None:
                step.waits -= 1
                for row in result.rows:
                    if row.failed is not None:
                        step.rows.pop(row.key, None)

    def _is_chunk(self, row: RowOrder) -> bool:
        """Whether a row is a chunk of a prompt, and not a generated token."""
        ticket = self._tickets[row.key]
        return row.start < len(ticket.prompt) + len(ticket.said)

    def _computed(self) -> None:
        """Enter what has been computed on every rank."""
        for seq in [seq for seq, step in self._steps.items() if not step.waits]:
            for key, row in self._steps.pop(seq).rows.items():
                if (room := self._rooms.get(key)) is not None:
                    # drafts are no tokens of it yet
                    known = row.tokens[: row.valid - row.start]
                    room.tokens[row.start : row.start + len(known)] = known
                    room.sealed = row.valid
                    self._enter(key, row.valid)

    def cached(self) -> Iterable[Where]:
        """Return the pages that are cached."""
        return self._at.keys()

    def _says(self, message: Said, rest: Sequence[Effect], done: int) -> int:
        """Take a message. Pages are given in the order in which rooms are admitted, so a room gets
        its pages before the messages after its Admitted count. Returns how many holds of the next
        plan are done."""
        match message:
            case Admitted(key=key) if key not in self._rooms:
                plan = next(e.plan for e in rest if isinstance(e, Issue))
                past = next(i for i, hold in enumerate(plan.hold) if hold.key == key) + 1
                self._give(plan.hold[done:past], plan)
                return past
            case Loan(key=key, runs=runs, length=length) if runs and length:
                self._lend_checkpoint(key, runs, length)
            case Loan(key=key, runs=runs) if runs:
                self._lend(key, runs)
            case Received(key=key):
                self._enter(key, self._rooms[key].length)
            case FirstToken(key=key, drawn=drawn) if key in self._rooms:
                self._rooms[key].tokens.append(drawn.token)
            case Tokens(key=key, start=start, drawn=drawn) if key in self._rooms:
                room, ticket = self._rooms[key], self._tickets[key]
                del room.tokens[len(ticket.prompt) + start :]
                room.tokens += [d.token for d in drawn]
                self._enter(key, room.sealed or len(room.tokens) - 1)
            case _:
                pass
        return done

    def _begin_anew(self, effects: Sequence[Effect]) -> set[Key]:
        """Forget the rooms whose checkpoint has not come back. They may get other pages in the same
        plan in which they give up theirs. Returns their keys."""
        plans = [effect.plan for effect in effects if isinstance(effect, Issue)]
        anew = {key for plan in plans for key in plan.vacate if key in self._goes_on}
        for key in anew:
            self._rooms.pop(key, None)
            del self._goes_on[key]
        return anew

    def _plan(self, plan: StepPlan, anew: Collection[Key]) -> None:
        for keep in plan.keep:
            if (room := self._rooms.get(keep.key)) is not None:
                pages = keep.length // self._page_tokens
                self._beneath[keep.name] = tuple(room.chain[:pages])
        for name in plan.forget:
            self._beneath.pop(name, None)
        for resume in plan.resume:
            self._goes_on[resume.key] = self._beneath.get(resume.name, ())
        for key in [key for key in plan.vacate if key not in anew]:
            if (room := self._rooms.get(key)) is not None:
                room.pages, room.shared, room.enters, room.chain = {}, 0, False, []
        for fetch in plan.fetch:
            self._fetch(fetch)
        self.at_rest.ordered(
            plan,
            {where: self._kept[digest] for where, digest in self._at.items()}
            if plan.inspect
            else {},
        )
        for key in plan.commit:
            self._judged[key] = self._rooms[key]
        for row in plan.batch:
            self._goes_on.pop(row.key, None)
        if plan.batch:
            rows = sorted(plan.batch, key=self._is_chunk)
            self._steps[plan.seq] = _Step({row.key: row for row in rows}, self._collective.ranks)
        if plan.clear:
            self._kept.clear()
            self._at.clear()
        for key in plan.drop:
            self._rooms.pop(key, None)
            self._lodged.pop(key, None)
            self._goes_on.pop(key, None)

    def pinned(self, pins: int) -> None:
        """The leader's turn is over, and its cache has `pins` pins, some of them perhaps for rooms
        that were dropped."""
        rooms = sum(room.shared for room in self._rooms.values())
        self._collective.world.loans.pinned(self._collective.boot, pins, rooms)

    # ---- pages ----------------------------------------------------------------------------------

    def _give(self, holds: Iterable[Hold], plan: StepPlan) -> None:
        for hold in holds:
            if is_loan(hold.key):
                self._lodge(hold)
                continue
            room = self._rooms.get(hold.key)
            if room is None:
                room = self._begin(hold, plan)
            elif any(hold.shared.values()):
                self._violate(
                    "cache_begins",
                    f"{self._name}: {_short(hold.key)} is given "
                    "cached pages in the midst of its own",
                )
            for group, pages in hold.pages.items():
                own = [int(p) for p in pages[hold.shared.get(group, 0) :]]
                if group in self._lasting:
                    room.pages.setdefault(group, []).extend(own)
                for page in own:
                    self._collective.world.loans.given(
                        self._collective.boot, (group, page), hold.key
                    )
                    self._forget((group, page))

    def _lodge(self, hold: Hold) -> None:
        """Pages are given to a loan."""
        if any(hold.shared.values()):
            self._violate("cache_begins", f"{self._name}: a loan is given cached pages as its own")
        self._lodged[hold.key] = {g: [int(p) for p in pages] for g, pages in hold.pages.items()}
        for group, numbers in self._lodged[hold.key].items():
            for page in numbers:
                self._collective.world.loans.given(self._collective.boot, (group, page), hold.key)
                self._forget((group, page))

    def _lend_checkpoint(self, key: Key, runs: Mapping[GroupName, BlockRun], length: int) -> None:
        """Check a checkpoint that is lent for a room: its complete pages must be cached, and the
        rest of it be what was brought back for that loan."""
        kept, lodged = (
            self._collective.resumes.of(loan_key(key)),
            self._lodged.get(loan_key(key), {}),
        )
        who, b = (
            f"{self._name} lends {length} positions for {_short(key)}",
            self._table.block_tokens,
        )
        if kept is None or len(kept.tokens) != length:
            self._violate("lends_cached", f"{who}, and was to bring back another checkpoint")
            return
        cached = self._goes_on.get(loan_key(key), ())
        if len(cached) < length // self._page_tokens or not all(map(self._is_cached, cached)):
            self._violate("lends_cached", f"{who}; {len(cached)} of its pages are cached")
            return
        blocks: dict[int, tuple[int, ...]] = {}
        places: set[Where] = set()
        for group in self._table.groups:
            run, due = runs.get(group.name), extent_blocks(group.extent, length, b)
            start, pages = due.start, lodged.get(group.name, [])
            if group.name in self._lasting:
                start = run.start if run is not None else 0
                pages = [*(page.pages[group.name] for page in cached), *pages][start // self._k :]
                for n in range(start, due.end):
                    blocks[n] = kept.stamps[n * b : (n + 1) * b]
            if (
                run is None
                or (run.start, run.end) != (start, due.end)
                or [int(p) for p in run.pages] != pages
            ):
                self._violate(
                    "lends_cached", f"{who}: {run} of {group.name}, where {pages} are due"
                )
            places.update((group.name, page) for page in pages)
        tainted = kept.tainted or any(page.tainted for page in cached)
        lent = Lent(blocks, tainted, length, kept.beside)
        self._collective.world.loans.lends(
            self._collective.boot, key, frozenset(places), lent, chain=len(cached)
        )

    def _begin(self, hold: Hold, plan: StepPlan) -> Held:
        ticket = self._tickets[hold.key]
        tokens = [*ticket.prompt, *ticket.said]
        found = self._find(ticket.cache_salt, tokens)
        local = ticket.prefill == ticket.decode
        if local and not self._table.cacheable:
            found = self._resumes(hold, plan)
        elif local:  # it computes a token at least, or all of its prompt
            most = 0 if ticket.scores_prompt else (len(tokens) - 1) // self._page_tokens
            found = found[:most]
        claimed = {
            g: [int(p) for p in pages[: hold.shared.get(g, 0)]] for g, pages in hold.pages.items()
        }
        used = max((len(pages) for pages in claimed.values()), default=0)
        if used < len(found) and self.at_rest.overdue(found[used]):
            found = found[:used]  # pages behind it are not used until it is verified
        lasting = self._lasting
        due = {g: [kept.pages[g] for kept in found] if g in lasting else [] for g in claimed}
        if claimed != due:
            self._violate(
                "cache_begins",
                f"{self._name}: {_short(hold.key)} begins with cached pages "
                f"{claimed}; {due} are cached",
            )
        self.at_rest.begins(_short(hold.key), found)
        self.hits += len(found)
        self._collective.inherited[hold.key] = [stamp for kept in found for stamp in kept.stamps]
        if any(kept.tainted for kept in found):
            self._collective.world.tainted.add(hold.key)
        pages = {g: list(numbers) for g, numbers in due.items() if g in lasting}
        room = self._rooms[hold.key] = Held(
            tokens, len(tokens), pages, len(found), len(found), list(found), fetched={}
        )
        return room

    def _resumes(self, hold: Hold, plan: StepPlan) -> list[Kept]:
        """Return the pages above which the checkpoint was computed that a room goes on from. What
        the checkpoint is of is judged when it is brought back (resumes.py)."""
        names = [resume.name for resume in plan.resume if resume.key == hold.key]
        found = [kept for name in names for kept in self._beneath.get(name, ())]
        gone = [kept.pages for kept in found if not self._is_cached(kept)]
        if gone or (found and self._tickets[hold.key].scores_prompt):
            self._violate(
                "cache_begins",
                f"{self._name}: {_short(hold.key)} goes on from a checkpoint above "
                f"{[kept.pages for kept in found]}, of which {gone} are cached no more",
            )
        return found

    def _is_cached(self, kept: Kept) -> bool:
        return any(self._kept.get(self._at[w]) is kept for w in kept.pages.items() if w in self._at)

    def _find(self, salt: str, tokens: Sequence[TokenId]) -> list[Kept]:
        found = []
        for digest in self._digests(salt, tokens):
            if digest not in self._kept:
                break
            found.append(self._kept[digest])
        return found

    def _digests(self, salt: str, tokens: Sequence[TokenId]) -> list[Digest]:
        """Return the digests of all complete pages."""
        return [
            (salt, h)
            for h in content.histories(tuple(tokens))[self._page_tokens - 1 :: self._page_tokens]
        ]

    def _forget(self, where: Where) -> None:
        digest = self._at.get(where)
        if digest is not None:
            for group, page in self._kept.pop(digest).pages.items():
                del self._at[group, page]

    def _enter(self, key: Key, computed: int) -> None:
        """Positions before `computed` are computed on every rank, and verified: their complete
        pages enter."""
        room = self._rooms[key]
        digests = self._digests(self._tickets[key].cache_salt, room.tokens[:computed])
        while room.enters and room.shared < len(digests):
            digest, n = digests[room.shared], room.shared
            pages = {g: numbers[n] for g, numbers in room.pages.items()}
            twin = digest in self._kept or (bool(room.chain) and room.chain[-1].twin)
            if twin and not self._may_be_twin(key, pages):
                room.enters = False
                return
            if twin:
                digest = f"{key.room}.{key.epoch}", digest[1]
            stamps = self._collective.known(key)[
                n * self._page_tokens : (n + 1) * self._page_tokens
            ]
            tainted = key in self._collective.world.tainted
            for group, page in pages.items():
                if not tainted and (wrong := self._collective.differs(group, page, stamps)):
                    self._violate(
                        "cached_right",
                        f"{self._name}: page {n} of {_short(key)} is cached, "
                        f"and {wrong} hold other bytes",
                    )
                self._at[group, page] = digest
            now = self._collective.world.heap.now
            above = room.chain[-1] if room.chain else None
            kept = Kept(pages, tuple(stamps), tainted, above, now, now, twin)
            self._kept[digest] = kept
            room.chain.append(kept)
            room.shared += 1

    def _may_be_twin(self, key: Key, pages: Mapping[GroupName, int]) -> bool:
        """Whether a room may bring tokens that are cached already. It does so where a checkpoint is
        to belong to them; the leader knows whether that is worth it."""
        ticket = self._tickets[key]
        computes = ticket.prefill == ticket.decode and not self._table.cacheable
        return computes and all(where in self._claimed for where in pages.items())

    def holds(self, group: GroupName, page: int) -> bool:
        """Whether a page is cached."""
        return (group, page) in self._at

    def _lend(self, key: Key, runs: Mapping[GroupName, BlockRun]) -> None:
        """Check pages that are lent for a room: they must be cached, and hold what the room's
        tokens imply."""
        ticket, b = self._tickets[key], self._table.block_tokens
        cached = self._find(ticket.cache_salt, [*ticket.prompt, *ticket.said])
        blocks: dict[int, tuple[int, ...]] = {}
        for group, run in runs.items():
            first, past = run.start // self._k, (run.end - 1) // self._k + 1
            due = [kept.pages[group] for kept in cached[first:past]]
            if past > len(cached) or [int(p) for p in run.pages] != due:
                self._violate(
                    "lends_cached",
                    f"{self._name} lends pages {run.pages} for {_short(key)}; {due} are cached",
                )
            for n in range(run.start, run.end):
                at = n % self._k * b
                blocks[n] = cached[n // self._k].stamps[at : at + b]
        pages = frozenset((group, int(p)) for group, run in runs.items() for p in run.pages)
        lent = Lent(blocks, any(kept.tainted for kept in cached))
        chain = max((run.end - 1) // self._k + 1 for run in runs.values())
        self._collective.world.loans.lends(self._collective.boot, key, pages, lent, chain=chain)

    # ---- fetches --------------------------------------------------------------------------------

    def lacks(self, key: Key, runs: Mapping[GroupName, BlockRun]) -> bool:
        """Whether a room that holds its pages has to fetch any of the offered blocks."""
        room = self._rooms.get(key)
        first = room.reused * self._k if room is not None else 0
        return any(run.end > first * (g in self._lasting) for g, run in runs.items())

    def _fetch(self, fetch: Fetch) -> None:
        room = self._rooms.get(fetch.key)
        if room is None:
            return
        # a second read of some blocks: the sums of the whole order are not known then
        if fetch.follows is not None:
            room.enters &= all(
                run.start >= room.length // self._table.block_tokens
                for group, run in fetch.runs.items()
                if group in self._lasting
            )
            return
        for group, run in fetch.runs.items():
            if group in self._lasting and run.start < room.reused * self._k:
                self._violate(
                    "fetches_lacking",
                    f"{self._name} fetches block {run.start} of "
                    f"{_short(fetch.key)}, which is cached",
                )
            room.fetched.setdefault(group, set()).update(
                BlockIndex(b) for b in range(run.start, run.end)
            )

    def committed(self, keys: Iterable[Key]) -> None:
        """A rank has applied the commits and found the bytes right. Check that all blocks were
        either fetched or cached."""
        for room, key in [(self._judged.pop(key), key) for key in keys if key in self._judged]:
            for group in self._table.groups:
                due = extent_blocks(group.extent, room.length, self._table.block_tokens)
                reused = room.reused * self._k * (group.name in self._lasting)
                lacking = set(range(max(due.start, reused), due.end))
                fetched = room.fetched.get(group.name, set())
                if fetched != lacking:
                    wrong = sorted(fetched ^ lacking)
                    self._violate(
                        "fetches_lacking",
                        f"{self._name} committed {_short(key)}, "
                        f"and of {wrong} it fetched {fetched}",
                    )


def _short(key: Key) -> str:
    return f"{key.room[-4:]}.{key.epoch}"
