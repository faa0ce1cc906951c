"""Command lines as an operator types them: help, versions, and one clear line for what cannot
be."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from baton import __version__
from baton.cli import models, processes, serve
from baton.cli.main import run
from baton.core.errors import Bug, ConfigError, FabricError, Mismatch

HEAVY = {
    "torch",
    "transformers",
    "numba",
    "numpy",
    "zmq",
    "fastapi",
    "uvicorn",
    "tokenizers",
    "huggingface_hub",
}


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], ["serve", "worker", "gateway", "models", "secret"]),
        (["--help"], ["serve", "worker", "gateway", "models", "secret"]),
        (
            ["serve", "-h"],
            [
                "--prefill",
                "--decode",
                "--role",
                "--dtype",
                "--max-model-len",
                "--max-num-batched-tokens",
                "--page-size",
            ],
        ),
        (
            ["serve", "--help"],
            [
                "--served-model-name",
                "--fabric",
                "--kv-pages",
                "--kv-memory",
                "--seal",
                "--threads",
                "--block-size",
                "--record",
            ],
        ),
        (
            ["worker", "--help"],
            ["--gateway", "--role", "--bind", "--cores", "--secret", "--record"],
        ),
        (["gateway", "--help"], ["--control", "--host", "--port", "--api-key", "--record"]),
        (["replay-log", "--help"], ["FILE", "--until", "--show"]),
        (["models", "--help"], ["pull", "list"]),
        (["secret", "--help"], ["new"]),
    ],
)
def test_help_names_what_there_is(argv, words, capsys):
    assert run(argv) == 0
    text = capsys.readouterr().out
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize("argv", [["--version"], ["version"]])
def test_version(argv, capsys):
    assert run(argv) == 0
    assert capsys.readouterr().out == f"baton {__version__}\n"


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom baton.cli.main import run\nrun(['serve', "
        "'--help'])\nprint(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = done.stderr.split()
    assert set(loaded) & HEAVY == set()
    assert not [name for name in loaded if name.startswith("baton.dev")], (
        "who serves does not load what Baton is tested with"
    )


GATEWAY = "--gateway=tcp://127.0.0.1:1"


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["serv"], ["serv"]),
        (["serve", "--bogus"], ["--bogus"]),
        (["serve", "--port", "x"], ["--port"]),
        (["serve", "--port", "70000"], ["70000"]),
        (["serve", "--prefill", "0"], ["--prefill 0", "at least 1"]),
        (["serve", "--role", "both"], ["--role", "both", "split", "unified"]),
        (["serve", "--seal", "maybe"], ["--seal", "on", "off"]),
        (["serve", "--dtype", "int4"], ["--dtype int4", "bfloat16"]),
        (["serve", "--block-size", "32"], ["--block-size 32", "16", "--page-size"]),
        (["serve", "--page-size", "20"], ["20 tokens", "multiple of 16"]),
        (["serve", "--decode-page-size", "8"], ["8 tokens", "multiple of 16"]),
        (["serve", "--prefill-page-size", "0"], ["0 tokens"]),
        (["serve", "--fabric", "rdma"], ["--fabric rdma", "shm", "nixl"]),
        (["serve", "--kv-memory", "2XB"], ["--kv-memory", "2XB", "2GiB"]),
        (["serve", "--kv-memory", "1GiB", "--kv-pages", "5"], ["--kv-pages", "--kv-memory"]),
        (["serve", "--kv-pages", "0"], ["--kv-pages 0", "at least 1"]),
        (["serve", "--threads", "0"], ["0 threads"]),
        (["serve", "--max-num-seqs", "-3"], ["--max-num-seqs -3", "at least 1"]),
        (["serve", "--max-num-batched-tokens", "0"], ["--max-num-batched-tokens 0", "at least 1"]),
        (["serve", "--max-model-len", "0"], ["--max-model-len 0", "at least 1"]),
        (["serve", "--host", "203.0.113.7"], ["203.0.113.7", "--host"]),
        (["serve", "/no/such/directory"], ["/no/such/directory", "no such directory"]),
        (["worker"], ["--gateway"]),
        (["worker", GATEWAY, "--cores", "a,b"], ["--cores a,b", "0,1"]),
        (["worker", GATEWAY, "--page-size", "0"], ["0 tokens"]),
        (["worker", GATEWAY, "/no/such/directory"], ["/no/such/directory"]),
        (["gateway", "/no/such/directory"], ["/no/such/directory"]),
        (["models", "pull", "gpt-5"], ["gpt-5", "smollm2"]),
        (["secret", "new", "/no/such/place/secret"], ["/no/such/place/secret"]),
        (["secret", "identity", "two words", "--members", "/no/such/place"], ["'two words'"]),
    ],
)
def test_a_setting_that_cannot_be_is_one_line(argv, words, capsys):
    assert run(argv) == 2
    line = capsys.readouterr().err
    assert line.startswith("baton: ")
    assert line.count("\n") == 1
    assert [word for word in words if word not in line] == []


@pytest.fixture
def raising(monkeypatch, checkpoint):
    """Runs a gateway whose composition raises that."""

    def run_and_raise(error):
        def compose(_):
            raise error

        monkeypatch.setattr(processes, "run_gateway", compose)
        return run(["gateway", "--port", "0", str(checkpoint)])

    return run_and_raise


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("too\n  big"), 2, "baton: too big\n"),
        (FabricError("no wire"), 1, "baton: no wire\n"),
        (Mismatch("dtype", 1, 2), 1, "baton: dtype differs: ours is 1, theirs is 2\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_what_is_expected_to_fail_is_at_most_one_line(raising, error, code, line, capsys):
    assert raising(error) == code
    assert capsys.readouterr().err == line


def test_a_bug_of_ours_keeps_its_traceback(raising):
    with pytest.raises(Bug):
        raising(Bug("never"))


def test_serve_plans_with_absolute_paths(checkpoint, monkeypatch, free_port):
    planned = []

    def supervise(gateways, workers, _):
        planned.extend([*gateways, *workers])
        return 7

    monkeypatch.setattr(serve, "supervise", supervise)
    monkeypatch.chdir(checkpoint)
    assert (
        run(
            [
                "serve",
                ".",
                "--port",
                str(free_port),
                "--secret",
                "s",
                "--control",
                "tcp://127.0.0.1:9",
                "--decode",
                "2",
            ]
        )
        == 7
    )
    front, *workers = planned
    assert front.port == free_port
    assert front.control == "tcp://127.0.0.1:9"
    assert [w.name for w in workers] == ["prefill-0", "decode-0", "decode-1"]
    assert {w.gateways for w in workers} == {(front.control,)}
    assert {s.model for s in planned} == {str(checkpoint)}
    assert {s.secret for s in planned} == {str(checkpoint / "s")}
    assert {s.served_model_name for s in planned} == {"."}


@pytest.mark.parametrize(("flags", "said"), [((), "never"), (("--local-prefill", "auto"), "auto")])
def test_serve_tells_gateways_and_workers_whether_decode_computes_prompts(
    checkpoint, monkeypatch, flags, said
):
    planned = []
    monkeypatch.setattr(
        serve, "supervise", lambda gateways, workers, _: planned.extend([*gateways, *workers]) or 7
    )
    assert run(["serve", str(checkpoint), "--port", "0", "--gateways", "2", *flags]) == 7
    assert [one.local_prefill for one in planned] == [said] * 4


def test_several_gateways_register_workers_at_addresses_of_their_own(checkpoint, monkeypatch):
    planned = []
    monkeypatch.setattr(
        serve, "supervise", lambda gateways, workers, _: planned.extend([gateways, workers]) or 7
    )
    flags = ["serve", str(checkpoint), "--port", "0", "--gateways", "3"]
    assert run(flags) == 7
    gateways, workers = planned
    assert [g.name for g in gateways] == ["gateway-0", "gateway-1", "gateway-2"]
    controls = tuple(g.control for g in gateways)
    assert len(set(controls)) == 3
    assert {w.gateways for w in workers} == {controls}
    planned.clear()
    assert run([*flags, "--control", "tcp://127.0.0.1:9"]) == 7
    assert [g.control for g in planned[0]] == [f"tcp://127.0.0.1:{port}" for port in (9, 10, 11)]


@pytest.mark.parametrize("control", ["ipc:///tmp/socket", "tcp://127.0.0.1:65534"])
def test_several_gateways_need_ports(checkpoint, capsys, control):
    assert run(["serve", str(checkpoint), "--gateways", "3", "--control", control]) == 2
    assert control in capsys.readouterr().err


def test_serve_refuses_a_missing_model_before_it_starts_anything(monkeypatch, capsys):
    monkeypatch.setattr(serve, "supervise", lambda *_: pytest.fail("it started something"))
    assert run(["serve", "--port", "0", "/no/such/directory"]) == 2
    assert "/no/such/directory" in capsys.readouterr().err


def test_serve_fetches_the_trial_model_where_it_is_missing(monkeypatch, tmp_path):
    done = []

    def fetch(directory):
        done.append("fetched")
        directory.mkdir(parents=True)
        (directory / "config.json").write_text("{}")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(models, "fetch_trial", fetch)
    monkeypatch.setattr(
        serve, "supervise", lambda fronts, workers, _: done.append(fronts[0].model) or 0
    )
    for _ in range(2):
        assert run(["serve", "--port", "0"]) == 0
    directory = str(tmp_path / "baton" / "models" / "smollm2-135m-instruct")
    assert done == ["fetched", directory, directory]
    assert (
        json.loads(Path(directory, "generation_config.json").read_text())["temperature"] == 0.2
    ), "it came without settings"


def test_a_directory_without_a_checkpoint_is_told_apart(tmp_path, capsys):
    assert run(["gateway", "--port", "0", str(tmp_path)]) == 2
    assert "config.json" in capsys.readouterr().err


def test_a_secret_is_written_once_for_its_owner_alone(tmp_path, capsys):
    file = tmp_path / "secret"
    assert run(["secret", "new", str(file)]) == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    before = file.read_bytes()
    capsys.readouterr()
    assert run(["secret", "new", str(file)]) == 2
    assert str(file) in capsys.readouterr().err
    assert file.read_bytes() == before


def test_models_list_says_where_the_trial_model_is(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run(["models", "list"]) == 0
    assert "baton models pull smollm2" in capsys.readouterr().out
    directory = tmp_path / "baton" / "models" / "smollm2-135m-instruct"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    assert run(["models", "list"]) == 0
    assert str(directory) in capsys.readouterr().out
