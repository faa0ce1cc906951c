"""The index of cached pages against a brute force: one set of pages for each worker, searched from
end to end."""

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from baton.core.gateway.cache_index import CacheIndex, Holders, PageId, Slot

WORKERS = 4
FORK = 3  # pages that may follow a page
# A page is named by its path from the root, as a page's hash is by all tokens before its end.
PATH = st.lists(st.integers(0, FORK - 1), min_size=1, max_size=7)
SLOT = st.integers(0, WORKERS - 1).map(Slot)
Has = dict[Slot, set[PageId]]


def chain(path: Sequence[int]) -> list[PageId]:
    found, at = [], 1
    for step in path:
        at = at * FORK + step
        found.append(PageId(at))
    return found


def descends(page: int, ancestor: int) -> bool:
    while page > ancestor:
        page //= FORK
    return page == ancestor


def longest(own: set[PageId], pages: list[PageId]) -> int:
    depth = 0
    for page in pages:
        if page not in own:
            break
        depth += 1
    return depth


def by_worker(groups: Sequence[Holders]) -> dict[Slot, int]:
    """How many pages each worker has: of its groups, that with the most counts."""
    found: dict[Slot, int] = {}
    for workers, pages in groups:
        own = [slot for slot in map(Slot, range(WORKERS)) if workers >> slot & 1]
        assert own, "a group of nobody"
        found.update({slot: max(pages, found.get(slot, 0)) for slot in own})
    return found


def check(index: CacheIndex, has: Has) -> None:
    assert len(index) == sum(map(len, has.values()))
    for slot in map(Slot, range(WORKERS)):
        assert index.pages_of(slot) == has.get(slot, set())
        assert index.count(slot) == len(has.get(slot, ()))


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(("entered", "left", "forget")), SLOT, PATH), max_size=20),
    st.lists(PATH, min_size=1, max_size=4),
)
def test_each_worker_has_the_beginning_that_a_search_page_by_page_finds(
    steps: list[tuple[str, Slot, list[int]]], asked: list[list[int]]
) -> None:
    """Workers have whole beginnings: a page enters after those before it, and leaves after those
    that descend from it."""
    index, has = CacheIndex(), Has()
    for what, slot, path in steps:
        own, pages = has.setdefault(slot, set()), chain(path)
        if what == "entered":
            assert index.entered(slot, pages) == 0
            own.update(pages)
        elif what == "left":
            gone = [page for page in own if descends(page, pages[-1])]
            index.left(slot, [*gone, pages[-1]])
            own.difference_update(gone)
        else:
            index.forget(slot)
            own.clear()
        check(index, has)
        for prompt in (*map(chain, asked), pages):
            depths = {slot: longest(own, prompt) for slot, own in has.items()}
            assert by_worker(index.depths(prompt)) == {slot: n for slot, n in depths.items() if n}
    assert index.depths([]) == []


PAGES = st.lists(st.integers(0, 5).map(PageId), max_size=5, unique=True)
WHAT = st.sampled_from(("entered", "entered", "left", "forget"))
STEPS = st.lists(st.tuples(WHAT, SLOT, PAGES), max_size=16)


@settings(max_examples=50, deadline=None)
@given(STEPS, PAGES)
@example([("entered", Slot(0), [PageId(1)])], [PageId(0), PageId(1)])
@example([("entered", Slot(0), [PageId(0), PageId(2)])], [PageId(0), PageId(1), PageId(2)])
@example(
    [("entered", Slot(0), [PageId(0)]), ("entered", Slot(1), [PageId(0), PageId(2)])],
    [PageId(0), PageId(1), PageId(2)],
)
def test_where_pages_are_missing_in_between_the_end_that_is_found_is_a_page_that_the_worker_has(
    steps: list[tuple[str, Slot, list[PageId]]], asked: list[PageId]
) -> None:
    """The index may be out of date."""
    index, has = CacheIndex(), Has()
    for what, slot, pages in steps:
        own = has.setdefault(slot, set())
        if what == "entered":
            index.entered(slot, pages)
            own.update(pages)
        elif what == "left":
            index.left(slot, pages)
            own.difference_update(pages)
        else:
            index.forget(slot)
            own.clear()
    check(index, has)
    depths = by_worker(index.depths(asked))
    assert depths.keys() == {slot for slot, own in has.items() if asked and asked[0] in own}
    for slot, depth in depths.items():
        assert asked[depth - 1] in has[slot]
        assert depth == len(asked) or asked[depth] not in has[slot]


@settings(max_examples=50, deadline=None)
@given(STEPS, st.integers(1, 12))
def test_a_full_index_takes_no_more_and_says_how_many_it_ignores(
    steps: list[tuple[str, Slot, list[PageId]]], most: int
) -> None:
    index, has = CacheIndex(most), Has()
    for what, slot, pages in steps:
        own = has.setdefault(slot, set())
        if what == "entered":
            new = [page for page in pages if page not in own]
            fit = new[: most - sum(map(len, has.values()))]
            assert index.entered(slot, pages) == len(new) - len(fit)
            own.update(fit)
        elif what == "left":
            index.left(slot, pages)
            own.difference_update(pages)
        else:
            index.forget(slot)
            own.clear()
        check(index, has)
        assert len(index) <= most


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_nothing_is_left_of_workers_that_were_forgotten(
    steps: list[tuple[str, Slot, list[PageId]]],
) -> None:
    index = CacheIndex()
    for what, slot, pages in steps:
        if what == "forget":
            index.forget(slot)
        else:
            getattr(index, what)(slot, pages)
    for slot in range(WORKERS):
        index.forget(Slot(slot))
    assert (len(index), index._has, index._pages) == (0, {}, {})


class Counting(dict[PageId, int]):
    """Counts how often it is looked into."""

    looks = 0

    def get(self, page: PageId, default: int = 0) -> int:  # type: ignore[override]
        self.looks += 1
        return super().get(page, default)


def test_a_long_prompt_is_searched_by_bisection() -> None:
    index, pages = CacheIndex(), [PageId(n) for n in range(4096)]
    has = {Slot(0): 4096, Slot(1): 4096, Slot(2): 1000, Slot(3): 17}
    for slot, n in has.items():
        index.entered(slot, pages[:n])
    index._has = counting = Counting(index._has)
    assert by_worker(index.depths(pages)) == has
    assert counting.looks <= 2 + 2 * 12, "twelve for each place where workers differ"


@settings(max_examples=100, deadline=None)
@given(STEPS, PAGES)
def test_the_end_of_an_earlier_prompt_is_found_wherever_it_is(
    steps: list[tuple[str, Slot, list[PageId]]], asked: list[PageId]
) -> None:
    index, has = CacheIndex(), Has()
    for what, slot, pages in steps:
        own = has.setdefault(slot, set())
        if what == "entered":
            index.entered(slot, pages)
            own.update(pages)
        elif what == "left":
            index.left(slot, pages)
            own.difference_update(pages)
        else:
            index.forget(slot)
            own.clear()
        last = {
            slot: max((n for n, page in enumerate(asked, 1) if page in own), default=0)
            for slot, own in has.items()
        }
        assert by_worker(index.ends(asked)) == {slot: n for slot, n in last.items() if n}
