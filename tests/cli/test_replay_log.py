"""`baton replay-log` as an operator sees it."""

import subprocess
import sys

import msgspec
import pytest
from tests.trace.rig import read
from tests.trace.scenarios import journals

from baton.cli.main import run
from baton.core.effects import Issue, Send
from baton.core.ids import Boot
from baton.dev.cli import replay_log
from baton.trace.coding import encode
from baton.trace.log import Step


@pytest.fixture
def logs(monkeypatch, tmp_path):
    """Journals of a run in which a read fails."""
    found = {}
    for name, data in journals("failed read", monkeypatch).items():
        path = tmp_path / f"{name}.baton-log"
        path.write_bytes(data)
        found[name.split(".")[1].split("-")[0]] = path
    assert found.keys() == {"gateway", "prefill", "decode"}
    return found


def changed(path, change):
    """The same journal with its steps changed."""
    records = [change(r) if isinstance(r, Step) else r for r in read(path.read_bytes())]
    path.write_bytes(b"".join(encode(r) for r in records if r is not None))
    return path


@pytest.mark.parametrize(
    ("process", "who"),
    [
        ("gateway", "gateway (boot 1)"),
        ("prefill", "prefill worker prefill-2 (boot 2)"),
        ("decode", "decode worker"),
    ],
)
def test_a_good_journal(logs, process, who, capsys):
    assert run(["replay-log", str(logs[process])]) == 0
    out = capsys.readouterr().out
    assert who in out
    assert "same effects in" in out
    assert "8 invariants hold" in out


def test_until_stops_after_that_step(logs, capsys):
    assert run(["replay-log", str(logs["decode"]), "--until", "5", "--show"]) == 0
    out = capsys.readouterr().out
    assert "same effects in 5 steps" in out
    assert "\n       5 " in out
    assert "\n       6 " not in out


def test_show_prints_a_line_for_every_record(logs, capsys):
    assert run(["replay-log", str(logs["gateway"]), "--show"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list(read(logs["gateway"].read_bytes()))) + 3
    (submitted,) = [line for line in lines if " submitted" in line]
    assert "-> 2 x send ticket" in submitted
    assert any("message_received first_token 00000000.1" in line for line in lines)


def test_a_difference_is_named_by_step_and_place(logs, capsys):
    def change(step):
        effects = tuple(
            msgspec.structs.replace(o, to=Boot(99)) if isinstance(o, Send) else o
            for o in step.effects
        )
        return msgspec.structs.replace(step, effects=effects)

    assert run(["replay-log", str(changed(logs["prefill"], change))]) == 1
    out = capsys.readouterr().out
    assert (
        "different: step 1 at 0.000000 s (leader gateway_connected) differs in effect 1, "
        "send.to: expected 99, came 1" in out
    )
    assert "same effects" not in out


def test_a_violated_invariant_is_named(logs, capsys):
    def change(step):
        effects = tuple(
            Issue(msgspec.structs.replace(o.plan, seq=o.plan.seq + 7))
            if isinstance(o, Issue)
            else o
            for o in step.effects
        )
        return msgspec.structs.replace(step, effects=effects)

    assert run(["replay-log", str(changed(logs["prefill"], change))]) == 1
    assert "violated: step" in capsys.readouterr().out


def test_a_file_cut_short_is_replayed_as_far_as_it_is_whole(logs, capsys):
    path = logs["decode"]
    path.write_bytes(path.read_bytes()[:-3])
    assert run(["replay-log", str(path)]) == 2
    out = capsys.readouterr().out
    assert "damaged: it ends inside a record" in out
    assert "same effects in" in out


@pytest.mark.parametrize("content", [b"", b"x", b"GIF89a" + bytes(100), bytes(100)])
def test_what_is_no_journal_is_refused_in_one_line(content, tmp_path, capsys):
    path = tmp_path / "x.baton-log"
    path.write_bytes(content)
    assert run(["replay-log", str(path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"baton: {path}: ")
    assert error.count("\n") == 1


def test_files_that_cannot_be_read_are_refused_in_one_line(tmp_path, capsys):
    assert run(["replay-log", str(tmp_path / "no")]) == 2
    assert "No such file" in capsys.readouterr().err
    assert run(["replay-log", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


def test_a_long_file_shows_how_far_it_is(logs, monkeypatch, capsys):
    monkeypatch.setattr(replay_log, "SLOW_BYTES", 1)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert run(["replay-log", str(logs["decode"])]) == 0
    assert "replaying" in capsys.readouterr().err


def test_help_is_quick_and_loads_nothing_heavy():
    code = (
        "import sys\nfrom baton.cli.main import run\nrun(['replay-log', "
        "'--help'])\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "--until" in done.stdout
    assert not set(done.stderr.split()) & {"numpy", "torch", "zmq", "structlog"}
