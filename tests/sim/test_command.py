"""`baton sim`: processes, exit codes, the summary, and failing runs that are kept and run again."""

import json
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import msgspec
import pytest
from tests.sim.test_tools import BLIND

from baton.cli.main import run as baton
from baton.core.errors import BatonError, ConfigError
from baton.core.marks import Mark
from baton.dev.cli.simulation import planted, workers
from baton.dev.sim.plants.plant import Plant
from baton.dev.sim.regression import Regression, TapeChoice, decoded, encoded, regression, snippet
from baton.dev.sim.run import PROCESS_ENDED, RunKind, be_silent, run
from baton.dev.sim.tally import Tally

SEEDS = range(3, 7)


@pytest.fixture(autouse=True)
def _silent():
    be_silent()


def some(**changes):
    """An outcome of a calm run, changed."""
    return msgspec.structs.replace(run(script={}), **changes)


@pytest.fixture(scope="module")
def outcomes():
    """What some seeds show in processes with other hash seeds."""
    return {
        n: {o.seed: o for o in workers.run_seeds(SEEDS, jobs=2, planted=None, hash_seed=n)}
        for n in ("1", "2")
    }


def test_the_same_seed_is_the_same_run_under_every_hash_seed(outcomes):
    assert sorted(outcomes["1"]) == list(SEEDS)
    assert {s: o.trace for s, o in outcomes["1"].items()} == {
        s: o.trace for s, o in outcomes["2"].items()
    }
    assert len({o.trace for o in outcomes["1"].values()}) == len(SEEDS)
    assert outcomes["1"][SEEDS[0]].trace == run(SEEDS[0]).trace


# ---- processes -----------------------------------------------------------------------------------

DYING = """
import os, sys, msgspec
from baton.dev.sim.run import be_silent, run
be_silent()
calm = run(script={})
print(flush=True)
for line in sys.stdin:
    for seed in msgspec.json.decode(line):
        if seed % 5 == 2:
            os.kill(os.getpid(), 11)
        print(msgspec.json.encode(msgspec.structs.replace(calm, seed=seed)).decode(), flush=True)
"""


def test_a_run_that_ends_its_process_is_a_finding_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(workers, "PROGRAM", (sys.executable, "-c", DYING))
    outcomes = {o.seed: o for o in workers.run_seeds(range(10), jobs=2, planted=None)}
    assert sorted(outcomes) == list(range(10))
    ended = {seed: o for seed, o in outcomes.items() if o.invariant}
    assert sorted(ended) == [2, 7]
    assert {o.invariant for o in ended.values()} == {PROCESS_ENDED}
    assert {o.kind for o in ended.values()} == {RunKind.CRASH}
    assert "ended with code -11" in ended[2].detail


def test_processes_that_cannot_start_are_an_error(monkeypatch):
    monkeypatch.setattr(workers, "PROGRAM", (sys.executable, "-c", "raise SystemExit(9)"))
    with pytest.raises(BatonError, match="ended with code 9"):
        list(workers.run_seeds(range(10), jobs=1, planted=None))


# ---- the command ---------------------------------------------------------------------------------


def test_help_says_what_there_is(capsys):
    assert baton(["sim", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.split())
    for word in (
        "--seeds",
        "--seed ",
        "--planted",
        "--json",
        "--check-determinism",
        "--require-marks",
        "replay",
        "6 a seed",
    ):
        assert word in words


def test_a_simulation_is_summed_up(tmp_path, capsys):
    file = tmp_path / "summary.json"
    code = baton(
        [
            "sim",
            "--seeds",
            "4",
            "--from",
            "3",
            "--jobs",
            "2",
            "--check-determinism",
            "2",
            "--json",
            str(file),
        ]
    )
    printed = capsys.readouterr().out
    assert code == 0
    assert "4 seeds from 3 on: no violation" in printed
    assert "tp > 1 on both sides" in printed
    assert all(mark.name in printed for mark in Mark)
    summary = json.loads(file.read_bytes())
    assert (summary["seeds"], summary["violations"], summary["first_seed"], summary["rate"]) == (
        4,
        [],
        None,
        0,
    )
    assert summary["verdict"] == "fine"
    assert summary["differing"] == []
    assert summary["seeds_per_second"] > 0
    assert summary["events_per_second"] > 1000
    assert set(summary["marks"]) == {mark.name for mark in Mark}
    assert summary["shares"]["commits"] == 1
    assert {"crashes", "failures", "refetches", "withdrawals", "new epochs", "clean"} <= set(
        summary["shares"]
    )


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--seeds", "1", "--require-marks"], 1),
        (["--seeds", "0"], 2),
        (["--planted", "no_such"], 2),
        (["replay", "no-such-file"], 2),
        (["--list-planted"], 0),
    ],
)
def test_exit_codes(options, code):
    assert baton(["sim", *options]) == code


