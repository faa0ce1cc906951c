"""Every row of every kind of state of every family, each byte of it: out of its pages into host
memory, and back into others; and over to workers that lay it out otherwise. A family comes here by
its row in the table of families, a spec by its row in the family's table.
"""

import contextlib
from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from tests.core.handoff.layouts import Layout
from tests.engine.ranks import Worker

from baton.cli.supported import ANY
from baton.core.errors import ConfigError
from baton.core.ids import GroupName
from baton.core.memory.state import DType, Group, StateSpec, StateTable, Unit, Whole
from baton.engine.attention.index import with_fp8_index
from baton.engine.models import FAMILIES

# Heads that 4 ranks divide and heads that they repeat; a window that is neither a block nor a page.
CONFIG = ANY | {
    "hidden_size": 8,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 40,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 4,
    "linear_value_head_dim": 6,
    "num_nextn_predict_layers": 1,
}
ROOMS = {1: 87, 2: 21}  # positions: past the window and within it, neither a block
CHAIN = (Layout(2, 1, 1), Layout(1, 2, 4), Layout(4, 1, 2))
MORE = GroupName("more")


def as_declared() -> Iterator[tuple[str, StateTable]]:
    """Every family's table, and what a flag makes of it."""
    for family in FAMILIES:
        table = family.table(CONFIG, block_tokens=16, dtype=DType.BF16)
        yield family.name, table
        with contextlib.suppress(ConfigError):  # it has no index
            yield f"{family.name}, index in fp8", with_fp8_index(table)
        with contextlib.suppress(ConfigError):  # it has none
            yield f"{family.name}, draft layer", family.with_draft_layer(CONFIG, table)


def with_more(table: StateTable) -> StateTable:
    """A spec more in each group, before most others, of odd sizes; and a group more, of layers of
    its own."""
    groups = {s.group: s.layers for s in table.specs}
    specs = [
        StateSpec(f"more.{g}", g, layers[1:], ("a", "b", "c"), 4, 3, DType.FP8)
        for g, layers in groups.items()
    ]
    own = StateSpec("more", MORE, (table.num_layers, table.num_layers + 1), ("x",), 1, 1, DType.F32)
    first, *others = table.specs
    return replace(
        table,
        num_layers=table.num_layers + 2,
        groups=(*table.groups, Group(MORE, Unit.SLOT, Whole())),
        specs=(first, *specs, *others, own),
    )


TABLES = dict(as_declared())


@pytest.mark.parametrize("more", [False, True], ids=["as declared", "with a spec more"])
@pytest.mark.parametrize("name", TABLES)
def test_every_byte_of_every_kind_of_state_comes_back_and_over(name: str, more: bool) -> None:
    table = with_more(TABLES[name]) if more else TABLES[name]
    workers: list[Worker] = []
    try:
        for layout in CHAIN:
            worker = Worker(table, layout, ROOMS)
            if workers:
                worker.fetch(workers[-1])
            else:
                worker.fill()
            workers.append(worker)
            worker.check("fetched")
            worker.away_and_back()
            worker.check("back from host memory")
    finally:
        for worker in workers:
            worker.close()
