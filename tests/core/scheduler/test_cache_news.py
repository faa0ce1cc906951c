"""What a worker tells its gateways of its prefix cache, and when."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.ids import Boot, Micros
from baton.core.memory.prefix_cache import CacheChange, PageHash
from baton.core.messages import HASH_BYTES, MOST_HASHES, CacheChanged
from baton.core.scheduler.cache_news import PERIOD, CacheNews

W, G, H = Boot(2), Boot(1), Boot(9)


def page(n: int) -> PageHash:
    """A hash that is n in its beginning, and the same in the rest."""
    return PageHash(n.to_bytes(HASH_BYTES, "little") + b"\xff" * 24)


def numbers(hashes: bytes) -> list[int]:
    return [
        int.from_bytes(hashes[at : at + HASH_BYTES], "little")
        for at in range(0, len(hashes), HASH_BYTES)
    ]


def entered(*pages: int) -> list[CacheChange]:
    return [CacheChange(page(n), entered=True) for n in pages]


def left(*pages: int) -> list[CacheChange]:
    return [CacheChange(page(n), entered=False) for n in pages]


Said = tuple[int, list[int], list[int], bool]


@dataclass
class Teller:
    """A worker's news, and the time."""

    now: int = 0
    news: CacheNews = field(default_factory=lambda: CacheNews(W))

    def said(self, to: Boot = G) -> list[Said]:
        """What one gateway is told now: number, entered, left, afresh."""
        found = []
        for boot, message in self.news.due(Micros(self.now)):
            assert message.worker == W
            if boot == to:
                pages = numbers(message.entered), numbers(message.left)
                found.append((message.number, *pages, message.afresh))
        return found

    def next(self, to: Boot = G) -> list[Said]:
        self.now += PERIOD
        return self.said(to)


def teller(*cached: int) -> Teller:
    found = Teller()
    found.news.joined(G, map(page, cached))
    return found


def test_a_gateway_that_comes_is_told_all_that_is_cached_and_then_what_changes() -> None:
    t = teller(1, 2)
    assert t.said() == [(1, [1, 2], [], False)], "at once"
    t.news.changed(entered(3) + left(1))
    assert t.next() == [(2, [3], [1], False)]
    assert t.next() == []
    assert t.news.told(G) == 2


def test_one_message_goes_out_in_a_period_however_much_changes() -> None:
    t = teller(1)
    assert len(t.said()) == 1
    t.news.changed(entered(2))
    t.now += PERIOD - 1
    assert t.said() == []
    t.news.changed(entered(3))
    assert t.news.timer() == PERIOD
    t.now += 1
    assert t.said() == [(2, [2, 3], [], False)]
    assert t.news.timer() is None


def test_where_nothing_was_said_for_long_news_goes_out_at_once() -> None:
    t = teller()
    t.now = 10 * PERIOD
    assert t.said() == []
    t.news.changed(entered(1))
    assert t.said() == [(1, [1], [], False)]


def test_of_a_page_that_enters_and_leaves_untold_the_last_is_said() -> None:
    t = teller(1)
    t.said()
    t.news.changed([*entered(2), *left(2), *left(1), *entered(1), *entered(3)])
    assert t.next() == [(2, [1, 3], [2], False)]


def test_no_message_has_more_pages_than_fit_and_the_rest_follows() -> None:
    cached = range(2 * MOST_HASHES + 5)
    t = teller(*cached)
    told = [t.said(), t.next(), t.next(), t.next()]
    assert [len(message[0][1]) for message in told[:3]] == [MOST_HASHES, MOST_HASHES, 5]
    assert told[3] == []
    assert [n for message in told[:3] for n in message[0][1]] == list(cached)
    assert [message[0][0] for message in told[:3]] == [1, 2, 3]


