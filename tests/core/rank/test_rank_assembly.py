"""Ranks come together: in any order, each once, and only those that fit."""

from itertools import permutations

import msgspec
import pytest

from baton.core.errors import ConfigError
from baton.core.frames import Join
from baton.core.ids import Boot, GroupName
from baton.core.manifest import Manifest, RankManifest
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit
from baton.core.rank.rank_assembly import RankAssembly

FULL = GroupName("full")
TABLE = StateTable(
    2,
    16,
    (Group(FULL, Unit.PAGE, Full()),),
    (StateSpec("kv", FULL, (0, 1), ("k", "v"), 2, 8, DType.F32),),
)


def seen_by(rank, **fields):
    """The worker as this rank sees it."""
    own = RankManifest(Boot(10 + rank), rank, rank % 2, rank // 2, (), {})
    made = Manifest(1, "decode", "m", "aa", "float32", TABLE, 1, 2, 2, 512, True, (own,))
    return msgspec.structs.replace(made, **fields)


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_a_worker_is_whole_when_all_have_joined_in_any_order(order):
    assembly = RankAssembly(seen_by(0))
    for n, rank in enumerate(order):
        assert assembly.whole is None
        assert assembly.missing == sorted(order[n:])
        assembly.take(Boot(10 + rank), Join(seen_by(rank), pid=100 + rank, host_bytes=200 + rank))
        assert assembly.rank_of(Boot(10 + rank)) == rank
    assert [r.boot for r in assembly.whole.ranks] == [10, 11, 12, 13]
    assert assembly.pids == (101, 102, 103)
    assert assembly.host_bytes == (201, 202, 203)
    assert msgspec.structs.replace(assembly.whole, ranks=seen_by(0).ranks) == seen_by(0)


@pytest.mark.parametrize(
    ("sender", "joins", "said"),
    [
        (11, seen_by(1, weights="bb"), r"weights: 'bb', and 'aa' at rank 0"),
        (11, seen_by(1, dtype="bfloat16"), "dtype: 'bfloat16', and 'float32'"),
        (11, seen_by(1, page_blocks=2), "page_blocks: 2, and 1"),
        (11, seen_by(1, tp=4, pp=1), "tp: 4, and 2"),
        (
            11,
            seen_by(1, table=msgspec.structs.replace(TABLE, block_tokens=8)),
            "differs from rank 0 in table",
        ),
        (10, seen_by(0), r"joins as rank 0; rank\(s\) \[1, 2, 3\] of 4"),
        (12, seen_by(1), r"boot c joins as \[1\]"),
        (11, seen_by(1, ranks=(*seen_by(1).ranks, *seen_by(2).ranks)), r"boot b joins as \[1, 2\]"),
        (17, seen_by(7), r"joins as rank 7"),
    ],
)
def test_who_does_not_fit_is_refused_by_field_and_values(sender, joins, said):
    with pytest.raises(ConfigError, match=said):
        RankAssembly(seen_by(0)).take(Boot(sender), Join(joins, pid=1))


def test_a_rank_joins_once():
    assembly = RankAssembly(seen_by(0))
    assembly.take(Boot(11), Join(seen_by(1), pid=1))
    with pytest.raises(ConfigError, match=r"rank\(s\) \[2, 3\] of 4 miss"):
        assembly.take(Boot(11), Join(seen_by(1), pid=1))
