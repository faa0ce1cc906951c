"""Memory of real processes changes while nobody looks, written from outside: it is found, and what
comes next is right."""

import random
from pathlib import Path

import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.e2e.test_prefix_cache import some

from baton.core.messages import LedgerView
from baton.gateway.pool_bits import flip_bits
from baton.shell.settings import Role

PAGE = 16


@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
@pytest.mark.timeout(300)
def test_cached_pages_that_change_are_found_and_not_used(
    tmp_path: Path, tiny: Path, nursery: Nursery, role: Role
) -> None:
    one, pages = Layout(1), 32
    workers = {Role.PREFILL: (one,), Role.DECODE: (one,)}
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        tiny,
        workers,
        pages=pages,
        prefix_caching=True,
        cache_verify_interval_s=1.0,
        max_model_len=512,
    )

    def book() -> LedgerView:
        return next(view for view in fleet.books() if view.role == role.value)

    def cached() -> int:
        return next(iter(book().pages.values()))["cached"]

    try:
        pair, prompt = fleet.pair(one, one), some(100, 0)
        answer = fleet.answer(fleet.begin(pair, prompt, 20))
        fleet.settle()
        held = cached()
        assert held == (100 if role is Role.PREFILL else 119) // PAGE
        fleet.turn_until(
            lambda: book().counters.cache.verified_pages >= 2 * held,
            what="every page verified twice",
        )
        assert (cached(), book().counters.cache.damaged_pages) == (held, 0), "what is right stays"
        flip_bits(fleet.pids(role, one)[0], pages, random.Random(0), share=1.0)
        fleet.turn_until(lambda: cached() == 0, what="damage found")
        assert book().counters.cache.damaged_pages >= 1, (
            "the first of a sequence takes the others with it"
        )
        assert fleet.answer(fleet.begin(pair, prompt, 20)) == answer
        fleet.settle()
    finally:
        fleet.close()
