"""A conversation comes back from the decode worker that has it: counted in bytes that were read and
tokens that were computed."""

from pathlib import Path

import msgspec
import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.e2e.test_prefix_cache import BLOCK, TOKEN_BYTES, some

from baton.core.handoff.fetch_back import FetchBack
from baton.core.messages import LedgerView
from baton.shell.settings import Role

LONG, QUESTION, ANSWER = 1500, 41, 35


class Counted(msgspec.Struct, frozen=True):
    """What prefill has done so far: tokens of prompts that it was asked for, found, fetched back;
    bytes that it has read."""

    asked: int
    found: int
    borrowed: int
    read: int

    def since(self, before: "Counted") -> "Counted":
        """What was done in between."""
        return Counted(
            *(
                b - a
                for a, b in zip(
                    msgspec.structs.astuple(before), msgspec.structs.astuple(self), strict=True
                )
            )
        )


def prefill(views: list[LedgerView]) -> Counted:
    (view,) = [v for v in views if v.role == Role.PREFILL.value]
    cache = view.counters.cache
    return Counted(cache.queries, cache.hits, cache.borrowed_tokens, view.counters.ranks.read_bytes)


def decode_read(views: list[LedgerView]) -> int:
    return sum(v.counters.ranks.read_bytes for v in views if v.role == Role.DECODE.value)


def back(context: int, page: int, prompt: int) -> int:
    """Tokens that can come back: of `context` positions decode has whole pages, and the prompt's
    last token is computed."""
    return min(context // page * page, (prompt - 1) // page * page)


@pytest.mark.parametrize(
    ("mode", "source", "target", "fabric"),
    [
        pytest.param(FetchBack.AUTO, Layout(1), Layout(1), "shm", id="auto"),
        pytest.param(FetchBack.ALWAYS, Layout(1), Layout(1), "shm", id="always"),
        pytest.param(FetchBack.NEVER, Layout(1), Layout(1), "shm", id="never"),
        pytest.param(
            FetchBack.ALWAYS, Layout(1, page=64), Layout(2), "shm", id="page 64, tp 2 page 16"
        ),
        pytest.param(
            FetchBack.ALWAYS,
            Layout(2),
            Layout(1, page=64),
            "shm",
            id="tp 2 page 16, page 64",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            FetchBack.ALWAYS,
            Layout(1),
            Layout(1, pp=2),
            "shm",
            id="pp 2 lends",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            FetchBack.ALWAYS,
            Layout(1, pp=2),
            Layout(2),
            "shm",
            id="pp 2 borrows of tp 2",
            marks=pytest.mark.slow,
        ),
        *(
            pytest.param(
                FetchBack.ALWAYS, Layout(1), Layout(1), fabric, id=fabric, marks=pytest.mark.slow
            )
            for fabric in ("nixl", "mooncake", "tcp")
        ),
    ],
)
@pytest.mark.timeout(300)
def test_the_next_turn_finds_the_conversation_at_decode(
    tmp_path: Path,
    tiny: Path,
    nursery: Nursery,
    mode: FetchBack,
    source: Layout,
    target: Layout,
    fabric: str,
) -> None:
    workers = {Role.PREFILL: (source,), Role.DECODE: (target,)}
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        tiny,
        workers,
        fabric=fabric,
        pages=256,
        max_model_len=4096,
        prefix_caching=True,
        fetch_back=mode,
    )
    try:
        pair = fleet.pair(source, target)
        prompt, held, turns = some(LONG, 0), 0, []
        for turn in range(3):
            prompt += some(QUESTION, 1 + turn)
            before = fleet.books()
            answer = fleet.answer(fleet.begin(pair, prompt, ANSWER))
            fleet.settle()
            after = fleet.books()
            done = prefill(after).since(prefill(before))
            due = back(held, target.page, len(prompt)) if mode is not FetchBack.NEVER else 0
            assert (done.asked, done.found) == (len(prompt), 0), "its cache was emptied"
            assert done.borrowed == due
            assert done.read == due * TOKEN_BYTES, "each byte once, and no other"
            new = -(-len(prompt) // BLOCK) * BLOCK - back(held, target.page, 1 << 30)
            assert decode_read(after) - decode_read(before) == new * TOKEN_BYTES, (
                "it has what it has lent"
            )
            turns.append((list(prompt), answer))
            held = len(prompt) + ANSWER - 1  # the last token drawn is in no page
            prompt += answer
            fleet.reset(Role.PREFILL, source)
        for asked, answer in turns:
            fleet.clear()
            assert fleet.answer(fleet.begin(pair, asked, ANSWER)) == answer, "as without any cache"
            fleet.settle()
    finally:
        fleet.close()