def test_pages_that_enter_and_pages_that_leave_share_the_space_of_a_message() -> None:
    t = teller(*range(MOST_HASHES))
    t.said()
    t.news.changed(left(*range(MOST_HASHES // 2 + 1)))
    t.news.changed(entered(*range(MOST_HASHES, MOST_HASHES + MOST_HASHES // 2)))
    (_, came, went, _), (_, more, none, _) = t.next()[0], t.next()[0]
    assert len(came) + len(went) == MOST_HASHES
    assert (len(more), none) == (1, [])


def test_a_gateway_that_has_missed_some_is_told_all_of_it_afresh_once() -> None:
    t = teller(1, 2)
    t.said()
    t.news.changed(entered(3) + left(2))
    t.news.asked(G, [page(1), page(3)])
    assert t.next() == [(2, [1, 3], [], True)], "what has left is not there, and is not said"
    t.news.changed(entered(4))
    assert t.next() == [(3, [4], [], False)]


def test_only_the_first_message_of_a_long_answer_begins_afresh() -> None:
    t = teller()
    cached = [page(n) for n in range(MOST_HASHES + 1)]
    t.news.asked(G, cached)
    assert [afresh for said in (t.said(), t.next()) for _, _, _, afresh in said] == [True, False]


def test_who_asks_while_nothing_is_cached_is_told_so() -> None:
    t = teller()
    t.news.asked(G, [])
    assert t.news.timer() == 0
    assert t.said() == [(1, [], [], True)]


def test_each_gateway_has_numbers_of_its_own_and_all_are_counted() -> None:
    t = teller(1)
    t.said()
    t.news.joined(H, [page(1)])
    t.news.changed(entered(2))
    t.now += PERIOD
    due = {boot: message.number for boot, message in t.news.due(Micros(t.now))}
    assert due == {G: 2, H: 1}
    assert (t.news.told(G), t.news.told(H), t.news.sent) == (2, 1, 3)


def test_one_gateway_asks_and_the_other_hears_of_changes_alone() -> None:
    t = teller(1)
    t.news.joined(H, [page(1)])
    t.said()
    t.news.asked(G, [page(1)])
    assert t.next(H) == []
    t.news.changed(entered(2))
    assert t.next(H) == [(2, [2], [], False)]


def test_a_gateway_that_is_gone_is_told_nothing_and_its_late_question_changes_nothing() -> None:
    t = teller(1)
    t.news.left(G)
    t.news.asked(G, [page(1)])
    assert t.news.timer() is None
    assert t.next() == []
    assert t.news.told(G) == 0
    t.news.joined(G, [page(5)])
    assert t.said() == [(1, [5], [], False)], "another session"


STEP = st.one_of(st.integers(0, 7), st.sampled_from(("said", "asked", "joins again")))


@settings(max_examples=100, deadline=None)
@given(st.lists(STEP, max_size=30))
def test_who_hears_everything_knows_what_is_cached_and_nothing_is_said_for_nothing(
    steps: Sequence[int | str],
) -> None:
    """A number: that page enters, or leaves if it is there."""
    t, cached, known, heard = teller(), set[int](), set[int](), 0

    def hear(message: CacheChanged) -> None:
        nonlocal heard
        assert message.number == heard + 1
        came, went = numbers(message.entered), numbers(message.left)
        assert set(came) <= cached, "it is there now"
        assert not set(went) & cached
        assert message.afresh or came or went
        heard = message.number
        if message.afresh:
            known.clear()
        known.difference_update(went)
        known.update(came)

    def turn() -> None:
        t.now += PERIOD
        for _, message in t.news.due(Micros(t.now)):
            hear(message)

    for step in steps:
        match step:
            case int():
                t.news.changed(left(step) if step in cached else entered(step))
                cached ^= {step}
            case "said":
                turn()
                assert known == cached
            case "asked":
                t.news.asked(G, map(page, cached))
            case "joins again":
                t.news.left(G)
                t.news.joined(G, map(page, cached))
                known.clear()
                heard = 0
    turn()
    assert known == cached
    assert t.news.timer() is None
