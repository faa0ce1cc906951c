"""Ranks join their leader over real sockets, before the worker's pump runs."""

from contextlib import contextmanager
from types import SimpleNamespace

import msgspec
import pytest

from baton.adapters.clock import MonotonicClock
from baton.adapters.zmq_control import ZmqControl
from baton.core.errors import ConfigError, PeerError
from baton.core.frames import Join
from baton.core.ids import Boot, GroupName, Micros
from baton.core.manifest import Manifest, RankManifest
from baton.core.memory.state import DType, Full, Group, StateSpec, StateTable, Unit
from baton.core.session.session import SessionLimits, Sessions
from baton.shell.lines import Lines
from baton.shell.narration import Narration
from baton.shell.rank_assembly import gather_ranks
from baton.shell.rank_pump import RankPump
from baton.shell.wake import sleep_until
from baton.wire.codec import MAX_FRAME_BYTES

FULL = GroupName("full")
TABLE = StateTable(
    2,
    16,
    (Group(FULL, Unit.PAGE, Full()),),
    (StateSpec("kv", FULL, (0, 1), ("k", "v"), 2, 8, DType.F32),),
)
CLOCK, LONG = MonotonicClock(), Micros(20_000_000)
IDLE = SimpleNamespace(poll=lambda: False, report=lambda: None, timer=lambda: None)


def seen_by(rank, **fields):
    own = RankManifest(Boot(10 + rank), rank, rank, 0, (), {})
    made = Manifest(1, "decode", "m", "aa", "float32", TABLE, 1, 3, 1, 512, True, (own,))
    return msgspec.structs.replace(made, **fields)


@contextmanager
def crew(*joins):
    """A leader's lines, and what turns the pumps of the others."""
    control = ZmqControl(bind="tcp://127.0.0.1:0", keys=None, max_frame_bytes=MAX_FRAME_BYTES)
    leader = Lines(Sessions(Boot(10), SessionLimits()), control, CLOCK)
    others = []
    for manifest in joins:
        line = Lines(
            Sessions(manifest.ranks[0].boot, SessionLimits()),
            ZmqControl(bind=None, keys=None, max_frame_bytes=MAX_FRAME_BYTES),
            CLOCK,
        )
        pump = RankPump(
            rank=IDLE,
            join=Join(
                manifest, pid=100 + manifest.ranks[0].rank, host_bytes=10 + manifest.ranks[0].rank
            ),
            lines=line,
            clock=CLOCK,
            leader=None,
            address=control.bound_address,
            narration=Narration(),
        )
        others.append((pump, line))

    def gather(patience=LONG):
        return gather_ranks(
            seen_by(0),
            leader,
            CLOCK,
            sleep=lambda us: sleep_until((control.fileno(),), Micros(min(us, 5_000))),
            patience=patience,
            look=lambda: [pump.turn() for pump, _ in others],
        )

    try:
        yield gather
    finally:
        for _, line in others:
            line.close()
        leader.close()


def test_a_worker_is_whole_when_every_rank_has_joined():
    with crew(seen_by(2), seen_by(1)) as gather:
        whole, pids, host_bytes = gather()
        assert [r.boot for r in whole.ranks] == [10, 11, 12]
        assert pids == (101, 102)
        assert host_bytes == (11, 12)


def test_a_rank_with_other_weights_ends_the_start():
    with (
        crew(seen_by(1), seen_by(2, weights="bb")) as gather,
        pytest.raises(ConfigError, match="weights: 'bb'"),
    ):
        gather()


def test_ranks_that_do_not_come_are_named():
    with (
        crew(seen_by(1)) as gather,
        pytest.raises(PeerError, match=r"rank\(s\) \[2\] of this " r"worker have not joined"),
    ):
        gather(Micros(400_000))
