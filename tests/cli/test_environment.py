"""Flags from the environment: between the command line and the file."""

import pytest

from baton.cli import main, processes, serve
from baton.cli.main import run

WORKER = "--gateway=tcp://127.0.0.1:1"


@pytest.fixture
def planned(monkeypatch):
    """Settings that commands come to, in order."""
    seen = []
    monkeypatch.setattr(processes, "run_worker", seen.append)
    monkeypatch.setattr(processes, "run_gateway", seen.append)
    monkeypatch.setattr(
        serve, "supervise", lambda gateways, workers, _: seen.extend([*gateways, *workers]) or 0
    )
    return seen


@pytest.fixture
def variables(monkeypatch):
    def set_all(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    return set_all


def test_variables_are_the_same_as_flags(checkpoint, planned, variables):
    flags = ["--kv-memory=3MiB", "--max-num-seqs=7", "--seal=off", "--no-enable-prefix-caching"]
    flags += [WORKER, "--gateway=tcp://127.0.0.1:2", "--watchdog-timeout=9", "--tp=2"]
    assert run(["worker", str(checkpoint), *flags]) == 0
    variables(
        BATON_MODEL=str(checkpoint),
        BATON_KV_MEMORY="3MiB",
        BATON_MAX_NUM_SEQS="7",
        BATON_SEAL="off",
        BATON_ENABLE_PREFIX_CACHING="false",
        BATON_GATEWAY="tcp://127.0.0.1:1 tcp://127.0.0.1:2",
        BATON_WATCHDOG_TIMEOUT="9",
        BATON_TP="2",
    )
    assert run(["worker"]) == 0
    by_flags, by_variables = planned
    assert by_variables == by_flags


def test_a_flag_wins_over_a_variable_and_that_over_the_file(
    checkpoint, tmp_path, planned, variables
):
    file = tmp_path / "baton.toml"
    file.write_text("max-num-seqs = 5\npage-size = 32\nlog-level = 'error'")
    variables(BATON_CONFIG=str(file), BATON_MAX_NUM_SEQS="6", BATON_PAGE_SIZE="128")
    assert run(["worker", str(checkpoint), WORKER, "--max-num-seqs=7"]) == 0
    (found,) = planned
    assert (found.max_num_seqs, found.page_tokens, found.log_level) == (7, 128, "error")


def test_serve_and_the_gateway_read_them_too(checkpoint, planned, variables):
    variables(BATON_MODEL=str(checkpoint), BATON_PORT="0", BATON_API_KEY="a b", BATON_DECODE="2")
    variables(BATON_SKIP_SERVER_WARMUP="true", BATON_MAX_MODEL_LEN="")
    assert run(["serve"]) == 0
    assert run(["gateway", "--api-key=c"]) == 0
    front, *workers, alone = planned
    assert (front.api_keys, front.skip_server_warmup, len(workers)) == (("a", "b"), True, 3)
    assert (alone.api_keys, alone.max_model_len) == (("c",), None)


@pytest.mark.parametrize("how", ["{}", "--model-path={}"])
def test_the_model_of_the_environment_gives_way(how, checkpoint, tmp_path, planned, variables):
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    variables(BATON_MODEL=str(other))
    assert run(["worker", WORKER]) == 0
    assert run(["worker", WORKER, how.format(checkpoint)]) == 0
    assert [found.model for found in planned] == [str(other), str(checkpoint)]


def test_what_cannot_be_is_refused_by_the_name_of_its_variable(
    checkpoint, planned, variables, capsys
):
    """Kubernetes sets BATON_PORT in this way for a Service that is named baton."""
    variables(BATON_PORT="tcp://10.96.0.7:8000")
    assert run(["gateway", str(checkpoint)]) == 2
    line = capsys.readouterr().err
    assert [w for w in ("BATON_PORT", "--port", "integer") if w not in line] == []
    assert planned == []


def test_commands_that_start_nothing_look_at_their_flags_alone(checkpoint, variables, capsys):
    variables(BATON_PAGE_SIZE="7")
    assert main.run(["plan-memory", "--help"]) == 0
    assert "BATON_PAGE_SIZE" not in capsys.readouterr().out
