"""Compute as delay: the ranks of a worker run a batch together, write what content.py computes, and
draw its tokens.

Before it writes, every rank compares the context that its rows read with what must be there. So a
wrong byte is found at its first use, whatever the protocol believes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName, Key, Rank, Seq
from baton.core.matchers import GrammarError, Matchers
from baton.core.memory.state import Full, Group, Placement, Unit, Window, extent_blocks
from baton.core.messages import Drawn, FailCode, Grammar, RowFailure
from baton.core.past import Past
from baton.core.prompt_scores import PromptScores, pack_scores
from baton.core.rank.watchdog import WorkKind
from baton.core.work import (
    Batch,
    BatchDone,
    DigestDone,
    DigestOrder,
    Done,
    Draw,
    GrammarReady,
    Row,
    RowDone,
)
from baton.dev.sim import content
from baton.dev.sim.collective import Collective
from baton.dev.sim.collective import CollectiveWorld as CollectivesWorld
from baton.dev.sim.context import Context
from baton.dev.sim.grammar import Allowed, ToyMatcher
from baton.dev.sim.gray import DIGEST, STEP
from baton.dev.sim.memory import SimPool
from baton.dev.sim.process import Process
from baton.dev.sim.sums import Sums

DIGEST_US = 30
GRAMMAR_US = 100
SLOW_GRAMMAR_US = 100_000  # times up to 5: what the limits of a grammar allow (grammar/limits.py)
NOTHING = Past((), (), ())
LATE_US = 100_000  # times up to 20: hashing cached pages may take longer than it may be put off
NOWHERE = -1 << 40  # an index that no pool has
NOISE = 0x0DDBA11  # the stamp of rows that are only a guess; of no position's history


class Flips(msgspec.Struct):
    """The bits of a page that were flipped, by byte and bit, and the time of the first flip."""

    since: int
    bits: set[tuple[int, int]]


class EngineWorld(CollectivesWorld, Protocol):
    """What an engine needs to know of its world, in addition to what its collective needs."""

    clearing: bool  # whether somebody has asked to clear the pools

    def rows_of(self, placement: Placement) -> content.BlockContents:
        """Return the contents of a rank with this placement."""
        ...

    def sums_of(self, placement: Placement) -> Sums:
        """Return the sums of the contents of a rank with this placement."""
        ...


class SimEngine:
    """Port Engine for one rank."""

    def __init__(
        self,
        *,
        world: EngineWorld,
        process: Process,
        placement: Placement,
        rank: Rank,
        pages: Mapping[GroupName, int],
        collective: Collective,
    ) -> None:
        self.world, self.process, self.placement, self.rank = world, process, placement, rank
        self.collective = collective
        self.sim_pools = {g: SimPool(n * placement.page_bytes(g)) for g, n in pages.items()}
        self._pages = dict(pages)
        self._rows, self._known_sums = world.rows_of(placement), world.sums_of(placement)
        self._done: list[Done] = []
        self._matchers: Matchers[Allowed] = Matchers(spares=2)
        self._unbuilt: set[Key] = set()  # rooms whose grammar is being built
        # what the rows of batches under way may draw; None = everything
        self._allowed: dict[tuple[Seq, Key], Allowed | None] = {}
        self.computing: dict[Seq, Batch] = {}
        self._contexts: dict[tuple[Key, GroupName], Context] = {}
        sizes = {g: placement.block_bytes(g) for g in pages}
        # groups of which this rank holds a part
        self._groups = [g for g in placement.table.groups if sizes[g.name]]
        # whether it has state that depends on which drafts were right
        self._has_slots = any(g.unit is Unit.SLOT for g in placement.table.groups)
        self._raw = {g: (self.sim_pools[g].raw, size) for g, size in sizes.items()}
        self.damaged: set[tuple[GroupName, int]] = set()  # pages in which a bit was flipped
        # of the damaged pages that have not become right again
        self._flips: dict[tuple[GroupName, int], Flips] = {}
        # the contents of sealed blocks at that time, by their index in the pool
        self._sealed: dict[tuple[GroupName, int], int] = {}
        self.digesting: dict[int, DigestOrder] = {}
        # whether a job hashes cached pages, for which nobody waits
        self.passing: Callable[[int], bool] = lambda job: False
        self.cached: Callable[[GroupName, int], bool] = lambda group, page: False  # on decode
        collective.engines[rank] = self

    @property
    def pools(self) -> Mapping[GroupName, SimPool]:
        return self.sim_pools

    @property
    def pool_pages(self) -> Mapping[GroupName, int]:
        return self._pages

    def submit(self, batch: Batch) -> None:
        self.process.port_call()
        self.computing[batch.seq] = batch
        for row in batch.rows:
            self._mask(batch.seq, row)
        if self.process.ends(STEP):
            self.collective.submit(self.rank, batch)

    def constrain(self, key: Key, grammar: Grammar) -> None:
        if self._matchers.reuse(key, grammar):
            self._ready(key)
            return
        self._unbuilt.add(key)
        after = GRAMMAR_US
        if self.world.hostile and self.world.tape.chance(0.3, "a grammar is built slowly"):
            after += SLOW_GRAMMAR_US * self.world.tape.below(6, "built after")
        self.world.heap.after(after * self.process.slowness, self._built, key, grammar)

    def _built(self, key: Key, grammar: Grammar) -> None:
        if self.process.alive and key in self._unbuilt:
            self._unbuilt.remove(key)
            self._matchers.add(key, grammar, ToyMatcher(grammar))
            self._ready(key)

    def _ready(self, key: Key) -> None:
        self._done.append(GrammarReady(key))
        self.process.wake()

    def release(self, key: Key) -> None:
        if key in self._unbuilt:
            self._unbuilt.remove(key)
        else:
            self._matchers.release(key)

    def _mask(self, seq: Seq, row: Row) -> None:
        """Look up what a row may draw when it is submitted: its room may be dropped before it
        ends."""
        past = row.draw.past if row.draw is not None else None
        if past is None or not past.constrained:
            return
        if row.key in self._unbuilt:
            self.world.violate(
                "follows_grammar",
                f"{self.process.name}: {row.key.room[-4:]}.{row.key.epoch} draws a token, and its "
                "grammar is not built yet",
            )
            return
        try:
            self._allowed[seq, row.key] = self._matchers.allowed(row.key, past.answer)
        except GrammarError as error:
            self.world.violate(
                "follows_grammar",
                f"{self.process.name}: {row.key.room[-4:]}.{row.key.epoch}: {error}",
            )

    def digest(self, order: DigestOrder) -> None:
        self.process.port_call()
        self.digesting[order.job] = order
        if not self.process.ends(DIGEST):
            return
        half = (
            len(order.slots) // 2
            if self.world.hostile and self.world.tape.chance(0.3, "a digest in two parts")
            else 0
        )
        late = 10 * self.world.tape.below(100, "digest") if self.world.hostile else 0
        if (
            self.world.hostile
            and self.passing(order.job)
            and self.world.tape.chance(0.4, "cached pages are hashed late")
        ):
            late += LATE_US * self.world.tape.below(20, "hashed after")
        if half:
            self.world.heap.after(
                DIGEST_US * self.process.slowness, self._first_half, order, half, late
            )
        else:
            self.world.heap.after(
                DIGEST_US * self.process.slowness + late, self._digested, order, 0, None
            )

    def _first_half(self, order: DigestOrder, half: int, late: int) -> None:
        if self.process.alive:
            self.world.heap.after(
                late, self._digested, order, half, self._sums(order, slice(0, half))
            )

    def _digested(self, order: DigestOrder, start: int, first: NDArray[np.uint64] | None) -> None:
        if self.process.alive:
            rest = self._sums(order, slice(start, None))
            del self.digesting[order.job]
            self.process.has_ended(DIGEST)
            self._done.append(
                DigestDone(order.job, rest if first is None else np.concatenate((first, rest)))
            )
            self.process.wake()

    def _sums(self, order: DigestOrder, part: slice) -> NDArray[np.uint64]:
        return self._sum(order.group, order.slots[part].tolist(), order.numbers[part].tolist())

    def _sum(
        self, group: GroupName, slots: Sequence[int], numbers: Sequence[int]
    ) -> NDArray[np.uint64]:
        return self._known_sums.of(self.sim_pools[group], self.placement, group, slots, numbers)

    def _block(self, group: GroupName, slot: int) -> int:
        """Return the content of a block of the pool, as BlockContents has it (content.py)."""
        raw, size = self._raw[group]
        return int.from_bytes(raw[slot * size : (slot + 1) * size], "little")

    def _write(self, group: GroupName, slot: int, block: int) -> None:
        raw, size = self._raw[group]
        raw[slot * size : (slot + 1) * size] = block.to_bytes(size, "little")

    def clear(self, group: GroupName) -> None:
        self.process.port_call()
        if not self.world.clearing:
            self.world.violate(
                "never_cleared", f"the pool of {group} was cleared, and nobody has asked for that"
            )
        self.sim_pools[group].data[:] = 0

    @property
    def progress(self) -> Mapping[WorkKind, int]:
        """Nothing takes long here, so there is no progress to report."""
        return {}

    def poll(self) -> list[Done]:
        done, self._done = self._done, []
        return done

    def close(self) -> None: ...

    # ---- what the books ask ---------------------------------------------------------------------

    def given(self, group: GroupName, page: int) -> None:
        """A page begins a new life: forget what it held."""
        self.damaged.discard((group, page))
        self._flips.pop((group, page), None)
        k = self.placement.blocks_per_page(group)
        self.collective.given(group, range(page * k, (page + 1) * k))
        for j in range(k):
            self._sealed.pop((group, page * k + j), None)

    def flip(self, group: GroupName, page: int, byte: int, bit: int) -> None:
        """Flip a bit of a page, as failing memory does."""
        where = group, page
        self.sim_pools[group].data[page * self.placement.page_bytes(group) + byte] ^= 1 << bit
        self.damaged.add(where)
        flips = self._flips.setdefault(where, Flips(self.world.heap.now, set()))
        flips.bits ^= {(byte, bit)}
        if not flips.bits:
            del self._flips[where]  # the same bits were flipped twice

    def flipped(self, group: GroupName, page: int) -> int | None:
        """Return since when a page is not what it was, in its present life; None if it is."""
        flips = self._flips.get((group, page))
        return flips.since if flips is not None else None

    def changed(self, group: GroupName, page: int) -> bool:
        """Whether a block of the page is not what it was when it was sealed."""
        k = self.placement.blocks_per_page(group)
        return any(
            (then := self._sealed.get((group, slot))) is not None
            and self._block(group, slot) != then
            for slot in range(page * k, (page + 1) * k)
        )

    def kept(self, group: GroupName, page: int) -> bool:
        """Whether every block of a page was sealed when it was computed here, or was fetched back.
        (Not used for decode.)"""
        if not self.placement.block_bytes(group):
            return True
        k, brought = self.placement.blocks_per_page(group), self.collective.brought
        return all(
            (group, slot) in self._sealed or (group, slot) in brought
            for slot in range(page * k, (page + 1) * k)
        )

    def reuses(self, key: Key, group: GroupName, at: int, page: int) -> None:
        """Check a page that was computed before and is given to a room as number `at` of its
        list. It must hold what the room's own tokens imply, have been computed for a room with
        the same salt, and leave the room a token to compute. (For prefill; caches.py does this
        for decode.)"""
        if self.collective.role == "decode":
            return
        world, ticket, k = (
            self.world,
            self.world.tickets[key],
            self.placement.blocks_per_page(group),
        )
        known, past = (
            (*ticket.prompt, *ticket.said),
            (at + 1) * k * self.placement.table.block_tokens,
        )
        who = (
            f"{self.process.name}: page {page} of group {group} is given to "
            f"{key.room[-4:]}.{key.epoch} as number {at}"
        )
        if past >= len(known):
            world.violate(
                "hit_leaves_a_token", f"{who}; it has {len(known)} tokens, and computes none then"
            )
        slots = range(page * k, (page + 1) * k)
        authors = [self.collective.authors.get((group, slot)) for slot in slots]
        found = [a for a in authors if a is not None]
        if len(found) < k:
            world.violate("right_reuse", f"{who}, and nobody has computed it")
        if any(world.tickets[a].cache_salt != ticket.cache_salt for a in found):
            world.violate("own_salt", f"{who}; it was computed for a request with another salt")
        if (group, page) in self.damaged or not world.tainted.isdisjoint(found):
            return
        histories = content.histories(known[:past])[-k * self.placement.table.block_tokens :]
        b = self.placement.table.block_tokens
        stamps = [
            self.collective.stamp_at((group, slots[n // b]), n % b, h)
            for n, h in enumerate(histories)
        ]
        if any(
            self._block(group, slot) != self._rows.block(group, stamps[i * b : i * b + b])
            for i, slot in enumerate(slots)
        ):
            world.violate("right_reuse", f"{who}, and does not hold what its tokens imply")

    def differs(
        self, key: Key, pages: Mapping[GroupName, Sequence[int]], passed: Mapping[GroupName, int]
    ) -> str:
        """Return where these pages do not hold the room's whole state as its prefill worker
        computed it; empty if nowhere.

        passed: pages of the sequence before the first of each list
        """
        ticket, table = self.world.tickets[key], self.placement.table
        if key in self.world.tainted:
            return ""
        known = (*ticket.prompt, *ticket.said)
        stamps = self.collective.begun(key)
        if len(stamps) != len(known):
            return f"prefill has computed {len(stamps)} of {len(known)} positions"
        for group in self._groups:
            due = extent_blocks(group.extent, len(known), table.block_tokens)
            theirs = self.collective.of_group(key, group.name, stamps)
            if group.unit is Unit.SLOT:
                right = self._context(key, group.name).blocks([_slot_stamp(theirs, len(known))])
            else:
                right = self._context(key, group.name).blocks(theirs)[due.start : due.end]
            begin = passed.get(group.name, 0) * self.placement.blocks_per_page(group.name)
            slots = self._slots(group.name, pages.get(group.name, ()), begin)[due.start : due.end]
            if len(slots) != len(right) or NOWHERE in slots:
                return f"group {group.name} has {len(slots)} blocks, {len(right)} are due"
            wrong = [
                n
                for n, slot in enumerate(slots, start=due.start)
                if self._block(group.name, slot) != right[n - due.start]
            ]
            if wrong and all(self.was_damaged(group.name, [slots[n - due.start]]) for n in wrong):
                self.world.tainted.add(key)  # the damage is in pages that were cached here
                return ""
            if wrong:
                return f"blocks {wrong} of group {group.name}"
        return ""

    def page_differs(self, group: GroupName, page: int, stamps: Sequence[int]) -> bool:
        """Whether a page of complete blocks does not hold what these stamps say."""
        if not self.placement.block_bytes(group):
            return False
        k, b = self.placement.blocks_per_page(group), self._rows.tokens_per_block(group)
        return any(
            self._block(group, page * k + i) != self._rows.block(group, stamps[i * b : i * b + b])
            for i in range(k)
        )

    # ---- compute --------------------------------------------------------------------------------

    def finish(self, batch: Batch, samples: bool) -> None:
        """End a batch on this rank."""
        if not self.process.alive:
            return
        rows = tuple(self._row(row, samples, batch.seq) for row in batch.rows)
        del self.computing[batch.seq]
        self.process.has_ended(STEP)
        self._done.append(BatchDone(batch.seq, rows))
        self.process.wake()

    def _row(self, row: Row, samples: bool, seq: Seq) -> RowDone:
        end = row.start + len(row.tokens)
        allowed = self._allowed.pop((seq, row.key), None)
        why = self.collective.raises(row) if samples else ""
        draws: list[Drawn] = []
        # where state depends on which drafts were right, every rank knows what was drawn
        knows = samples or (self._has_slots and bool(row.ahead or row.drafts))
        if row.draw is not None and not why and knows:
            draws = self._draws(row, end, allowed)
        right = end - len(row.ahead) + max(0, len(draws) - 1)
        if knows:
            self.collective.settled[row.key] = right
        for group in self._groups:
            self._compute(row, group, self._left_at(group, right, end))
        if row.drafts and draws:
            self._write_guessed(row, right)
        sums = {g: self._seal(row, g, first, past) for g, (first, past) in row.final.items()}
        if not samples:
            return RowDone(row.key, None, sums)
        failed = RowFailure(FailCode.COMPUTE_FAILED, why) if why else None
        drawn = draws[0] if draws else None
        drafts = (drawn.token,) * row.drafts if drawn is not None else ()
        return RowDone(row.key, drawn, sums, failed, self._score(row), tuple(draws[1:]), drafts)

    def _left_at(self, group: Group, right: int, end: int) -> int:
        """Return of how many positions a group has state after a row that ends before `end` and
        is right before `right`: a slot goes back, and pages are written over."""
        return right if group.unit is Unit.SLOT else end

    def _draws(self, row: Row, end: int, allowed: Allowed | None) -> list[Drawn]:
        """Draw after the last tokens, as long as the row goes on with what is drawn."""
        found: list[Drawn] = []
        for at, draw in enumerate(row.draws, start=end - len(row.draws)):
            history = self.collective.histories[row.key][at]
            if found and draw.past is not None and draw.past.constrained:
                if not self._matchers.knows(row.key):
                    break  # its room has ended
                try:
                    allowed = self._matchers.allowed(row.key, draw.past.answer)
                except GrammarError:
                    break  # the answer is complete
            found.append(self._draw(row.key, draw, history, allowed))
            if at + 1 < end and found[-1].token != row.tokens[at + 1 - row.start]:
                break
        return found

    def _score(self, row: Row) -> PromptScores | None:
        """Score what follows the row's positions, from the tokens that it is given."""
        if row.score is None:
            return None
        histories = self.collective.histories[row.key][row.start :]
        following = (*row.tokens[1:], *(() if row.score.next is None else (row.score.next,)))
        author, top = content.attempt(self.collective.boot, row.key.epoch), row.score.top
        return pack_scores(
            top,
            [
                content.token_score(history, token, top, author)
                for history, token in zip(histories, following, strict=False)
            ],
        )

    def _draw(self, key: Key, draw: Draw, history: int, allowed: Allowed | None) -> Drawn:
        """Draw a token from what the draw is given and nothing else. Its logprobs are this
        attempt's."""
        past = draw.past if draw.past is not None else NOTHING
        token = content.next_token(
            history,
            draw.sampling,
            draw.index,
            prompt=past.prompt,
            answer=past.answer,
            barred=past.barred,
            bad=past.bad,
            allowed=allowed,
        )
        if draw.sampling.logprobs is None:
            return Drawn(token, None, ())
        return Drawn(
            token,
            *content.logprobs(
                history, draw.sampling.logprobs, content.attempt(self.collective.boot, key.epoch)
            ),
        )

    def _compute(self, row: Row, group: Group, end: int) -> None:
        """Read the context as the model would, then write the new positions."""
        stamps = self.collective.of_group(row.key, group.name, self.collective.stamps[row.key])
        slots = self._slots(
            group.name, row.pages[group.name].tolist(), row.begins.get(group.name, 0)
        )
        if group.unit is Unit.SLOT:
            # what is optional is not looked at where others have computed the positions before
            if row.start and not (group.optional and row.cold):
                self._check(
                    row, group.name, slots, self._slot(row, group.name, stamps, row.start), 0, 1
                )
            self._write_new(row, group.name, slots, self._slot(row, group.name, stamps, end), 0, 1)
            return
        blocks = self._context(row.key, group.name).blocks(stamps)
        reach = group.extent.tokens - 1 if isinstance(group.extent, Window) else row.start
        self._check(row, group.name, slots, blocks, max(0, row.start - reach), row.start)
        self._write_new(row, group.name, slots, blocks, row.start, end)

    def _write_guessed(self, row: Row, past: int) -> None:
        """Write the rows of the drafts after a row whose positions before `past` are right. They
        are nobody's yet, so they are marked as noise."""
        for group in self._groups:
            if group.unit is Unit.SLOT or not isinstance(group.extent, Full):
                continue
            slots = self._slots(group.name, row.pages[group.name].tolist(), 0)
            b = self._rows.tokens_per_block(group.name)
            if len(slots) * b < past + row.drafts:
                self.world.violate(
                    "page_books",
                    f"{self.process.name} drafts after {row.key.room[-4:]}.{row.key.epoch} at "
                    f"positions {past} to {past + row.drafts}, and it has {len(slots) * b}",
                )
            noise = [self._rows.block(group.name, [NOISE] * b)] * len(slots)
            self._write_new(row, group.name, slots, noise, past, past + row.drafts)

    def _context(self, key: Key, group: GroupName) -> Context:
        if (key, group) not in self._contexts:
            self._contexts[key, group] = Context(self._rows, group)
        return self._contexts[key, group]

    def _slot(self, row: Row, group: GroupName, stamps: list[int], tokens: int) -> list[int]:
        """Return what a slot holds after this many tokens."""
        return self._context(row.key, group).blocks([_slot_stamp(stamps, tokens)])

    def _slots(self, group: GroupName, pages: Sequence[int], begin: int) -> list[int]:
        """Return block indexes in the pool, in the order of the sequence; NOWHERE for those before
        `begin`."""
        k = self.placement.blocks_per_page(group)
        own = list(pages) if k == 1 else [page * k + j for page in pages for j in range(k)]
        return [NOWHERE] * begin + own if begin else own

    def _require_held(self, row: Row, group: GroupName, first: int) -> None:
        """Check that the row's lists hold the blocks that it looks at, which begin with `first`."""
        if first < row.begins.get(group, 0):
            self.world.violate(
                "live_window",
                f"{self.process.name} computes {row.key.room[-4:]}.{row.key.epoch} from "
                f"position {row.start} on and has given up "
                f"pages of group {group} that it looks back on",
            )

    def _check(
        self, row: Row, group: GroupName, slots: list[int], blocks: list[int], first: int, past: int
    ) -> None:
        """Check that positions [first, past) of the sequence hold what `blocks`, its whole blocks,
        say."""
        if first >= past:
            return
        b = self._rows.tokens_per_block(group)
        a, z = first // b, (past - 1) // b + 1
        self._require_held(row, group, a)
        for i in range(a, z):
            meant = self._rows.mask(group, max(first - i * b, 0), min(past - i * b, b))
            if (self._block(group, slots[i]) ^ blocks[i]) & meant:
                break
        else:
            return
        if self.was_damaged(group, slots[a:z]):
            self.world.tainted.add(row.key)
        elif row.key not in self.world.tainted:
            self.world.violate(
                "right_bytes",
                f"{self.process.name} computes {row.key.room[-4:]}.{row.key.epoch} from "
                f"position {row.start} on: block {i} "
                f"of group {group} does not hold what this epoch's computation wrote",
            )

    def was_damaged(self, group: GroupName, slots: Sequence[int]) -> bool:
        """Whether a bit was flipped in one of these blocks. State computed from damaged state need
        not be right."""
        k = self.placement.blocks_per_page(group)
        return any((group, slot // k) in self.damaged for slot in slots)

    def _write_new(
        self, row: Row, group: GroupName, slots: list[int], blocks: list[int], first: int, past: int
    ) -> None:
        """Write positions [first, past) of the sequence as `blocks`, its whole blocks, say."""
        b = self._rows.tokens_per_block(group)
        a, z = first // b, (past - 1) // b + 1
        self._require_held(row, group, a)
        for i, slot in enumerate(slots[a:z], start=a):
            if self.cached(group, slot // self.placement.blocks_per_page(group)):
                self.world.violate(
                    "cached_once",
                    f"{self.process.name} computes {row.key.room[-4:]}.{row.key.epoch} into "
                    f"block {slot} of group {group}, "
                    "whose page is cached",
                )
            if (group, slot) in self._sealed:
                self.world.violate(
                    "sealed_once",
                    f"{self.process.name} writes block {slot} of "
                    f"{row.key.room[-4:]}.{row.key.epoch} in group {group}, "
                    "which was sealed",
                )
            held, meant = (
                self._block(group, slot),
                self._rows.mask(group, max(first - i * b, 0), min(past - i * b, b)),
            )
            self._write(group, slot, held ^ (held ^ blocks[i]) & meant)

    def _seal(self, row: Row, group: GroupName, first: int, past: int) -> NDArray[np.uint64]:
        """Zero the tail after the last valid position, then return the sums."""
        if not self.placement.block_bytes(group):
            return np.zeros((past - first, 0), dtype=np.uint64)
        slots = self._slots(group, row.pages[group].tolist(), row.begins.get(group, 0))[first:past]
        if self.placement.table.group(group).unit is Unit.SLOT:
            self._remember(group, slots)
            return self._sum(group, slots, [row.valid])
        b = self.placement.table.block_tokens
        if row.valid < past * b:
            self._write(
                group,
                slots[-1],
                self._block(group, slots[-1]) & ~self._rows.mask(group, row.valid % b, b),
            )
        self._remember(group, slots)
        return self._sum(group, slots, range(first, past))

    def _remember(self, group: GroupName, slots: Sequence[int]) -> None:
        self._sealed.update(((group, slot), self._block(group, slot)) for slot in slots)


def _slot_stamp(stamps: list[int], tokens: int) -> int:
    """Return a slot's stamp after this many tokens."""
    return content.scramble(stamps[tokens - 1]) | 1