@pytest.mark.parametrize(
    ("invariants", "code"),
    [
        (["right_bytes"], 3),
        (["liveness"], 4),
        (["no_bug"], 5),
        (["liveness", "no_bug", "right_bytes"], 3),
    ],
)
def test_the_exit_code_is_the_gravest_violation(invariants, code, monkeypatch, tmp_path, capsys):
    from baton.dev.cli.simulation import many

    found = [some(seed=i, invariant=name, detail="a detail") for i, name in enumerate(invariants)]
    monkeypatch.setattr(many, "run_seeds", lambda seeds, **_: iter(found))
    assert baton(["sim", "--seeds", "3", "--shrink", "0", "--quiet"]) == code
    assert f"{len(found)} violation" in capsys.readouterr().out


def test_a_second_run_that_differs_is_not_deterministic(monkeypatch, capsys):
    from baton.dev.cli.simulation import many

    monkeypatch.setattr(
        many,
        "run_seeds",
        lambda seeds, hash_seed="", **_: iter([some(seed=s, trace=len(hash_seed)) for s in seeds]),
    )
    assert baton(["sim", "--seeds", "5", "--check-determinism", "2", "--quiet"]) == 6
    assert "not deterministic" in capsys.readouterr().out


def test_branches_that_are_required_and_never_taken_are_named(monkeypatch, capsys):
    from baton.dev.cli.simulation import many

    taken = {mark.name: 1 for mark in Mark if mark is not Mark.GRACE}
    monkeypatch.setattr(many, "run_seeds", lambda seeds, **_: iter([some(core_marks=taken)]))
    assert baton(["sim", "--seeds", "1", "--require-marks", "--quiet"]) == 1
    assert "never taken, though required: GRACE" in capsys.readouterr().out
    taken["GRACE"] = 1
    assert baton(["sim", "--seeds", "1", "--require-marks", "--quiet"]) == 0


def test_interrupting_sums_up_what_was_done():
    argv = [sys.executable, "-m", "baton.cli.main", "sim", "--seeds", "100000", "--jobs", "1"]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=20)
    finally:
        process.kill()  # where SIGINT is ignored (under nohup) it would go on for an hour
    assert process.returncode == 130
    assert "(interrupted)" in printed


# ---- failing runs --------------------------------------------------------------------------------


@pytest.fixture
def blind_bank(monkeypatch):
    plant = Plant(
        "blind",
        "a seal that sees nothing",
        invariants=("right_commit",),
        row=None,
        make=lambda: BLIND,
    )
    monkeypatch.setattr(planted, "BY_NAME", {"blind": plant})


def test_a_failing_seed_is_told_made_small_kept_and_run_again(blind_bank, tmp_path, capsys):
    seed = next(s for s in range(100) if run(s, parts=BLIND).kind is RunKind.SAFETY)
    assert (
        baton(
            [
                "sim",
                "--seed",
                str(seed),
                "--planted",
                "blind",
                "--keep",
                str(tmp_path),
                "--shrink",
                "60",
            ]
        )
        == 3
    )
    told = capsys.readouterr().out
    for word in (
        "worker    prefill-0",
        "VIOLATION ",
        "sequenceDiagram",
        "are enough",
        "def test_blind_of_seed_",
    ):
        assert word in told
    (file,) = tmp_path.iterdir()
    assert baton(["sim", "replay", str(file)]) == 3
    assert "VIOLATION " in capsys.readouterr().out


def test_a_kept_run_round_trips_and_notices_drift():
    outcome = next(o for o in (run(seed, parts=BLIND) for seed in range(100)) if o.invariant)
    kept = regression(outcome, "blind", seed=outcome.seed)
    assert decoded(encoded(kept)) == kept
    assert kept.script == outcome.choices
    again = run(script=kept.script, parts=BLIND)
    assert (again.trace, again.invariant, again.detail) == (
        outcome.trace,
        outcome.invariant,
        outcome.detail,
    )
    assert kept.drifted(again.labels) == []
    at = kept.choices[0].at
    assert kept.drifted({at: "something else"}) == [
        f"choice {at} was about {outcome.labels[at]!r} and is now about 'something else'"
    ]


def test_a_snippet_is_a_test():
    kept = Regression(
        1,
        7,
        None,
        "right_bytes",
        "what happened",
        tuple(TapeChoice(i * 3, 1, "lose a frame") for i in range(60)),
    )
    names = {}
    exec(
        compile(snippet(kept), "snippet", "exec"),
        {"run": lambda script: SimpleNamespace(invariant="")},
        names,
    )
    names["test_right_bytes_of_seed_7"]()


@pytest.mark.parametrize(
    "raw", [b"", b"{}", b"\xff", b'{"format": 99}', encoded(Regression(99, 0, None, "", "", ()))]
)
def test_a_file_that_is_none_is_a_clear_error(raw):
    with pytest.raises(ConfigError):
        decoded(raw)


def test_a_tally_has_the_first_of_each_invariant():
    tally = Tally()
    for seed, invariant in (
        (9, "liveness"),
        (4, "right_bytes"),
        (2, ""),
        (3, "right_bytes"),
        (7, "liveness"),
    ):
        tally.add(some(seed=seed, invariant=invariant))
    assert [(v.seed, v.invariant) for v in tally.first_of_each()] == [
        (3, "right_bytes"),
        (7, "liveness"),
    ]
    assert tally.seeds == 5
