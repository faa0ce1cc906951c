"""What a gateway knows of its workers' caches: the real sender on the other end of a link that loses
and repeats messages, and a brute force over the tokens of prompts."""

from collections.abc import Iterable, Sequence
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.build import key

from baton.core.gateway.known_caches import ASK_AGAIN_US, KnownCaches
from baton.core.gateway.prompt_pages import PageKind, PromptPages
from baton.core.ids import Boot, Micros, TokenId
from baton.core.memory.prefix_cache import CacheChange, PageHash, page_hashes, root_hash
from baton.core.messages import CacheChanged
from baton.core.scheduler import cache_news
from baton.core.scheduler.cache_news import PERIOD, CacheNews

G, W, V = Boot(1), Boot(2), Boot(3)
KIND = PageKind("tiny", "ab", 4)
T0 = Micros(0)


def page(n: int) -> PageHash:
    """A hash whose beginning is n."""
    return PageHash(n.to_bytes(8, "little") + bytes(24))


def news(
    number: int, entered: Sequence[int] = (), left: Sequence[int] = (), *, afresh: bool = False
) -> CacheChanged:
    said = [b"".join(page(n)[:8] for n in pages) for pages in (entered, left)]
    return CacheChanged(W, number, said[0], said[1], afresh)


class Link:
    """A worker with a cache, and a gateway; what one of them says the other hears later, twice or
    not at all."""

    def __init__(self) -> None:
        self.now = 0
        self.cache: dict[PageHash, None] = {}
        self.worker, self.gateway = CacheNews(W), KnownCaches()
        self.questions = 0  # under way
        self.asked = 0
        self.gateway.joins(W, KIND, caches=True)
        self.worker.joined(G, self.cache)

    def changes(self, n: int) -> None:
        """A page enters, or leaves if it is there."""
        there = page(n) in self.cache
        if there:
            del self.cache[page(n)]
        else:
            self.cache[page(n)] = None
        self.worker.changed([CacheChange(page(n), entered=not there)])

    def turn(self, *, times: int = 1) -> bool:
        """The worker says what it has to say; it arrives so many times. Whether there was any."""
        self.now += PERIOD
        said = self.worker.due(Micros(self.now))
        for to, message in said:
            assert to == G
            for _ in range(times):
                self._asks(self.gateway.changed(W, message, Micros(self.now)))
        return bool(said)

    def states(self) -> None:
        """Credits arrive."""
        self._asks(self.gateway.stated(W, self.worker.told(G), Micros(self.now)))

    def _asks(self, asks: bool) -> None:
        self.questions += asks
        self.asked += asks

    def answers(self, *, lost: bool = False) -> None:
        """A question that was under way arrives."""
        if self.questions:
            self.questions -= 1
            if not lost:
                self.worker.asked(G, self.cache)

    def right(self) -> bool:
        has = {int.from_bytes(page[:8], "little") for page in self.cache}
        return self.gateway.pages_of(W) == has

    def rest(self) -> None:
        """Nothing is lost any more."""
        for _ in range(3):
            while self.questions or self.worker.timer() is not None:
                self.answers()
                self.turn()
            self.states()
            self.now += ASK_AGAIN_US
            self.states()


STEP = st.one_of(
    st.tuples(st.just("changes"), st.integers(0, 9)),
    st.tuples(st.just("turn"), st.sampled_from((1, 1, 1, 0, 2))),
    st.tuples(st.sampled_from(("states", "answers", "lost", "passes")), st.just(0)),
)


@settings(max_examples=120, deadline=None)
@given(st.lists(STEP, max_size=40))
def test_whatever_is_lost_or_comes_twice_the_gateway_knows_in_the_end_what_is_cached(
    steps: list[tuple[str, int]],
) -> None:
    """Messages hold three pages here."""
    link = Link()
    with patch.object(cache_news, "MOST_HASHES", 3):
        for what, n in steps:
            match what:
                case "changes":
                    link.changes(n)
                case "turn":
                    link.turn(times=n)
                case "states":
                    link.states()
                case "answers" | "lost":
                    link.answers(lost=what == "lost")
                case "passes":
                    link.now += ASK_AGAIN_US
        link.rest()
    assert link.right()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 9), st.none()), max_size=30), st.integers(1, 2))
def test_where_nothing_is_lost_nobody_is_asked(steps: list[int | None], times: int) -> None:
    link = Link()
    with patch.object(cache_news, "MOST_HASHES", 3):
        for n in steps:
            if n is not None:
                link.changes(n)
            else:
                link.turn(times=times)
                link.states()
        while link.turn(times=times):
            pass
    link.states()
    assert link.right()
    assert link.asked == 0


# ---- what was lost, step by step -----------------------------------------------------------------


