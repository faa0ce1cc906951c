"""`baton plan` as it is typed."""

import json

import pytest
from tests.fleet.build import profile
from tests.tiny import make_tiny

from baton.cli.main import run
from baton.dev.fleet.profile import read_profile, write_profile

MIX = ["--random-input-len", "300", "--random-output-len", "20", "--request-rate", "4"]
SMALL = ["--num-prompts", "30", "--seeds", "2", "--jobs", "1"]


@pytest.fixture
def machine(tmp_path):
    write_profile(profile(), tmp_path / "machine.json")
    return str(tmp_path / "machine.json")


def plan(machine, *flags, workers="2", slo="ttft:500,tpot:50"):
    return ["plan", *flags, "--workers", workers, "--slo", slo, "--profile", machine]


@pytest.mark.parametrize(
    ("changes", "flags", "words"),
    [
        ({"workers": "0"}, MIX, ["--workers 0", "at least 1"]),
        ({"workers": "2;3"}, MIX, ["--workers 2;3", "commas"]),
        ({"workers": "2,3"}, [*MIX, "--divisions", "1:1"], ["--divisions 1:1", "one number"]),
        ({"slo": "ttft500"}, MIX, ["--slo ttft500", "NAME:MILLISECONDS", "tpot"]),
        ({"slo": "ttft:fast"}, MIX, ["--slo ttft:fast", "milliseconds"]),
        ({"slo": "stall:5"}, MIX, ["--slo stall:5", "ttft, tpot, e2el"]),
        ({"slo": "ttft:0"}, MIX, ["--slo ttft:0", "above 0"]),
        ({"slo": ""}, MIX, ["--slo", "ttft:500,tpot:50"]),
        ({}, [], ["TRACE", "--random-input-len", "--request-rate"]),
        ({}, ["t.bin"], ["t.bin", "--dataset-name mooncake or azure"]),
        ({}, ["t.jsonl"], ["t.jsonl", "No such file"]),
        ({}, ["t.csv", "--dataset-name", "custom"], ["--dataset-name custom", "mooncake or azure"]),
        ({}, ["t.jsonl", "--request-rate", "4"], ["--request-rate", "--loads"]),
        ({}, [*MIX, "--loads", "1,0"], ["--loads 0", "above 0"]),
        ({}, [*MIX, "--loads", "x"], ["--loads x"]),
        ({}, [*MIX, "--divisions", "3:3"], ["--divisions 3:3", "2 in all"]),
        ({}, [*MIX, "--routing-policy", "best"], ["--routing-policy best", "priced"]),
        ({}, [*MIX, "--plot", "p.jpg"], ["--plot p.jpg", ".png or .svg"]),
        ({}, [*MIX, "--json", "no/where.json"], ["--json no/where.json", "no such directory"]),
    ],
)
def test_what_cannot_be_planned_is_one_line(changes, flags, words, machine, capsys):
    assert run(plan(machine, *flags, **changes)) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert [word for word in words if word not in line] == []


def test_a_profile_that_is_not_there_is_said(tmp_path, capsys):
    assert run(plan(str(tmp_path / "none.json"), *MIX)) == 2
    assert "none.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["plan"], "--workers"),
        (["plan", "--workers", "3"], "--slo"),
        (["plan", "measure"], "--out"),
        (["plan", "measure", "--out", "/none/p.json"], "--out /none/p.json: no such directory"),
        (["plan", "measure", "--out", "p.json", "--model", "/none"], "/none"),
        (["plan", "measure", "--out", "p.json", "--kv-memory", "much"], "--kv-memory"),
        (["plan", "measure", "--out", "p.json", "--fabric", "ib"], "no fabric 'ib'"),
    ],
)
def test_what_is_missing_is_said(words, said, capsys):
    assert run(words) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert said in line


def test_a_mix_is_planned_and_its_figures_written(machine, tmp_path, capsys):
    file = tmp_path / "plan.json"
    flags = [*MIX, *SMALL, "--loads", "1,2", "--json", str(file)]
    assert run(plan(machine, *flags, workers="3")) == 0
    said = capsys.readouterr().out
    assert [word for word in ("3 unified", "1p:2d", "2p:1d", "±") if word not in said] == []
    written = json.loads(file.read_text())
    assert written["slos_ms"] == {"ttft": 500.0, "tpot": 50.0}
    assert [load["load"] for load in written["loads"]] == [1.0, 2.0]
    assert [len(load["divisions"]) for load in written["loads"]] == [3, 3]
    said = " ".join(said.split())
    assert all(load["sentence"] in said for load in written["loads"])
    assert {load["verdict"]["advice"] for load in written["loads"]} <= {"split", "unified", "noise"}
    assert run(plan(machine, *flags, "--jobs", "2", workers="3")) == 0
    assert json.loads(file.read_text()) == written


def test_a_trace_is_planned_by_the_short_and_the_long_name(machine, tmp_path, capsys):
    rows = [
        {"timestamp": 200 * n, "input_length": 600, "output_length": 9, "hash_ids": [n % 3, n]}
        for n in range(30)
    ]
    trace = tmp_path / "t.jsonl"
    trace.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(plan(machine, str(trace), "--jobs", "1")) == 0
    short = capsys.readouterr().out
    assert run(["plan", "workers", *plan(machine, str(trace), "--jobs", "1")[1:]]) == 0
    assert capsys.readouterr().out == short
    assert "30 requests in 1 run" in short


def test_why_nothing_is_answered_is_said(tmp_path, capsys):
    write_profile(profile(pages=10), tmp_path / "small.json")
    assert run(plan(str(tmp_path / "small.json"), *MIX, *SMALL)) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 unified: 60 failed, the first because" in said
    assert "No verdict: no request meets the SLOs in any division" in said


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_a_plan_is_drawn(ending, machine, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"plan.{ending}"
    assert run(plan(machine, *MIX, *SMALL, "--plot", str(picture))) == 0
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("family", "others"),
    [
        ("llama", {}),
        ("gemma3", {"window": True}),
        ("qwen3_next", {"slot": False}),
        ("gpt_oss", {"window": True}),
    ],
)
def test_this_machine_is_measured_and_planned_with(family, others, tmp_path, capsys):
    model, file = make_tiny(tmp_path / "tiny", family), tmp_path / "here.json"
    flags = ["--max-num-batched-tokens", "128", "--kv-memory", "8MiB", "--seconds", "1"]
    measured = ["plan", "measure", "--model", str(model), "--threads", "1", "--out", str(file)]
    assert run([*measured, *flags]) == 0
    assert "median error" in capsys.readouterr().out
    profile = read_profile(file)
    assert [n for n, _ in profile.steps.tokens_us] == [1, 2, 4, 16, 64, 128]
    assert min(us for _, us in profile.steps.tokens_us) > 0
    assert profile.wire.bytes_per_s > 1e6
    assert 1 < profile.host.turn_us + profile.host.row_us < 100_000
    assert set(profile.fit) == {
        *("prompts", "answers", "mixed", "reads", "steps that were not fitted"),
    }
    memory = profile.memory
    assert {o.name: o.window is not None for o in memory.others} == others
    each = {o.name: o.nbytes * (1 if o.window is None else 16) for o in memory.others}
    own = sum(o.count * each[o.name] for o in memory.others)
    assert 7 << 20 < memory.pages * 16 * memory.token_bytes + own <= 8 << 20
    assert run(plan(str(file), *MIX, *SMALL)) == 0
    assert "fitted; median errors: " in capsys.readouterr().out.replace("\n", " ")
