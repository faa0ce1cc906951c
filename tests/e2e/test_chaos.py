"""A service that is hurt while clients ask, as `baton chaos` does it."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.networks import needs

from baton.cli.main import run as command
from baton.dev.chaos import history
from baton.dev.chaos.clients import Habits
from baton.dev.chaos.run import ChaosSettings, run, sentence

FLAGS = ("--kv-pages", "300", "--threads", "1")


def settings_of(model: Path, **more: Any) -> ChaosSettings:
    """A run with one worker of each role."""
    return ChaosSettings(model=str(model), prefill=1, decode=1, cases=8, flags=FLAGS, **more)


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.timeout(180)
def test_no_client_sees_that_a_worker_was_killed(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """There is one worker of each role: what runs on it waits for the next one.

    A complaint is planted. So the recordings stay, of the killed and of who came after, and every
    one can be replayed.
    """
    right = history.complaints
    monkeypatch.setattr(history, "complaints", lambda *a, **k: [*right(*a, **k), "planted: here"])
    report = run(settings_of(tiny, seconds=6, kinds=("kill",), victims=("prefill", "decode")))
    assert report.complaints == ("planted: here",)
    assert sum(fault.count for fault in report.figures.faults.values()) >= 1
    assert report.figures.whole == report.figures.requests

    assert report.recordings is not None
    assert sentence(report)[-1].startswith(
        f"recordings of all processes are in {report.recordings};"
    )
    logs = {
        path.name.removesuffix(".baton-log"): path for path in Path(report.recordings).iterdir()
    }
    once = {"gateway", "prefill-0", "decode-0"}
    assert once < set(logs) <= once | {f"{name}.{n}" for name in once for n in range(2, 20)}
    for path in logs.values():
        assert command(["replay-log", str(path)]) == 0, path.name
    capsys.readouterr()


@pytest.mark.timeout(240)
def test_no_client_sees_that_a_gateway_was_restarted(tiny: Path, tmp_path: Path) -> None:
    """There is another one behind the port."""
    report = run(
        settings_of(
            tiny,
            seconds=8,
            gateways=2,
            kinds=("restart",),
            victims=("gateway",),
        )
    )
    assert report.complaints == ()
    assert report.figures.faults["restart gateway"].count >= 1
    assert report.figures.whole == report.figures.requests
    assert report.recordings is None
    assert list(tmp_path.iterdir()) == [], "nothing is left of a run that was well"


@pytest.mark.timeout(400)
def test_who_leaves_or_reads_slowly_hurts_nobody_and_damaged_memory_is_not_used(tiny: Path) -> None:
    report = run(
        settings_of(
            tiny,
            seconds=6,
            clients=6,
            habits=Habits(leaving=0.3, slow=0.2),
            kinds=("corrupt",),
            victims=("prefill", "decode"),
            verify_s=1.0,
        )
    )
    assert report.complaints == ()
    assert sum(fault.evidence for fault in report.figures.faults.values()) >= 1
    assert report.figures.left >= 1
    assert report.figures.slow >= 1
    assert report.figures.whole == report.figures.requests - report.figures.left


@pytest.mark.skipif(
    importlib.util.find_spec("libfaketime") is None, reason="needs the package libfaketime"
)
@pytest.mark.timeout(240)
def test_no_client_sees_that_the_wall_clock_jumped(tiny: Path) -> None:
    report = run(settings_of(tiny, seconds=4, kinds=("clock",)))
    assert report.complaints == ()
    fault = report.figures.faults["clock machine"]
    assert fault.evidence == 3 * fault.count > 0  # the gateway, and a worker of each role
    assert report.figures.whole == report.figures.requests


@needs("nft", "tc")
@pytest.mark.skipif(not os.path.exists("/dev/net/tun"), reason="the kernel has no tunnels")
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["partition", "loss", "bandwidth"])
def test_no_client_sees_what_befell_the_network_to_another_machine(
    tiny: Path, tmp_path: Path, kind: str
) -> None:
    """In a process of its own, which moves to another network."""
    report = tmp_path / "report.json"
    flags = ["--minutes", "0.1", "--prefill", "1", "--decode", "1", "--kinds", kind]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "baton", "chaos", str(tiny), *flags, *FLAGS),
            *("--json", str(report)),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(report.read_text())["figures"]
    fault = figures["faults"][f"{kind} cable"]
    assert fault["count"] >= 1
    assert fault["evidence"] >= 1 or kind == "partition"
    assert figures["whole"] == figures["requests"]
