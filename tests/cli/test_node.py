"""What a process decides on its node, and what it gets from the driver."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from baton.adapters.secret import draw_secret, load_secret
from baton.cli import models, node, on_ray
from baton.cli.engines import VllmWorkers
from baton.cli.main import run
from baton.cli.serve import ServeSettings
from baton.shell.settings import Role, WorkerSettings

WORKER = WorkerSettings(
    model="",
    served_model_name="m",
    gateways=("tcp://127.0.0.1:7",),
    name="prefill-0",
    bind="tcp://127.0.0.1:0",
    threads=1,
    tp=2,
)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr(models, "ensure", lambda model: tmp_path / model)
    return tmp_path


def settled(document: bytes) -> Any:
    return node.settle(msgspec.json.decode(document, type=node.NodeProcess))


def test_the_model_and_the_address_are_those_of_the_node(found, monkeypatch):
    monkeypatch.setattr("baton.cli.own_address.route_to", lambda host: "10.9.0.2")
    worker = msgspec.structs.replace(WORKER, gateways=("tcp://10.9.0.1:7",))
    got = settled(on_ray.rank_document(worker, "llama", None, 1, "127.0.0.1:29"))
    assert got.model == str(found / "llama")
    assert (got.bind, got.fabric_settings.host) == ("tcp://10.9.0.2:0", "10.9.0.2")
    assert (got.own_rank, got.rendezvous, list(got.others_here)) == (1, "127.0.0.1:29", [])
    assert got.secret is None


def test_the_secret_comes_with_the_settings_and_lies_on_no_disk(found):
    secret = draw_secret()
    got = settled(on_ray.rank_document(WORKER, "llama", secret, 0, None))
    assert got.secret is not None
    assert load_secret(Path(got.secret)).server.private


def test_an_engine_of_vllm_and_its_children_find_address_and_secret(found, monkeypatch):
    monkeypatch.setattr("baton.cli.own_address.route_to", lambda host: "10.9.0.2")
    service = ServeSettings(engine="vllm")
    worker = msgspec.structs.replace(WORKER, role=Role.PREFILL, gateways=("tcp://10.9.0.1:7",))
    engine = VllmWorkers().process(worker, service)
    got = settled(on_ray.rank_document(engine, "llama", draw_secret(), 0, None))
    assert (got.host, got.bind, got.model) == ("10.9.0.2", "tcp://10.9.0.2:0", str(found / "llama"))
    reads = "import sys; print(open(sys.argv[1]).read())"
    read = subprocess.run(
        [sys.executable, "-c", reads, got.secret], capture_output=True, text=True, check=True
    )
    assert len(bytes.fromhex(read.stdout)) == 32, "although it is another process"
    assert VllmWorkers().seats(worker) == 1, "one process has both ranks"


def test_off_loopback_a_secret_is_drawn_and_on_loopback_none_is_needed(tmp_path):
    assert on_ray.secret_for(None, "tcp://127.0.0.1:7") is None
    drawn = on_ray.secret_for(None, "tcp://10.0.0.1:7")
    assert drawn is not None
    file = tmp_path / "SECRET"
    file.write_text(drawn)
    file.chmod(0o600)
    assert on_ray.secret_for(str(file), "tcp://10.0.0.1:7") == drawn


def test_without_ray_the_extra_is_named(monkeypatch, capsys):
    monkeypatch.setattr(on_ray.importlib.util, "find_spec", lambda name: None)
    assert run(["serve", "--on", "ray"]) == 2
    assert "pip install 'baton-llm[ray]'" in capsys.readouterr().err
