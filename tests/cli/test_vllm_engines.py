"""Engines of vLLM in a service: what they are started with, and which flags are refused by name."""

import json
import sys

import msgspec
import pytest

from baton.adapters.secret import load_secret, new_secret
from baton.cli import run_vllm
from baton.cli.engines import VllmWorkers
from baton.cli.main import run
from baton.cli.serve import ServeSettings, plan_workers
from baton.core.errors import ConfigError
from baton.shell.settings import Role, WorkerSettings
from baton.vllm.settings import settings_of

SHARED = WorkerSettings(
    model="/m",
    served_model_name="m",
    gateways=("tcp://127.0.0.1:7",),
    name="worker",
    bind="tcp://127.0.0.1:0",
    threads=1,
    dtype="float32",
    max_model_len=2048,
)
SERVICE = ServeSettings(engine="vllm", decode_tp=2, vllm_args=("--block-size", "32"))


@pytest.fixture
def engines():
    workers = plan_workers(SERVICE, SHARED, cores=range(6), threads=None)
    return [VllmWorkers().process(worker, SERVICE) for worker in workers]


@pytest.fixture
def started(monkeypatch):
    """The processes that would be replaced by an engine: (words, environment)."""
    seen = []
    monkeypatch.setattr(run_vllm, "require_vllm", lambda: None)
    monkeypatch.setattr(run_vllm.os, "execve", lambda path, *more: seen.append(more))
    for name in ("VLLM_CPU_OMP_THREADS_BIND", "OMP_NUM_THREADS", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return seen


def flags_of(words):
    return dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)


def test_an_engine_gets_its_part_of_the_machine_and_all_that_concerns_it(engines, started):
    for engine in engines:
        run_vllm.run_vllm(engine)
    (prefill, env0), (decode, env1) = started
    assert prefill[:6] == [sys.executable, "-P", "-m", "vllm.entrypoints.cli.main", "serve", "/m"]
    assert decode[-2:] == ["--block-size", "32"], "the user's own words win, so they are last"
    flags = [flags_of(words) for words in (prefill, decode)]
    for flag, values in {
        "--served-model-name": ("m", "m"),
        "--host": ("127.0.0.1", "127.0.0.1"),
        "--tensor-parallel-size": ("1", "2"),
        "--dtype": ("float32", "float32"),
        "--max-model-len": ("2048", "2048"),
        "--distributed-executor-backend": (None, "mp"),
    }.items():
        assert tuple(f.get(flag) for f in flags) == values, flag
    assert flags[0]["--port"] != "0"
    assert (env0["VLLM_CPU_OMP_THREADS_BIND"], env0["OMP_NUM_THREADS"]) == ("0,1", "2")
    assert env1["VLLM_CPU_OMP_THREADS_BIND"] == "2,3|4,5"
    for found, (role, name) in zip(
        flags, (("kv_producer", "prefill-0"), ("kv_consumer", "decode-0")), strict=True
    ):
        transfer = json.loads(found["--kv-transfer-config"])
        assert (transfer["kv_connector"], transfer["kv_role"]) == ("BatonConnector", role)
        said = settings_of(transfer["kv_connector_extra_config"])
        assert (said.name, said.url) == (name, f"http://127.0.0.1:{found['--port']}")
        assert said.gateways == SHARED.gateways
        assert said.fabric == ("nixl", "tcp"), "shm is none of the connector's"


def test_without_cores_of_its_own_an_engine_is_not_pinned(engines, started, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    run_vllm.run_vllm(msgspec.structs.replace(engines[0], cores=()))
    ((_, env),) = started
    assert env["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert env["OMP_NUM_THREADS"] == "7", "the user's own word wins"


def test_with_a_secret_an_engine_answers_its_gateways_alone(engines, started, tmp_path):
    path = tmp_path / "secret"
    new_secret(path)
    run_vllm.run_vllm(msgspec.structs.replace(engines[0], secret=str(path)))
    ((words, env),) = started
    assert env["VLLM_API_KEY"] == load_secret(path).engine_key
    assert env["VLLM_API_KEY"] not in " ".join(words), "which every user of the machine sees"


REFUSED = {
    ("--role", "unified"): "--role unified",
    ("--kv-pages", "10"): "--kv-pages",
    ("--kv-memory", "1GiB"): "--kv-memory",
    ("--prefill-pp", "2"): "--prefill-pp",
    ("--decode-page-size", "32"): "--decode-page-size",
    ("--record", "/tmp/somewhere"): "--record",
    ("--no-seal",): "--seal",
    ("--vllm-args", "'"): "--vllm-args",
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_an_engine_of_vllm_does_not_take_is_refused_by_name(words, capsys):
    assert run(["serve", "/m", "--engine", "vllm", *words]) == 2
    assert REFUSED[words] in capsys.readouterr().err


def test_flags_for_vllm_need_vllm(capsys, monkeypatch):
    assert run(["serve", "/m", "--vllm-args", "--block-size 32"]) == 2
    assert "--engine vllm" in capsys.readouterr().err
    monkeypatch.setattr(run_vllm.importlib.util, "find_spec", lambda name: None)
    # gateways take the second flag, and ask no guest to compute prompts
    for flags in ((), ("--local-prefill", "auto")):
        assert run(["serve", "/m", "--engine", "vllm", *flags]) == 2
        assert "has no vLLM" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="has no vLLM"):
        run_vllm.require_vllm()


def test_the_prefill_worker_is_the_producer(engines):
    assert [e.role for e in engines] == [Role.PREFILL, Role.DECODE]
