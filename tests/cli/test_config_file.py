"""A TOML file as defaults, names that vLLM and SGLang use, and the page that lists all flags."""

import msgspec
import pytest

from baton.cli import processes, serve
from baton.cli.main import run
from flag_docs import PAGE, page


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
def config(tmp_path):
    def write(text: str) -> str:
        file = tmp_path / "baton.toml"
        file.write_text(text)
        return str(file)

    return write


WORKER = "--gateway=tcp://127.0.0.1:1"


def test_a_file_is_the_same_as_flags_and_flags_win(checkpoint, config, planned):
    text = f"""
        model = "{checkpoint}"
        kv-memory = "3MiB"
        max_num_seqs = 7
        seal = "off"
        gateway = ["tcp://127.0.0.1:1", "tcp://127.0.0.1:2"]
        log-level = "error"
    """
    flags = [
        str(checkpoint),
        "--kv-memory=3MiB",
        "--max-num-seqs=7",
        "--seal=off",
        WORKER,
        "--gateway=tcp://127.0.0.1:2",
    ]
    assert run(["worker", "--config", config(text)]) == 0
    assert run(["worker", *flags, "--log-level=error"]) == 0
    assert run(["worker", "--max-num-seqs=9", "--config", config(text), WORKER]) == 0
    by_file, by_flags, both = planned
    assert by_file == by_flags
    assert both == msgspec.structs.replace(by_file, max_num_seqs=9, gateways=("tcp://127.0.0.1:1",))


def test_a_file_of_a_service(checkpoint, config, planned):
    text = (
        f'model-path = "{checkpoint}"\nport = 0\ndecode = 2\nskip-server-warmup = '
        'true\napi-key = "k"\n'
    )
    assert run(["serve", "--config", config(text)]) == 0
    front, *workers = planned
    assert (len(workers), front.skip_server_warmup, front.api_keys, front.model) == (
        3,
        True,
        ("k",),
        str(checkpoint),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kv-memmory = 1", ["'kv-memmory'", "did you mean kv-memory?", "baton worker"]),
        ("xyzzy = 1", ["'xyzzy'", "there are", "block-size"]),
        ("[worker]\nkv-memory = 1", ["'worker'"]),
        ("config = 'other'", ["'config'"]),
        ("port = 1", ["'port'"]),  # of another command
        ("page-size = [16]", ["page-size", "[16]", "one text or number"]),
        ("seal = true", ["seal = True"]),
        ("page-size = 'x'", ["--page-size"]),
        ("max-model-len = 5\ncontext_length = 6", ["context_length", "twice"]),
        ("kv-memory = ", ["not TOML", "Invalid value"]),
    ],
)
def test_a_file_that_cannot_be_is_one_line(text, words, config, capsys, planned):
    assert run(["worker", WORKER, "--config", config(text)]) == 2
    line = capsys.readouterr().err
    assert line.startswith("baton: ")
    assert line.count("\n") == 1
    assert [w for w in words if w not in line] == []
    assert planned == []


def test_a_file_that_is_not_there_is_one_line(capsys):
    assert run(["worker", WORKER, "--config", "/no/such/file"]) == 2
    assert "/no/such/file" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("--max-model-len=99", "--context-length=99"),
        ("--max-num-seqs=3", "--max-running-requests=3"),
        ("--max-num-batched-tokens=64", "--chunked-prefill-size=64"),
        ("--kv-memory=2MiB", "--kv-cache-memory-bytes=2097152"),
        ("--fabric=nixl", "--disaggregation-transfer-backend=nixl"),
        ("--role=decode", "--disaggregation-mode=decode"),
    ],
)
def test_names_of_vllm_and_sglang_mean_the_same(ours, theirs, checkpoint, planned):
    for argv in ([str(checkpoint), ours], ["--model-path", str(checkpoint), theirs]):
        assert run(["worker", WORKER, *argv]) == 0
    assert planned[0] == planned[1]


def test_two_different_models_are_refused(checkpoint, capsys, planned):
    assert run(["worker", WORKER, str(checkpoint), "--model", "/another"]) == 2
    assert "/another" in capsys.readouterr().err


def test_the_page_of_flags_is_up_to_date():
    assert PAGE.read_text() == page(), "write it anew with: python tools/flag_docs.py"
