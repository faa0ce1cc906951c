"""One row of the registry for each kind of state: nothing of a table is forgotten, and a new kind
needs no more than its row."""

from collections.abc import Sequence
from typing import ClassVar

import msgspec
import numpy as np
import pytest
import torch
from tests.engine.rig import MemoryPool

from baton.cli.supported import ANY
from baton.core.errors import Bug
from baton.core.ids import GroupName
from baton.core.memory.state import DType, Full, Group, Placement, StateSpec, StateTable, Unit
from baton.engine.attention.index import with_fp8_index
from baton.engine.attention.interface import AttentionMetadata, Rows, Segment
from baton.engine.attention.registry import CPU, REFERENCE, Backends, Registry
from baton.engine.kernels.team import Team
from baton.engine.models import FAMILIES
from baton.ports.fabric import Pool

FULL = GroupName("full")


class SumRows(msgspec.Struct, frozen=True):
    """Numbers that are summed: float32 [rows]."""

    x: torch.Tensor

    def at(self, index: slice | torch.Tensor) -> "SumRows":
        return SumRows(self.x[index])

    def new_out(self) -> torch.Tensor:
        return torch.full_like(self.x, 7.0)


class SumBackend:
    """A new kind of state: each block holds what was added to it, and a row's answer is the sum so
    far."""

    rows: ClassVar[type[Rows]] = SumRows
    beside: ClassVar[Sequence[str]] = ()

    def __init__(self, pool: Pool, placement: Placement, spec: str, team: Team) -> None:
        self.sums = dict.fromkeys(placement.places[spec].layers, 0.0)
        self.warmed = False

    def warm(self) -> None:
        self.warmed = True

    def attend(
        self, rows: SumRows, *, layer: int, metadata: AttentionMetadata, out: torch.Tensor
    ) -> None:
        assert len(rows.x) == len(out) == len(metadata.slot_mapping)
        out.copy_(rows.x.cumsum(0) + layer)


def placement_of(*specs: StateSpec) -> Placement:
    layers = 1 + max(layer for spec in specs for layer in spec.layers)
    return Placement(
        StateTable(layers, 16, (Group(FULL, Unit.PAGE, Full()),), specs), 1, 1, 0, 0, 1
    )


def build(placement: Placement, registry: Registry) -> Backends:
    return Backends(
        {g.name: MemoryPool(2 * placement.page_bytes(g.name)) for g in placement.table.groups},
        placement,
        registry,
    )


@pytest.mark.parametrize("registry", [CPU, REFERENCE], ids=["compiled", "plain"])
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_state_of_every_family_is_kept_by_a_backend(
    family: object, registry: Registry
) -> None:
    table = family.table(ANY, block_tokens=16, dtype=DType.BF16)
    tables = (
        [table, with_fp8_index(table)] if any(s.name == "index.k" for s in table.specs) else [table]
    )
    for served in tables:
        placement = Placement(served, 1, 1, 0, 0, 1)
        assert build(placement, registry).groups == {g.name for g in served.groups}


def test_a_state_that_no_backend_keeps_is_refused() -> None:
    placement = placement_of(StateSpec("sum", FULL, (0, 1), ("x",), 1, 4, DType.F32))
    with pytest.raises(Bug, match="sum"):
        build(placement, CPU)


def test_a_new_kind_of_state_is_one_row_and_may_share_a_layer() -> None:
    """Layers 0 and 1 attend, 1 and 2 sum; rows behind those of the segments are padding."""
    attending = StateSpec("kv", FULL, (0, 1), ("k", "v"), 1, 4, DType.F32)
    placement = placement_of(attending, StateSpec("sum", FULL, (1, 2), ("x",), 1, 4, DType.F32))
    backends, asked = build(placement, {**REFERENCE, "sum": SumBackend}), []
    backends.warm()
    segment = Segment(first=0, count=2, start=0, block_table=np.zeros(1, dtype=np.int32))
    attend = backends.over(
        {FULL: AttentionMetadata([segment], torch.arange(2))}, lambda: asked.append(1)
    )
    rows = SumRows(torch.tensor([1.0, 2.0, 5.0]))
    assert attend(rows, 1).tolist() == [1.0, 3.0, 0.0]
    assert attend(rows, 2).tolist() == [2.0, 4.0, 0.0]
    with pytest.raises(KeyError):
        attend(rows, 0)
    assert len(asked) == 3
