"""Models with windows or recurrent state between real processes: what decode has at the end of an
answer comes back to prefill, so that the next turn computes the answer's last token and the new
question."""

from pathlib import Path

import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.e2e.reference import Reference
from tests.e2e.test_checkpoints import HOST_BYTES, OPENING, QUESTION, prefill_of, some
from tests.tiny import make_tiny

from baton.cli.main import run
from baton.core.handoff.fetch_back import FetchBack
from baton.shell.settings import Role

TURNS, ANSWER = 3, 40
PAIRS = {
    "gemma3": ("gemma3", Layout(1), Layout(1)),
    "qwen3_next": ("qwen3_next", Layout(1), Layout(1)),
    "qwen3_5": ("qwen3_5", Layout(1), Layout(1)),
    "gemma3, tp 2 borrows of pages of 64": ("gemma3", Layout(2), Layout(1, page=64)),
    "gemma3, pages of 64 borrow of tp 2": ("gemma3", Layout(1, page=64), Layout(2)),
    "qwen3_5, pp 2 lends": ("qwen3_5", Layout(1), Layout(1, 2)),
}


@pytest.mark.parametrize("forgets", [False, True], ids=["", "prefill forgets"])
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.timeout(300)
def test_the_next_turn_goes_on_where_decode_has_ended(
    tmp_path: Path, nursery: Nursery, name: str, forgets: bool
) -> None:
    """`forgets`: prefill's cache is emptied after each turn, so that all of it comes back."""
    family, source, target = PAIRS[name]
    path = make_tiny(tmp_path / "model", family, num_hidden_layers=4)
    reference, journals = Reference(path), tmp_path / "journals"
    journals.mkdir()
    # before there are processes that wait for an answer of this one
    prompts, answers = [some(OPENING, 3)], []
    for turn in range(TURNS + 1):
        answers.append(reference.answer(prompts[-1], ANSWER))
        prompts.append([*prompts[-1], *answers[-1], *some(QUESTION, 10 + turn)])
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        path,
        {Role.PREFILL: (source,), Role.DECODE: (target,)},
        pages=256,
        max_model_len=1024,
        prefix_caching=True,
        host_kv_bytes=HOST_BYTES,
        fetch_back=FetchBack.ALWAYS,
        record=journals,
    )
    try:
        pair = fleet.pair(source, target)
        held = own = 0
        for turn, prompt in enumerate(prompts[:TURNS]):
            fleet.settle()
            before = prefill_of(fleet).counters.cache
            said = fleet.answer(fleet.begin(pair, prompt, ANSWER))
            assert said == answers[turn], f"turn {turn}"
            fleet.settle()
            after = prefill_of(fleet).counters.cache
            found = after.hits - before.hits
            assert found == own // source.page * source.page, f"turn {turn}"
            # counted in whole blocks
            back = after.borrowed_tokens - before.borrowed_tokens
            assert back == (held - found) // 16 * 16, f"turn {turn}"
            own, held = 0 if forgets else len(prompt), len(prompt) + ANSWER - 1
            if forgets:
                fleet.reset(Role.PREFILL, source)
        events = prefill_of(fleet).counters.events
        assert events["checkpoint_borrowed"] == TURNS - 1
        assert not events.get("checkpoint_unusable")
        assert not events.get("borrowed_in_vain")
        # what decode has lost costs time only
        fleet.reset(Role.DECODE, target)
        fleet.reset(Role.PREFILL, source)
        said = fleet.answer(fleet.begin(pair, prompts[TURNS], ANSWER))
        assert said == answers[TURNS]
        fleet.settle()
        assert prefill_of(fleet).counters.events["checkpoint_borrowed"] == TURNS - 1
        fleet.clear()
    finally:
        fleet.close()
    for journal in sorted(journals.iterdir()):
        assert run(["replay-log", str(journal)]) == 0, journal.name
