"""Cores among workers."""

import os

import pytest

from baton.core.errors import ConfigError
from baton.shell.threads import CpuShare, available_cores, divide, pin, together, warning


@pytest.mark.parametrize(
    ("cores", "workers", "threads", "shares"),
    [
        ((0, 1), 2, None, [(0,), (1,)]),
        ((0, 1), 1, None, [(0, 1)]),
        ((0, 1, 2, 3, 4), 2, None, [(0, 1, 2), (3, 4)]),
        ((4, 6, 9), 2, None, [(4, 6), (9,)]),
        ((0, 1, 2, 3, 4, 5, 6, 7), 3, None, [(0, 1, 2), (3, 4, 5), (6, 7)]),
        ((0, 1, 2, 3), 2, 1, [(0,), (1,)]),
        ((0, 1), 3, None, [(0,), (1,), (0,)]),
        ((0,), 2, None, [(0,), (0,)]),
        ((0, 1), 2, 2, [(0, 1), (0, 1)]),
        ((0, 1, 2), 2, 2, [(0, 1), (0, 2)]),
        ((0, 1), 1, 4, [(0, 1)]),
    ],
)
def test_division(cores, workers, threads, shares):
    divided = divide(cores, workers=workers, threads=threads)
    assert [share.cores for share in divided] == shares
    assert all(share.threads == (threads or len(share.cores)) for share in divided)


def test_no_core_is_shared_or_left_over_while_there_are_enough():
    for total in range(1, 20):
        for workers in range(1, total + 1):
            dealt = [
                core
                for share in divide(range(total), workers=workers, threads=None)
                for core in share.cores
            ]
            assert sorted(dealt) == list(range(total))


def test_ranks_of_one_worker_share_what_they_have_together():
    assert together([CpuShare((0, 1), 2), CpuShare((2,), 1)]) == CpuShare((0, 1, 2), 1)


def test_no_thread_is_refused():
    with pytest.raises(ConfigError, match="0 threads"):
        divide((0, 1), workers=1, threads=0)


@pytest.mark.parametrize(
    ("workers", "threads", "warned"),
    [(2, None, False), (2, 1, False), (3, None, True), (2, 2, True)],
)
def test_the_operator_is_warned_of_too_many_threads(workers, threads, warned):
    line = warning(divide((0, 1), workers=workers, threads=threads), cores=2)
    assert (line is not None) is warned
    if line is not None:
        assert f"{workers} workers" in line
        assert "2 cores" in line


def test_pinning_binds_this_process():
    before = os.sched_getaffinity(0)
    try:
        pin(())
        assert os.sched_getaffinity(0) == before
        pin((available_cores()[-1],))
        assert available_cores() == (max(before),)
    finally:
        os.sched_setaffinity(0, before)


def test_a_core_that_is_not_there_is_refused():
    with pytest.raises(ConfigError, match=r"cannot pin to cores \[100000\]"):
        pin((100_000,))
