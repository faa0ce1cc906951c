"""The pages of a prompt as a gateway names them, and as the prefix cache of a worker does."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.core.build import KV, manifest, submit, table, ticket
from tests.core.world import World

from baton.core.gateway.prompt_pages import PageKind, PromptPages, page_ids, page_kind
from baton.core.ids import GroupName, Micros, TokenId
from baton.core.manifest import Manifest
from baton.core.memory.pages import Ledger
from baton.core.memory.scrubber import Scrubber
from baton.core.memory.state import Group, Unit, Window
from baton.core.messages import Register
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.core.scheduler.reuse import Reuse


def worker(block_tokens: int, page_blocks: int = 1) -> Manifest:
    blocks = replace(table(), block_tokens=block_tokens)
    return replace(manifest("prefill", 2), table=blocks, page_blocks=page_blocks)


def registered(manifest: Manifest, *, caches: bool = True) -> Register:
    return Register("worker", None, manifest, caches=caches)


def of_worker(found: Manifest, tokens: Sequence[int], salt: str) -> list[int]:
    """The beginnings of the hashes by which a worker looks for a prompt in its cache."""
    ledger = Ledger({KV: 16})
    scrubber = Scrubber(ledger.cache, interval_ms=0, page_bytes=1, now=lambda: Micros(0))
    asked = replace(ticket(), prompt=tuple(map(TokenId, tokens)), cache_salt=salt)
    reuse = Reuse(found, ledger, scrubber, on=True, tells_tokens=False)
    pages = reuse.chain(PrefillRoom(asked, Micros(0)))
    return [int.from_bytes(page[:8], "little") for page in pages]


def of_gateway(found: Manifest, tokens: Sequence[int], salt: str = "") -> list[int]:
    return list(PromptPages(tuple(map(TokenId, tokens)), salt).chain(page_kind(registered(found))))


@pytest.mark.parametrize("size", range(1, 65))
def test_a_gateway_names_the_pages_as_workers_do_whatever_their_size(size: int) -> None:
    found = worker(size)
    for length in (1, size, size + 1, 2 * size, 2 * size + 1, 150):
        tokens = range(200_000, 200_000 + length)
        chain = of_gateway(found, tokens)
        assert chain == of_worker(found, tokens, "")
        assert len(chain) == (length - 1) // size, "the last token is always computed"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=20),
    st.integers(1, 4),
    st.integers(1, 4),
    st.sampled_from(("", "a", "ä ö")),
)
def test_a_page_of_several_blocks_is_named_as_workers_do(
    tokens: list[int], block_tokens: int, page_blocks: int, salt: str
) -> None:
    found = worker(block_tokens, page_blocks)
    assert page_kind(registered(found)).tokens == block_tokens * page_blocks
    assert of_gateway(found, tokens, salt) == of_worker(found, tokens, salt)


def test_only_who_keeps_ends_of_models_whose_state_passes_goes_on_from_them() -> None:
    one = worker(4, 1)
    window = Group(GroupName("window"), Unit.PAGE, Window(6))
    passing = replace(one.table, groups=(*one.table.groups, window))
    for role, state, caches, ends in (
        ("prefill", one.table, True, False),
        ("prefill", one.table, False, False),
        ("prefill", passing, False, True),
        ("prefill", passing, True, False),  # a guest
        ("decode", passing, True, False),  # which only fetches prompts
        ("decode", passing, False, True),
        ("unified", passing, False, True),
        ("unified", one.table, True, False),
    ):
        found = registered(replace(one, role=role, table=state), caches=caches)
        assert page_kind(found).ends == ends


def test_the_model_its_weights_the_salt_and_all_tokens_before_make_another_page() -> None:
    tokens = range(9)
    kind = PageKind("m", "w", 4)

    def chain(kind: PageKind, salt: str = "", tokens: Sequence[int] = tokens) -> list[int]:
        return list(PromptPages(tuple(map(TokenId, tokens)), salt).chain(kind))

    others = [
        chain(PageKind("n", "w", 4)),
        chain(PageKind("m", "v", 4)),
        chain(PageKind("mw", "", 4)),
        chain(kind, "s"),
        chain(kind, "", (1, *tokens[1:])),
    ]
    for n in range(2):
        assert len({pages[n] for pages in (chain(kind), *others)}) == 6
    longer = chain(kind, "", (*tokens, *range(50, 60)))
    assert longer[:2] == chain(kind), "what follows a page makes none"
    assert len(longer) == 4


def test_one_prompt_has_pages_of_every_size_at_once() -> None:
    prompt = PromptPages(tuple(map(TokenId, range(13))), "")
    sizes = [len(prompt.chain(PageKind("m", "w", n))) for n in (4, 6, 4, 1, 13)]
    assert sizes == [3, 2, 3, 12, 0]
    assert prompt.tokens == 13


def test_hashes_that_stand_one_after_the_other_are_told_apart() -> None:
    assert page_ids(b"") == []
    assert page_ids(bytes(range(16))) == [0x0706050403020100, 0x0F0E0D0C0B0A0908]


@pytest.mark.parametrize("page_blocks", [1, 2])
def test_what_a_worker_has_computed_is_in_its_cache_under_the_names_of_the_gateway(
    page_blocks: int,
) -> None:
    world, tokens = World(), tuple(range(40, 61))
    node = world.add("unified", 2, page_blocks=page_blocks, prefix_cache=True)
    world.run()
    world.submit(replace(submit(1, tokens, max_tokens=1), cache_salt="s"))
    world.run()
    cached = [
        int.from_bytes(page[:8], "little") for page in node.leader.worker.ledger.cache.hashes()
    ]
    assert cached == of_gateway(node.leader.worker.manifest, tokens, "s")
    assert len(cached) == 20 // (4 * page_blocks)