def positions(
    known: KnownCaches, boots: list[Boot], prompt: "Prompt", *, coming: bool
) -> list[int]:
    return known.positions(known.places(boots), len(boots), pages(prompt), coming=coming)


def caches() -> KnownCaches:
    found = KnownCaches()
    found.joins(W, KIND, caches=True)
    return found


def test_the_next_message_shows_that_one_was_lost_and_is_not_counted() -> None:
    known = caches()
    assert not known.changed(W, news(1, [1, 2]), T0)
    assert known.changed(W, news(3, [4], [1]), T0), "the second"
    assert known.pages_of(W) == {1, 2}
    assert not known.changed(W, news(4, [5]), T0), "it is asked already"
    assert not known.changed(W, news(5, [2, 4, 5], afresh=True), T0)
    assert known.pages_of(W) == {2, 4, 5}
    assert not known.changed(W, news(6, [7], [2]), T0)
    assert known.pages_of(W) == {4, 5, 7}
    assert known.changed(W, news(8), T0), "another loss, and another question"


def test_credits_show_that_the_last_message_was_lost() -> None:
    known = caches()
    known.changed(W, news(1, [1]), T0)
    assert not known.stated(W, 1, T0)
    assert known.stated(W, 2, T0)
    assert not known.stated(W, 2, T0)


def test_a_question_that_is_not_answered_is_asked_again_after_a_while() -> None:
    known = caches()
    assert known.stated(W, 1, T0)
    assert not known.changed(W, news(2), Micros(ASK_AGAIN_US - 1))
    assert known.changed(W, news(3), Micros(ASK_AGAIN_US))
    assert not known.stated(W, 3, Micros(2 * ASK_AGAIN_US - 1))
    assert known.stated(W, 3, Micros(2 * ASK_AGAIN_US))


@pytest.mark.parametrize("afresh", [False, True])
def test_what_comes_again_changes_nothing(afresh: bool) -> None:
    known = caches()
    known.changed(W, news(1, [1], afresh=afresh), T0)
    known.changed(W, news(2, [2], [1]), T0)
    assert not known.changed(W, news(1, [1], afresh=afresh), T0)
    assert known.pages_of(W) == {2}


def test_pages_for_which_there_is_no_place_are_counted() -> None:
    known = KnownCaches(most=3)
    known.joins(W, KIND, caches=True)
    known.joins(V, KIND, caches=True)
    known.changed(W, news(1, [1, 2]), T0)
    known.changed(V, news(1, [1, 2, 3]), T0)
    assert (len(known), known.ignored) == (3, 2)
    assert (known.count(W), known.count(V)) == (2, 1)


# ---- who has how much of a prompt ----------------------------------------------------------------

Prompt = tuple[str, tuple[int, ...]]  # salt, tokens
KINDS = (
    *(PageKind("m", "w", 2) for _ in range(4)),  # so that several have as much
    PageKind("m", "w", 3),
    PageKind("other", "w", 2),
    PageKind("m", "other", 2),
)
PROMPT = st.tuples(
    st.sampled_from(("", "a")), st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)
)


def pages(prompt: Prompt) -> PromptPages:
    salt, tokens = prompt
    return PromptPages(tuple(map(TokenId, tokens)), salt)


def ends(kind: PageKind, tokens: Sequence[int]) -> range:
    """Where pages end that stand before the last token."""
    return range(kind.tokens, len(tokens), kind.tokens)


class Model:
    """What workers have: the beginnings of prompts, as tokens. It includes the model and its
    weights, which are the worker's."""

    def __init__(self, kind: PageKind) -> None:
        self.kind = kind
        self.cached: set[Prompt] = set()
        self.open: dict[int, Prompt] = {}

    def of(self, prompt: Prompt) -> list[Prompt]:
        salt, tokens = prompt
        return [(salt, tokens[:end]) for end in ends(self.kind, tokens)]

    def positions(self, prompt: Prompt, *, coming: bool) -> int:
        given_ = {b for other in self.open.values() for b in self.of(other)} if coming else set()
        return max(self._longest(has, prompt) for has in (self.cached, given_))

    def _longest(self, has: Iterable[Prompt], prompt: Prompt) -> int:
        found = 0
        for salt, tokens in self.of(prompt):
            if (salt, tokens) not in has:
                break
            found = len(tokens)
        return found


def hashes(kind: PageKind, prompt: Prompt) -> bytes:
    """What a worker of that kind says of the pages before the last token."""
    salt, tokens = prompt
    root = root_hash(kind.model, kind.weights, salt)
    found = page_hashes(root, tuple(map(TokenId, tokens)), kind.tokens)
    return b"".join(page[:8] for page in found[: len(ends(kind, tokens))])


WORKER = st.integers(0, len(KINDS) - 1)
MOVE = st.tuples(st.sampled_from(("cached", "given", "given", "ended", "dies")), WORKER, PROMPT)


