"""What a leader publishes of its prefix cache: a subscriber who hears all of it knows, after each
turn, exactly what is cached, and which tokens that is."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from tests.core.build import B, submit
from tests.core.world import Node, World, expected

from baton.core.effects import Effect, Publish
from baton.core.memory.prefix_cache import (
    CacheChange,
    CachedPage,
    PageHash,
    PageText,
    PrefixCache,
    page_hash,
    root_hash,
)
from baton.core.scheduler.books import LeaderBooks
from baton.core.scheduler.room import RoomState

P, D, U = 2, 3, 4
SYSTEM = tuple(range(100, 113))  # 13 tokens: three pages of four, and one token of the fourth


class Subscriber:
    """Keeps what it hears, and compares it with the cache at the end of each turn."""

    def __init__(self, node: Node) -> None:
        self._core = node.leader.core
        self._roots = (self._core.worker.manifest.model, self._core.worker.manifest.weights)
        self.heard: list[Publish] = []
        self.cached: dict[PageHash, CacheChange] = {}
        for effect in node.leader._kept:
            self._hear(effect)
        self._step = self._core.step
        self._core.step = self._watched

    def _watched(self, event: Any, now: Any) -> list[Effect]:
        effects: list[Effect] = self._step(event, now)
        for effect in effects:
            self._hear(effect)
        cached = set(self._core.worker.ledger.cache.hashes())
        assert set(self.cached) == cached, "it knows another cache"
        return effects

    def _hear(self, effect: Effect) -> None:
        if not isinstance(effect, Publish):
            return
        assert effect.afresh == (not self.heard), "only the first one says that nothing was cached"
        self.heard.append(effect)
        for change in effect.changes:
            if change.entered:
                self._stored(change)
            else:
                self._removed(change.page)

    def _stored(self, change: CacheChange) -> None:
        assert change.page not in self.cached, "it is stored already"
        assert change.parent is None or change.parent in self.cached, "its parent is not cached"
        assert change.text is not None
        before = change.parent or root_hash(*self._roots, change.text.salt)
        assert page_hash(before, change.text.tokens) == change.page, "another page"
        assert not (change.parent and change.text.salt), "a salt is said with the first page"
        self.cached[change.page] = change

    def _removed(self, page: PageHash) -> None:
        del self.cached[page]
        assert page not in {change.parent for change in self.cached.values()}, "a child is left"

    def sequences(self) -> set[tuple[int, ...]]:
        """The token sequences that are cached, each up to its last page."""
        parents = {change.parent for change in self.cached.values()}
        return {self._tokens(page) for page in self.cached if page not in parents}

    def _tokens(self, page: PageHash | None) -> tuple[int, ...]:
        if page is None:
            return ()
        change = self.cached[page]
        assert change.text is not None
        return (*self._tokens(change.parent), *change.text.tokens)

    @property
    def changes(self) -> list[CacheChange]:
        """All that it heard."""
        return [change for said in self.heard for change in said.changes]


def service(*, publish: bool = True, pages: int = 16, **limits: float) -> tuple[World, Node, Node]:
    """A prefill and a decode worker, whose caches are on."""
    world = World()
    common: dict[str, Any] = {"prefix_cache": True, "publish_cache": publish} | limits
    nodes = [
        world.add(role, boot, pages=pages, **common)
        for role, boot in (("prefill", P), ("decode", D))
    ]
    return world, nodes[0], nodes[1]


def ask(world: World, number: int, prompt: tuple[int, ...], *, salt: str = "") -> list[int]:
    """One request, from its beginning to its end; the tokens that it was given."""
    request = msgspec.structs.replace(submit(number, prompt, max_tokens=6), cache_salt=salt)
    world.submit(request)
    world.run()
    assert world.tokens(number) == expected(prompt, 6)
    return world.tokens(number)


def evict_some(world: World) -> None:
    """Requests that together need more pages than there are."""
    for number in range(1, 9):
        ask(world, number, tuple(range(50 * number, 50 * number + 25)))


def test_a_subscriber_knows_which_tokens_are_cached_on_either_side() -> None:
    world, prefill, decode = service()
    prefills, decodes = Subscriber(prefill), Subscriber(decode)
    world.run()
    first = (*SYSTEM, 1, 2, 3, 4, 5, 6)  # 19 tokens, and 6 that are generated
    answer = ask(world, 1, first)
    assert prefills.sequences() == {first[:16]}
    assert decodes.sequences() == {(*first, *answer)[:24]}
    ask(world, 2, (*SYSTEM, 7, 8, 9))
    assert prefills.sequences() == {first[:16], (*SYSTEM, 7, 8, 9)}
    shared = [c for c in prefills.changes if c.text and c.text.tokens == SYSTEM[:B]]
    assert len(shared) == 1, "what both begin with is stored once"


def test_what_is_evicted_is_removed_a_child_before_its_parent() -> None:
    world, prefill, decode = service(pages=12, step_tokens=8)
    prefills, decodes = Subscriber(prefill), Subscriber(decode)
    evict_some(world)
    for subscriber in (prefills, decodes):
        assert sum(not change.entered for change in subscriber.changes) > 12
        assert all(change.text is None for change in subscriber.changes if not change.entered)


def test_a_cache_that_is_emptied_is_published_page_by_page() -> None:
    world, prefill, _ = service()
    subscriber = Subscriber(prefill)
    ask(world, 1, SYSTEM)
    assert len(subscriber.cached) == 3
    world.front.ask_reset_cache()
    world.run()
    assert subscriber.cached == {}
    ask(world, 2, SYSTEM)
    assert subscriber.sequences() == {SYSTEM[:12]}


def test_requests_with_a_salt_are_told_apart() -> None:
    world, prefill, _ = service()
    subscriber = Subscriber(prefill)
    for number, salt in enumerate(("", "a", "b"), 1):
        ask(world, number, SYSTEM, salt=salt)
    first = [change for change in subscriber.changes if change.parent is None]
    assert [c.text.salt for c in first if c.text] == ["", "a", "b"]
    assert subscriber.sequences() == {SYSTEM[:12]}, "three times the same tokens"
    assert len(subscriber.cached) == 9


def test_the_first_one_says_that_nothing_is_cached_even_if_nothing_happens() -> None:
    _, prefill, _ = service()
    assert [e for e in prefill.leader._kept if isinstance(e, Publish)] == [Publish((), afresh=True)]


def test_nothing_is_published_and_no_tokens_are_kept_when_it_is_off() -> None:
    world, prefill, _ = service(publish=False)
    core, step, said = prefill.leader.core, prefill.leader.core.step, []
    texts: list[PageText | None] = []
    take = core.worker.ledger.cache.take_changes

    def taken() -> list[CacheChange]:
        changes: list[CacheChange] = take()
        texts.extend(change.text for change in changes)
        return changes

    def watched(event: Any, now: Any) -> list[Effect]:
        effects: list[Effect] = step(event, now)
        said.extend(effect for effect in effects if isinstance(effect, Publish))
        return effects

    core.step, core.worker.ledger.cache.take_changes = watched, taken
    ask(world, 1, SYSTEM)
    assert said == []
    assert texts == [None] * 3


# ---- planted bugs -------------------------------------------------------------------------------


def _too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are published when their computation is ordered."""
    tell = LeaderBooks.tell

    def early(self: LeaderBooks) -> None:
        worker = self.worker
        for room in worker.rooms.in_state(RoomState.COMPUTING):
            text = worker.reuse._text(room, 0)
            page = CacheChange(worker.reuse.chain(room)[0], entered=True, text=text)
            if room.ordered and page.page not in worker.ledger.cache.hashes():
                self._publish([page])
        tell(self)

    monkeypatch.setattr(LeaderBooks, "tell", early)


