"""The tool that measures exposed transfer: what it keeps back, what it reads from a log, and the
table it prints."""

from typing import Any

import msgspec
import pytest
from tests.core.build import KV, submit
from tests.core.world import World, expected

import exposed_transfer as tool
from baton.core.messages import Offer
from baton.core.scheduler import roles

PROMPT = tuple(range(1, 23))  # six blocks of four tokens, in three chunks


@pytest.mark.parametrize(
    ("priority", "runs"), [(0, [(0, 2), (2, 4), (4, 6)]), (tool.LATE, [(0, 6)])]
)
def test_a_prompt_is_offered_late_as_a_whole_and_computed_in_the_same_chunks(
    monkeypatch: pytest.MonkeyPatch, priority: int, runs: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(roles, "Offering", tool.OffersLate)
    world = World()
    prefill = world.add("prefill", 2, step_tokens=8, last_chunk_tokens=8)
    world.add("decode", 3)
    world.run()
    chunks: list[int] = []
    compute = prefill.engine.compute
    prefill.engine.compute = lambda batch: (
        chunks.extend(len(r.tokens) for r in batch.rows) or compute(batch)
    )  # type: ignore[method-assign]
    world.submit(msgspec.structs.replace(submit(1, PROMPT, max_tokens=4), priority=priority))
    world.run()
    offers = [m for _, _, m in world.log if isinstance(m, Offer) and m.runs]
    assert [(m.runs[KV].start, m.runs[KV].end) for m in offers] == runs
    assert offers[-1].record is not None
    assert chunks == [8, 8, 6]
    assert world.tokens(1) == expected(PROMPT, 4)
    assert world.clean


class Logged:
    """A service that has written this log by the time a request has ended."""

    def __init__(self, *written: tuple[str, dict[str, Any]]) -> None:
        self.lines: list[str] = []
        self._written = written

    def stream(self, prompt: Any, *, max_tokens: int, priority: int) -> list[float]:
        return [0.25, 0.3, 0.31]

    def events(self, name: str) -> list[dict[str, Any]]:
        return [fields for event, fields in self._written if event == name]


def at(worker: str, t_us: int, **more: object) -> dict[str, Any]:
    return {"worker": worker, "t_us": str(t_us), **more}


def test_exposed_is_from_the_end_of_the_last_chunk_to_the_commit() -> None:
    log = (
        ("offered", at("prefill-0", 5, number="0")),
        ("step_computed", at("prefill-0", 1_000)),
        ("offered", at("prefill-0", 1_100, number="1")),
        ("read_started", at("decode-0", 1_200, bytes="700")),
        ("step_computed", at("prefill-0", 2_000)),
        ("offered", at("prefill-0", 2_100, number="2")),
        ("read_started", at("decode-0", 2_300, bytes="50")),
        ("read_started", at("decode-0", 2_400, bytes="8")),
        ("received", at("decode-0", 4_500)),
        ("step_computed", at("decode-0", 9_000)),
        ("step_computed", at("prefill-0", 9_500)),  # somebody else's
        ("ended", at("prefill-0", 4_700)),
    )
    assert tool.one(Logged(*log), (1, 2), "overlap") == tool.Handoff(2_500, 58, 2, 250.0)  # type: ignore[arg-type]


def test_the_table_has_the_form_of_the_page() -> None:
    row = {"fabric": "shm", "prompt": 2048}
    ways = {"overlap": (2.0, 2.5, 11.8), "without": (8.0, 9.0, 47.2)}
    figures = {
        w: {"exposed_p50_ms": a, "exposed_p90_ms": b, "mbytes": c} for w, (a, b, c) in ways.items()
    }
    assert (
        tool.table([row | figures]).splitlines()[-1] == "| shm | 2,048 | 11.8 of 47.2 MB | "
        "2.0 / 2.5 ms | 8.0 / 9.0 ms | 0.25 |"
    )