@settings(max_examples=100, deadline=None)
@given(st.lists(MOVE, max_size=16), st.lists(PROMPT, min_size=1, max_size=3), st.booleans())
def test_positions_are_those_of_a_search_through_all_prompts(
    moves: list[tuple[str, int, Prompt]], asked: list[Prompt], coming: bool
) -> None:
    """Two page sizes, two models, two weights and two salts; workers die, and others take their
    places."""
    known, models = KnownCaches(), dict[Boot, Model]()
    boots, heard, keys = list[Boot](), dict[Boot, int](), 0
    for n, kind in enumerate(KINDS):
        boots.append(Boot(10 + n))
        known.joins(boots[n], kind, caches=True)
        models[boots[n]], heard[boots[n]] = Model(kind), 0
    for what, n, prompt in moves:
        boot = boots[n]
        model = models[boot]
        match what:
            case "cached":
                heard[boot] += 1
                entered = hashes(model.kind, prompt)
                known.changed(boot, CacheChanged(boot, heard[boot], entered, b""), T0)
                model.cached.update(model.of(prompt))
            case "given":
                keys += 1
                known.gives(boot, key(keys), pages(prompt))
                model.open[keys] = prompt
            case "ended" if model.open:
                known.ended(boot, key(number := min(model.open)))
                del model.open[number]
            case "dies":
                kind = model.kind
                known.leaves(boot)
                boots[n] = boot = Boot(boot + 100)
                known.joins(boot, kind, caches=True)
                models[boot], heard[boot] = Model(kind), 0
    for prompt in asked:
        assert positions(known, boots, prompt, coming=coming) == [
            models[boot].positions(prompt, coming=coming) for boot in boots
        ]
    for boot in boots:
        for number in models[boot].open:
            known.ended(boot, key(number))
    assert len(known._coming) == 0
    for boot in boots:
        known.leaves(boot)
    assert (len(known), known._cached._has, known._coming._has) == (0, {}, {})
    assert sorted(known._free) == list(range(len(KINDS))), "as many bits as there were workers"


LONG = ("", tuple(range(9)))  # two pages before its last token


def test_pages_of_a_prompt_that_two_requests_share_are_coming_until_both_have_ended() -> None:
    known = caches()
    for number in (1, 2):
        known.gives(W, key(number), pages(LONG))
    for number, there in ((1, 8), (2, 0)):
        known.ended(W, key(number))
        assert positions(known, [W], LONG, coming=True) == [there]


def test_what_is_coming_counts_only_where_it_is_asked_for_and_longer_of_both_counts() -> None:
    known = caches()
    known.gives(W, key(1), pages(LONG))
    assert positions(known, [W], LONG, coming=False) == [0]
    assert known.pages_of(W) == set()
    known.changed(W, CacheChanged(W, 1, hashes(KIND, LONG)[:8], b""), T0)
    assert positions(known, [W], LONG, coming=False) == [4]
    assert positions(known, [W], LONG, coming=True) == [8]
    longer = ("", (*LONG[1], *range(9, 17)))
    known.changed(W, CacheChanged(W, 2, hashes(KIND, longer), b""), T0)
    assert positions(known, [W], longer, coming=True) == [16]


def test_of_pages_with_one_missing_in_between_the_last_counts() -> None:
    """The index may be out of date."""
    known, prompt = caches(), ("", tuple(range(13)))
    known.joins(V, KIND, caches=True)
    said = hashes(KIND, prompt)
    known.changed(W, CacheChanged(W, 1, said[:8], b""), T0)
    known.changed(V, CacheChanged(V, 1, said[:8] + said[16:], b""), T0)
    assert positions(known, [W, V], prompt, coming=False) == [4, 12]


def test_the_end_of_a_request_that_a_worker_was_not_given_changes_nothing() -> None:
    known = caches()
    known.gives(W, key(1), pages(LONG))
    known.ended(W, key(2))
    known.ended(V, key(1))
    assert positions(known, [W], LONG, coming=True) == [8]


def test_a_worker_that_takes_the_place_of_another_has_nothing() -> None:
    known = caches()
    known.changed(W, CacheChanged(W, 1, hashes(KIND, LONG), b""), T0)
    known.gives(W, key(1), pages(("", tuple(range(50, 59)))))
    known.leaves(W)
    known.joins(V, KIND, caches=True)
    for prompt in (LONG, ("", tuple(range(50, 59)))):
        assert positions(known, [V], prompt, coming=True) == [0]


def test_of_a_worker_that_keeps_no_pages_none_are_coming() -> None:
    known = KnownCaches()
    known.joins(W, KIND, caches=False)
    known.gives(W, key(1), pages(LONG))
    assert positions(known, [W], LONG, coming=True) == [0]
    known.ended(W, key(1))