def _silent_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    evict = PrefixCache.evict

    def silently(self: PrefixCache) -> CachedPage:
        entry = evict(self)
        self._changes.pop()
        return entry

    monkeypatch.setattr(PrefixCache, "evict", silently)


def _wrong_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent is the page that entered before, of whatever sequence."""
    take = PrefixCache.take_changes

    def wrong(self: PrefixCache) -> list[CacheChange]:
        found, last = [], None
        for change in take(self):
            if change.entered:
                change, last = msgspec.structs.replace(change, parent=last), change.page
            found.append(change)
        return found

    monkeypatch.setattr(PrefixCache, "take_changes", wrong)


def _backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes of a turn, in the other order."""
    take = PrefixCache.take_changes
    monkeypatch.setattr(PrefixCache, "take_changes", lambda self: take(self)[::-1])


@pytest.mark.parametrize(
    ("plant", "seen"),
    [
        (_too_early, "another cache"),
        (_silent_eviction, "another cache"),
        (_wrong_parent, "another page"),
        (_backwards, "its parent is not cached"),
    ],
)
def test_a_planted_bug_is_seen(
    plant: Callable[[pytest.MonkeyPatch], None], seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    world, prefill, decode = service(pages=12, step_tokens=8)
    Subscriber(prefill), Subscriber(decode)
    with pytest.raises(AssertionError, match=seen):
        evict_some(world)
