"""Collectives among ranks, each in a thread of its own: sums, gathered columns, hidden states from
stage to stage, losses."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import distributed as dist

from baton.core.errors import PeerError
from baton.core.ids import GroupName
from baton.core.memory.state import DType, Full, Group, Placement, StateSpec, StateTable, Unit
from baton.engine.comm import Alone, GlooComm

FULL = GroupName("full")
TABLE = StateTable(
    3,
    4,
    (Group(FULL, Unit.PAGE, Full()),),
    (StateSpec("kv", FULL, (0, 1, 2), ("k", "v"), 4, 8, DType.F32),),
)


def fleet(tp, pp, act, timeout_s=20.0):
    """act(comm, rank) in one thread for each rank; what they return."""
    store, comms = dist.HashStore(), []

    def one(rank):
        placement = Placement(TABLE, tp, pp, rank % tp, rank // tp, 1)
        comm = GlooComm(placement, store, host="127.0.0.1", timeout_s=timeout_s)
        comms.append(comm)  # a group that is collected takes its connections with it
        return act(comm, rank)

    with ThreadPoolExecutor(tp * pp) as pool:
        return [f.result() for f in [pool.submit(one, r) for r in range(tp * pp)]]


def mine(rank, rows=3, columns=5):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(rank))


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (4, 1), (2, 2)])
def test_sums_are_over_the_stage_and_have_the_same_bits_on_every_rank(tp, pp):
    found = fleet(tp, pp, lambda comm, rank: comm.add_up(mine(rank)))
    for stage in range(pp):
        ranks = range(stage * tp, (stage + 1) * tp)
        torch.testing.assert_close(found[ranks[0]], sum(mine(r) for r in ranks))
        assert all(torch.equal(found[r], found[ranks[0]]) for r in ranks)


def test_columns_are_gathered_at_the_first_rank_of_the_stage_in_its_order():
    found = fleet(2, 2, lambda comm, rank: comm.gather(mine(rank)))
    assert found[1] is found[3] is None
    assert torch.equal(found[0], torch.cat((mine(0), mine(1)), -1))
    assert torch.equal(found[2], torch.cat((mine(2), mine(3)), -1))


def test_hidden_states_go_down_the_stages_in_order_and_nobody_waits_for_those_behind():
    first_is_through = threading.Event()

    def act(comm, rank):
        assert (comm.first, comm.last) == (rank < 2, rank >= 4)
        got = []
        for n in range(2):
            x = (
                torch.full((2, 3), 10.0 * rank + n)
                if comm.first
                else comm.receive(torch.empty(2, 3)).clone()
            )
            got.append(x[0, 0].item())
            if not comm.last:
                comm.send(x + 100)
            if comm.last and n == 0:
                # the first stage has sent both before the last one takes its second
                assert first_is_through.wait(10)
        if comm.first:
            first_is_through.set()
        return got

    found = fleet(2, 3, act)
    assert found == [[0, 1], [10, 11], [100, 101], [110, 111], [200, 201], [210, 211]]


def test_a_lost_rank_ends_the_call_of_the_others():
    def act(comm, rank):
        comm.add_up(mine(rank))
        if rank == 1:
            comm.close()
            return "gone"
        with pytest.raises(PeerError, match="lost while it computed"):
            comm.add_up(mine(rank))
        return "noticed"

    assert fleet(2, 1, act) == ["noticed", "gone"]


def test_ranks_that_do_not_come_are_reported():
    comm = GlooComm(
        Placement(TABLE, 2, 1, 0, 0, 1), dist.HashStore(), host="127.0.0.1", timeout_s=0.3
    )
    with pytest.raises(PeerError, match="did not find each other"):
        comm.add_up(mine(0))


def test_a_rank_that_has_left_takes_part_no_more():
    comm = GlooComm(
        Placement(TABLE, 2, 1, 0, 0, 1), dist.HashStore(), host="127.0.0.1", timeout_s=20
    )
    comm.close()
    with pytest.raises(PeerError, match="has left its worker"):
        comm.add_up(mine(0))


def test_one_rank_alone_sums_and_gathers_what_it_has():
    comm, x = Alone(), mine(0)
    assert comm.add_up(x) is x
    assert comm.gather(x) is x
