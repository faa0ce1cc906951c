"""The book of checkpoints against one that compares whole sequences, and what is kept of a prompt."""

from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from baton.core.ids import CheckpointName, GroupName, TokenId
from baton.core.memory.checkpoints import (
    Checkpoints,
    PromptCheckpoint,
    kept_blocks,
    kept_bytes,
)
from baton.core.memory.prefix_cache import CachedPage, page_hashes, root_hash
from baton.core.memory.state import (
    DType,
    Full,
    Group,
    Interval,
    Placement,
    StateSpec,
    StateTable,
    Unit,
    Whole,
    Window,
)

PAGE = 3
ROOTS = {salt: root_hash("m", "w", salt) for salt in ("", "s")}
Prompt = tuple[str, tuple[int, ...]]  # the salt, and the tokens

# two tokens: many sequences begin alike
PROMPTS = st.tuples(
    st.sampled_from(sorted(ROOTS)), st.lists(st.integers(0, 1), min_size=1, max_size=9).map(tuple)
)


def hashes(prompt: Prompt) -> list:
    return page_hashes(ROOTS[prompt[0]], prompt[1], PAGE)


def made(name: int, prompt: Prompt) -> PromptCheckpoint:
    pages = hashes(prompt)
    return PromptCheckpoint(
        CheckpointName(name),
        length=len(prompt[1]),
        page=pages[-1],
        tail=prompt[1][len(pages) * PAGE :],
        last=CachedPage(pages[-1], None, {}, {}),
        sums={},
        beyond=0,
    )


class PlainBook:
    """Knows whole sequences."""

    def __init__(self) -> None:
        self.prompts: dict[int, Prompt] = {}  # in the order of their last use

    def find(self, prompt: Prompt) -> int | None:
        salt, tokens = prompt
        alike = {
            name: len(theirs)
            for name, (other, theirs) in self.prompts.items()
            if other == salt and len(theirs) < len(tokens) and tokens[: len(theirs)] == theirs
        }
        return max(alike, key=alike.__getitem__) if alike else None

    def use(self, name: int) -> None:
        self.prompts[name] = self.prompts.pop(name)


@examples(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["keep", "begin", "end", "evict"]), PROMPTS), max_size=40)
)
def test_the_book_finds_what_one_of_whole_sequences_finds(acts: list) -> None:
    book, plain, open_ = Checkpoints(), PlainBook(), list[PromptCheckpoint]()
    known: dict[int, PromptCheckpoint] = {}
    told: set = set()
    for number, (act, prompt) in enumerate(acts):
        pages = hashes(prompt)
        tail = prompt[1][len(pages) * PAGE :]
        if act == "keep" and pages:
            same = book.same(pages[-1], tail)
            assert (same is None) == (prompt not in plain.prompts.values())
            if same is None:
                known[number] = made(number, prompt)
                book.add(known[number])
                plain.prompts[number] = prompt
            else:
                book.use(same)
                plain.use(int(same.name))
        elif act == "begin":
            most = len(prompt[1]) - 1
            tokens = tuple(map(TokenId, prompt[1]))
            found = book.find(pages[: most // PAGE], tokens, page_tokens=PAGE, most=most)
            assert (None if found is None else int(found.name)) == plain.find(prompt)
            if found is not None:
                book.pin(found)
                plain.use(int(found.name))
                open_.append(found)
        elif act == "end" and open_:
            book.unpin(open_.pop(0))
        elif act == "evict":
            pinned = {int(one.name) for one in open_}
            due = next((name for name in plain.prompts if name not in pinned), None)
            oldest = next(iter(book.idle()), None)
            assert (None if oldest is None else int(oldest.name)) == due
            if oldest is not None:
                book.remove(oldest)
                del plain.prompts[int(oldest.name)]
        assert [int(one.name) for one in book] == list(plain.prompts)
        for change in book.take_changes():
            assert (change.page in told) != change.entered
            told ^= {change.page}
        assert told == set(book.pages) == {hashes(p)[-1] for p in plain.prompts.values()}
        assert len(book) == len(plain.prompts)
        assert {one.name for one in known.values() if book.pinned(one)} == {o.name for o in open_}
    for one in book:
        book.remove(one)
        book.remove(one)  # it need not be there
    assert not len(book)
    assert {change.page for change in book.take_changes()} == told


FULL, WINDOW, SLOT = GroupName("full"), GroupName("window"), GroupName("slot")
TABLE = StateTable(
    2,
    4,
    (
        Group(FULL, Unit.PAGE, Full()),
        Group(WINDOW, Unit.PAGE, Window(6)),
        Group(SLOT, Unit.SLOT, Whole()),
    ),
    (
        StateSpec("kv", FULL, (0,), ("k", "v"), 1, 4, DType.F32),
        StateSpec("swa", WINDOW, (1,), ("k", "v"), 1, 4, DType.F32),
        StateSpec("delta", SLOT, (0,), ("s",), 1, 8, DType.F32),
    ),
)


@given(st.integers(1, 60), st.integers(1, 4))
def test_what_is_kept_is_what_a_step_behind_the_end_needs_and_cached_pages_lack(
    length: int, page_blocks: int
) -> None:
    kept = kept_blocks(TABLE, length, page_blocks)
    cached = length // (4 * page_blocks) * page_blocks  # blocks
    needed = {position // 4 for position in range(length)}
    assert {*range(cached), *range(kept[FULL].start, kept[FULL].end)} == needed
    assert kept[FULL].size < page_blocks + 1
    looked = {position // 4 for position in range(max(0, length - 5), length)}
    assert set(range(kept[WINDOW].start, kept[WINDOW].end)) == looked
    assert kept[SLOT] == Interval(0, 1)
    placement = Placement(TABLE, 1, 1, 0, 0, page_blocks)
    due = {g: each.size * placement.block_bytes(g) for g, each in kept.items()}
    assert kept_bytes(placement, length) == sum(due.values()) > 0


def test_on_a_page_border_nothing_is_kept_of_what_lasts() -> None:
    assert kept_blocks(TABLE, 16, 2)[FULL].size == 0
    assert kept_blocks(TABLE, 17, 2)[FULL] == Interval(4, 5)
    assert kept_blocks(TABLE, 15, 2)[FULL] == Interval(2, 4)
