"""Steps that are timed have pages of their own, inside the pools."""

import numpy as np
import pytest
from tests.tiny import make_tiny

from baton.core.memory.state import DType, Unit
from baton.dev.profiling.engine_steps import B, StepShape, TimedModel, shapes
from baton.dev.profiling.measuring import BESIDE

WANTED = [*shapes(64, 256), *BESIDE]


@pytest.fixture(scope="module", params=["llama", "gemma3", "qwen3_next"])
def model(request, tmp_path_factory):
    path = make_tiny(tmp_path_factory.mktemp("tiny"), request.param)
    found = TimedModel(path, DType.F32, threads=1, step_tokens=128, wanted=WANTED)
    yield found
    found.close()


@pytest.mark.parametrize("shape", WANTED, ids=str)
def test_every_sequence_has_its_own_state(model, shape, monkeypatch):
    """Rows that shared pages would find each other's in a cache, and seem to take less time."""
    batches, submit = [], model._engine.submit
    monkeypatch.setattr(model._engine, "submit", lambda b: (batches.append(b), submit(b)))
    assert model.step_us(shape) > 0
    (batch,) = batches
    assert sum(len(row.tokens) for row in batch.rows) == shape.tokens + shape.rows
    for group in model.placement.table.groups:
        used = np.concatenate([row.pages[group.name] for row in batch.rows])
        assert len(used) == len(set(used.tolist()))
        there = model._pools[group.name].nbytes // model.placement.page_bytes(group.name)
        assert 0 <= used.min() <= used.max() < there
        for row in batch.rows:
            begin = row.begins.get(group.name, 0)
            blocks = begin + len(row.pages[group.name])
            if group.unit is Unit.PAGE:
                assert blocks == -(-(row.start + len(row.tokens)) // B)


def test_steps_of_many_answers_take_no_more_memory_than_long_ones():
    most = max(shape.pages for shape in shapes(512, 1024))
    assert most * B <= 17 * 1024
    assert StepShape(tokens=16, start=8, rows=3, context=17).pages == 3 * 2 + 2
