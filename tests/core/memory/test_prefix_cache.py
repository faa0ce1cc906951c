"""The ledger with its prefix cache against a brute-force model: dictionaries from tokens to pages,
searched from end to end."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.errors import Bug
from baton.core.ids import Epoch, GroupName, Key, Page, Room, TokenId
from baton.core.memory.pages import Ledger, PageState
from baton.core.memory.prefix_cache import PageHash, page_hashes, root_hash

KV, INDEX = GroupName("full"), GroupName("index")
TOTALS = {KV: 7, INDEX: 9}
PAGE = 2  # tokens
ROOT = root_hash("tiny", "ab", "")
Pages = tuple[int, int]  # of both groups
Tokens = tuple[int, ...]


def key(n: int) -> Key:
    return Key(Room(f"{n:032x}"), Epoch(1))


def ids(tokens: Tokens) -> tuple[TokenId, ...]:
    return tuple(TokenId(t) for t in tokens)


@dataclass
class Cached:
    tokens: Tokens  # up to its end
    pages: Pages
    pins: set[int]
    idle_since: int = 0
    reachable: bool = True


@dataclass
class Held:
    tokens: Tokens
    pages: list[Pages]
    cached: int  # of them, from the first on


@dataclass
class Model:
    """What the ledger should do, without order or counts that are kept."""

    now: int = 0
    cached: list[Cached] = field(default_factory=list)
    rooms: dict[int, Held] = field(default_factory=dict)

    def chain(self, tokens: Tokens) -> list[Cached]:
        found = []
        for n in range(1, (len(tokens) - 1) // PAGE + 1):
            hit = [c for c in self.cached if c.reachable and c.tokens == tokens[: n * PAGE]]
            if not hit:
                break
            found += hit
        return found

    def free(self) -> int:
        own = sum(len(room.pages) - room.cached for room in self.rooms.values())
        return min(TOTALS.values()) - own - len(self.cached)

    def evict(self) -> None:
        idle = [c for c in self.cached if not c.pins]
        self.cached.remove(min(idle, key=lambda c: (c.idle_since, -len(c.tokens))))

    def release(self, n: int) -> None:
        self.now += 1
        del self.rooms[n]
        for c in list(self.cached):
            if n in c.pins:
                c.pins.discard(n)
                c.idle_since = self.now
                if not c.pins and not c.reachable:
                    self.cached.remove(c)

    def drop(self, gone: list[Cached]) -> None:
        for c in gone:
            c.reachable = False
            if not c.pins:
                self.cached.remove(c)


STEP = st.tuples(
    st.integers(0, 9), st.lists(st.integers(0, 1), min_size=1, max_size=9), st.integers(0, 3)
)


def check(ledger: Ledger, model: Model) -> None:
    ledger.audit()
    idle = sum(not c.pins for c in model.cached)
    assert ledger.free()[KV] == model.free() + idle
    assert ledger.pins == sum(len(c.pins) for c in model.cached)
    assert ledger.clean == (not model.rooms)
    view = ledger.view()[KV]
    assert (view["cached"], view["shared"], view["free"]) == (
        idle,
        len(model.cached) - idle,
        model.free(),
    )
    assert sum(n for state, n in view.items() if state != "total") == TOTALS[KV]
    for n, room in model.rooms.items():
        assert (
            list(zip(ledger.held(key(n))[KV], ledger.held(key(n))[INDEX], strict=True))
            == room.pages
        )
        assert ledger.shared(key(n)) == room.cached


def take(ledger: Ledger, model: Model, n: int, tokens: Tokens) -> None:
    hit = model.chain(tokens)
    chain = ledger.cache.find(page_hashes(ROOT, ids(tokens), PAGE)[: (len(tokens) - 1) // PAGE])
    assert [(e.pages[KV], e.pages[INDEX]) for e in chain] == [c.pages for c in hit]
    want = -(-len(tokens) // PAGE) - len(hit)
    spare = sum(not c.pins and c not in hit for c in model.cached)
    fits = model.free() + spare >= want
    ask = {KV: want, INDEX: want}
    assert ledger.fits(ask, reuse=chain) == fits
    taken = ledger.take(key(n), ask, PageState.COMPUTING, reuse=chain)
    assert (taken is not None) == fits
    if taken is None:
        return
    for c in hit:
        c.pins.add(n)
    while model.free() < want:
        model.evict()
    pages = list(zip(taken[KV], taken[INDEX], strict=True))
    assert pages[: len(hit)] == [c.pages for c in hit]
    used = {p for room in model.rooms.values() for p, _ in room.pages} | {
        c.pages[0] for c in model.cached
    }
    assert used.isdisjoint(p for p, _ in pages[len(hit) :]), "a page has one owner"
    model.rooms[n] = Held(tokens, [(int(a), int(b)) for a, b in pages], len(hit))


def enter(ledger: Ledger, model: Model, n: int) -> None:
    room = model.rooms[n]
    at = room.cached
    if at >= len(room.tokens) // PAGE:
        return
    tokens = room.tokens[: (at + 1) * PAGE]
    before = [c for c in model.cached if n in c.pins]
    may = not any(c.reachable and c.tokens == tokens for c in model.cached) and all(
        c.reachable for c in before
    )
    assert ledger.enter(key(n), page_hashes(ROOT, ids(tokens), PAGE)[at], {}) == may
    if may:
        model.cached.append(Cached(tokens, room.pages[at], {n}))
        room.cached += 1


def condemn(ledger: Ledger, model: Model, n: int, at: int) -> None:
    room, gone, due = model.rooms[n], [], {n}
    if at < room.cached:
        due = {other for other, held in model.rooms.items() if room.pages[at] in held.pages}
        bad = next(c for c in model.cached if c.pages == room.pages[at])
        if bad.reachable:
            gone = [
                c for c in model.cached if c.reachable and c.tokens[: len(bad.tokens)] == bad.tokens
            ]
    assert ledger.condemn(key(n), at) == {key(other) for other in due}
    model.drop(gone)


def hear(ledger: Ledger, model: Model, told: set[PageHash]) -> None:
    """Follow what the cache says of its changes: then one knows what can be found."""
    for change in ledger.cache.take_changes():
        assert change.entered != (change.page in told), "nothing is said twice"
        (told.add if change.entered else told.remove)(change.page)
    assert told == {page_hashes(ROOT, ids(c.tokens), PAGE)[-1] for c in model.cached if c.reachable}
    assert told == set(ledger.cache.hashes())


@settings(max_examples=200, deadline=None)
@given(st.lists(STEP, max_size=60))
def test_the_ledger_is_what_the_model_says(steps: list[tuple[int, list[int], int]]) -> None:
    ledger, model, made = Ledger(TOTALS), Model(), 0
    told = set[PageHash]()
    for what, tokens, which in steps:
        rooms = list(model.rooms)
        n = rooms[which % len(rooms)] if rooms else 0
        if what < 4 or not rooms:
            made += 1
            take(ledger, model, made, tuple(tokens))
        elif what < 7:
            enter(ledger, model, n)
        elif what == 7:
            ledger.give_back(key(n))
            model.release(n)
        elif what == 8:
            condemn(ledger, model, n, which)
        elif which == 0:
            ledger.forget_cached()
            model.drop([c for c in model.cached if c.reachable])
        check(ledger, model)
        hear(ledger, model, told)
    for n in list(model.rooms):
        ledger.give_back(key(n))
        model.release(n)
    check(ledger, model)
    assert ledger.free() == {KV: 7, INDEX: 9}, "what is cached is as good as free"


def fill(ledger: Ledger, n: int, tokens: Tokens) -> None:
    """A room comes, computes and goes."""
    hashes = page_hashes(ROOT, ids(tokens), PAGE)
    chain = ledger.cache.find(hashes[: (len(tokens) - 1) // PAGE])
    want = -(-len(tokens) // PAGE) - len(chain)
    assert (
        ledger.take(key(n), {KV: want, INDEX: want}, PageState.COMPUTING, reuse=chain) is not None
    )
    while ledger.shared(key(n)) < len(hashes):
        assert ledger.enter(key(n), hashes[ledger.shared(key(n))], {})
    ledger.give_back(key(n))


def test_what_was_used_longest_ago_goes_first_and_an_end_before_its_beginning() -> None:
    ledger = Ledger({KV: 6, INDEX: 6})
    fill(ledger, 1, (1, 1, 2, 2))
    fill(ledger, 2, (3, 3, 4, 4))
    fill(ledger, 3, (1, 1, 5))  # the first chain's first page is used again
    assert ledger.take(key(4), {KV: 3, INDEX: 3}, PageState.COMPUTING) is not None
    assert ledger.cache.evicted == 1, "two pages were free"
    left = [
        len(ledger.cache.find(page_hashes(ROOT, ids(t), PAGE)))
        for t in ((1, 1, 2, 2), (3, 3, 4, 4))
    ]
    assert left == [1, 2], "the end of the first chain had not been used since"
    ledger.take(key(4), {KV: 2, INDEX: 2}, PageState.COMPUTING)
    assert [
        len(ledger.cache.find(page_hashes(ROOT, ids(t), PAGE))) for t in ((1, 1), (3, 3, 4, 4))
    ] == [1, 0]


def test_changes_are_said_in_order_a_beginning_enters_first_and_leaves_last() -> None:
    ledger = Ledger({KV: 4, INDEX: 4})
    first, second, third = page_hashes(ROOT, ids((1, 1, 2, 2, 3, 3)), PAGE)
    fill(ledger, 1, (1, 1, 2, 2, 3, 3))

    def said(*changes: tuple[PageHash, bool]) -> bool:
        taken = [(change.page, change.entered) for change in ledger.cache.take_changes()]
        return taken == list(changes)

    assert said((first, True), (second, True), (third, True))
    assert said(), "once"
    assert ledger.take(key(2), {KV: 2, INDEX: 2}, PageState.COMPUTING) is not None
    assert said((third, False)), "it was evicted"
    chain = ledger.cache.find((first, second))
    assert ledger.take(key(3), {KV: 0, INDEX: 0}, PageState.COMPUTING, reuse=chain) is not None
    assert said(), "it is used, and was there before"
    ledger.condemn(key(3), 0)
    assert said((second, False), (first, False)), "though their pages are still pinned"
    ledger.give_back(key(3))
    assert said(), "that their pages are free is nothing new"


def test_a_hash_covers_model_weights_salt_and_every_token_before() -> None:
    tokens = ids((1, 2, 3, 4, 5))
    roots = [
        ("a", "b", ""),
        ("a", "c", ""),
        ("c", "b", ""),
        ("a", "b", "tenant"),
        ("ab", "", ""),
        ("a", "", "b"),
    ]
    hashes = [page_hashes(root_hash(*r), tokens, PAGE) for r in roots]
    assert [len(h) for h in hashes] == [2] * len(roots), "the fifth token completes no page"
    assert len({h for chain in hashes for h in chain}) == 2 * len(roots)
    other = page_hashes(root_hash(*roots[0]), ids((9, 2, 3, 4)), PAGE)
    assert other[1] != hashes[0][1], "the same tokens behind others"
    assert page_hashes(root_hash(*roots[0]), ids((3, 4)), PAGE)[0] not in hashes[0]
    assert page_hashes(root_hash(*roots[0]), tokens[:4], PAGE) == hashes[0]


def test_what_is_unpinned_twice_is_a_bug() -> None:
    ledger = Ledger({KV: 4, INDEX: 4})
    fill(ledger, 1, (1, 1, 2, 2))
    chain = ledger.cache.find(page_hashes(ROOT, ids((1, 1, 2, 2)), PAGE))
    ledger.cache.pin(chain)
    ledger.cache.unpin(chain)
    with pytest.raises(Bug, match="nobody has pinned it"):
        ledger.cache.unpin(chain)


def test_what_is_to_be_reused_is_not_given_up_for_it() -> None:
    ledger = Ledger({KV: 4, INDEX: 4})
    fill(ledger, 1, (1, 1, 2, 2))
    chain = ledger.cache.find(page_hashes(ROOT, ids((1, 1, 2, 2)), PAGE))
    assert not ledger.fits({KV: 3, INDEX: 3}, reuse=chain), (
        "two are free, and the two of the chain stay"
    )
    assert ledger.take(key(2), {KV: 3, INDEX: 3}, PageState.COMPUTING, reuse=chain) is None
    assert ledger.fits({KV: 3, INDEX: 3}, reuse=chain[:1])
    assert ledger.take(key(2), {KV: 2, INDEX: 2}, PageState.COMPUTING, reuse=chain) is not None
    ledger.audit()


def test_rooms_that_end_make_room_with_what_they_alone_use() -> None:
    ledger = Ledger({KV: 5, INDEX: 5})
    hashes = page_hashes(ROOT, ids((1, 1, 2, 2, 3, 3)), PAGE)
    ledger.take(key(1), {KV: 3, INDEX: 3}, PageState.COMPUTING)
    assert ledger.enter(key(1), hashes[0], {})
    assert ledger.enter(key(1), hashes[1], {})
    shared = ledger.cache.find(hashes[:1])
    assert ledger.take(key(2), {KV: 1, INDEX: 1}, PageState.COMPUTING, reuse=shared) is not None
    want = {KV: 3, INDEX: 3}
    assert not ledger.fits(want)
    assert ledger.fits(want, ended=[key(1)]), "one free, one of its own, one that it alone pins"
    assert not ledger.fits({KV: 4, INDEX: 4}, ended=[key(1)]), "the other pins the first page still"
    assert ledger.fits({KV: 5, INDEX: 5}, ended=[key(1), key(2)])
    assert not ledger.fits({KV: 5, INDEX: 5}, reuse=shared, ended=[key(1), key(2)]), (
        "what is to be reused cannot go"
    )
    assert ledger.count([key(1), key(2)]) == {KV: 4, INDEX: 4}, "the page of both counts once"


def test_damage_after_a_reset_is_told_to_all_who_hold_the_page() -> None:
    ledger = Ledger({KV: 6, INDEX: 6})
    fill(ledger, 1, (1, 1, 2, 2))
    shared = ledger.cache.find(page_hashes(ROOT, ids((1, 1, 2, 2)), PAGE))
    for n, chain in ((2, shared), (3, shared), (4, shared[:1])):
        assert ledger.take(key(n), {KV: 1, INDEX: 1}, PageState.COMPUTING, reuse=chain) is not None
    ledger.forget_cached()
    assert ledger.condemn(key(2), 1) == {key(2), key(3)}
    assert ledger.condemn(key(2), 0) == {key(2), key(3), key(4)}
    ledger.audit()


def test_another_rooms_page_is_not_cached() -> None:
    ledger = Ledger({KV: 4, INDEX: 4})
    ledger.take(key(1), {KV: 1, INDEX: 1}, PageState.COMPUTING)
    with pytest.raises(Bug, match="does not own"):
        ledger.pools[KV].to_cache(key(2), Page(0))
    with pytest.raises(Bug, match="does not own"):
        ledger.pools[KV].from_cache(Page(0))
