"""A service whose processes are killed and restarted while clients ask, as `baton chaos` does it."""

from pathlib import Path

import pytest

from baton.dev.chaos.run import ChaosSettings, run

FLAGS = ("--kv-pages", "300", "--threads", "1")


@pytest.mark.timeout(180)
def test_no_client_sees_that_a_worker_was_killed(tiny: Path) -> None:
    """There is one worker of each role: what runs on it waits for the next one."""
    report = run(
        ChaosSettings(
            model=str(tiny),
            seconds=6,
            prefill=1,
            decode=1,
            cases=8,
            kinds=("kill",),
            victims=("prefill", "decode"),
            flags=FLAGS,
        )
    )
    assert report.complaints == ()
    assert sum(fault.count for fault in report.figures.faults.values()) >= 1
    assert report.figures.whole == report.figures.requests


@pytest.mark.timeout(240)
def test_no_client_sees_that_a_gateway_was_restarted(tiny: Path) -> None:
    """There is another one behind the port."""
    report = run(
        ChaosSettings(
            model=str(tiny),
            seconds=8,
            gateways=2,
            prefill=1,
            decode=1,
            cases=8,
            kinds=("restart",),
            victims=("gateway",),
            flags=FLAGS,
        )
    )
    assert report.complaints == ()
    assert report.figures.faults["restart gateway"].count >= 1
    assert report.figures.whole == report.figures.requests
