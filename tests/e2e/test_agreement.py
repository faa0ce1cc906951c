"""Ranks of one worker agree: when state arrives late on one of them, and when one has been told
something else."""

import time
from collections import deque
from itertools import takewhile
from pathlib import Path
from statistics import median

import numpy as np
import pytest
from tests.e2e.fleet import Fleet, Layout
from tests.e2e.nursery import Nursery
from tests.e2e.service import alive
from tests.faults import Fault, Faults, Rule
from tests.tiny import make_tiny

from baton.core.agreement import StepPlan
from baton.core.door import RequestId
from baton.shell.settings import Role
from baton.trace.coding import records
from baton.trace.log import Step

REQUESTS, AT_ONCE = 200, 16
ONE = Layout()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose heads four ranks can share."""
    return make_tiny(tmp_path_factory.mktemp("wide") / "model", num_key_value_heads=4)


def applied(journal: Path) -> list[StepPlan]:
    """The plans that a rank was given, in order, until its peer goes: then the fleet is ending, and
    some ranks have ended."""
    steps = [record for _, record in records([journal.read_bytes()])]
    plans = (s.event for s in steps if isinstance(s, Step) and isinstance(s.event, StepPlan))
    return list(takewhile(lambda plan: not plan.disconnect, plans))


@pytest.mark.timeout(300)
def test_a_late_arrival_on_one_rank_holds_up_its_own_request_alone(
    tmp_path: Path, nursery: Nursery, model: Path
) -> None:
    """Every rank applies the same plans, no request commits before the late rank has its part, and
    batches go on meanwhile."""
    widths, journals = (Layout(2), Layout(4)), tmp_path / "journals"
    journals.mkdir()
    late = Faults((Rule(Fault.DELAY, delay_ms=150),))
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        model,
        {Role.PREFILL: (ONE,), Role.DECODE: (ONE, *widths)},
        pages=200,
        record=journals,
        hurt={(Role.DECODE, wide): {"victim": wide.tp - 1, "faults": late} for wide in widths},
    )
    try:
        answers = {decode: answer_all(fleet, decode) for decode in (ONE, *widths)}
        fleet.settle()
    finally:
        fleet.close()
    for wide in widths:
        assert answers[wide] == answers[ONE], f"{wide}"
        names = [f"decode {wide}" + (f"-rank{r}" if r else "") for r in range(wide.tp)]
        plans, *others = [applied(journals / f"{name}.baton-log") for name in names]
        assert all(other == plans for other in others), f"{wide}"
        fetched = {
            fetch.key: number
            for number, plan in reversed(list(enumerate(plans)))
            for fetch in plan.fetch
        }
        committed = {key: number for number, plan in enumerate(plans) for key in plan.commit}
        assert len(committed) == REQUESTS
        meanwhile = [
            sum(bool(plan.batch) for plan in plans[fetched[key] : at])
            for key, at in committed.items()
        ]
        assert median(meanwhile) >= 2, f"{wide}: the running requests went on"


def answer_all(fleet: Fleet, decode: Layout) -> list[list[int]]:
    """Every request's tokens, AT_ONCE of them at a time."""
    pair = fleet.pair(ONE, decode)
    asked: deque[RequestId] = deque()
    found = []
    for number in range(REQUESTS):
        if len(asked) == AT_ONCE:
            found.append(fleet.answer(asked.popleft()))
        prompt = np.random.default_rng(number).integers(0, 300, 20 + number % 30).tolist()
        asked.append(fleet.begin(pair, prompt, 5 + number % 17))
    return found + [fleet.answer(request) for request in asked]


def test_a_rank_that_was_told_something_else_is_named_and_the_worker_ends(
    tmp_path: Path, nursery: Nursery, model: Path
) -> None:
    wide = Layout(2)
    fleet = Fleet(
        nursery,
        tmp_path / "logs",
        model,
        {Role.PREFILL: (ONE,), Role.DECODE: (wide,)},
        hurt={(Role.DECODE, wide): {"victim": 1, "garbles": 3}},
    )
    try:
        (view,) = [v for v in fleet.books() if v.role == "decode"]
        pids = [rank.pid for rank in view.ranks]
        assert len(set(pids)) == len(pids) == 2
        fleet.begin(fleet.pair(ONE, wide), range(40), 30)
        log = tmp_path / "logs" / f"decode {wide}.log"
        until = time.monotonic() + 30
        while any(alive(pid) for pid in pids):
            fleet.turn()
            assert time.monotonic() < until, log.read_text()[-2000:]
        (culprit,) = [rank.boot for rank in view.ranks if rank.rank == 1]
        assert f"rank 1 (boot {culprit:x}) diverged at plan" in log.read_text()
    finally:
        fleet.close()
