"""Starts that cannot be, through the command itself, in processes of their own.

Each ends by itself with one line on stderr that names the value, the limit and what to do, exit
code 2 and no traceback, and leaves nothing: no process, no file, no port that stays taken.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psutil
import pytest
from safetensors.numpy import save_file
from tests.gateway.models import byte_vocabulary

from baton.adapters.nixl_agent import PACKAGES

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 128,
    "torch_dtype": "float32",
}
MAIN = "from baton.cli.main import main; main()"
# as if it were not installed
WITHOUT_NIXL = f"import sys; sys.modules |= dict.fromkeys({PACKAGES!r}); {MAIN}"
ENDS_S = 60  # far beyond what any of them takes: a bound on a test that hangs


class Start(NamedTuple):
    """A command line, and what its last line on stderr must hold. quick: that is its only line,
    said before anything starts."""

    argv: tuple[str, ...]
    words: tuple[str, ...]
    quick: bool = True
    main: str = MAIN


class Ended(NamedTuple):
    """How it ended; `left` names processes and files that are still there."""

    code: int
    out: str
    err: list[str]
    left: list[str]


def untouched(weights: bytes) -> bytes:
    return weights


CHECKPOINTS: dict[str, tuple[dict[str, object], Callable[[bytes], bytes]]] = {
    "fine": ({}, untouched),
    "mute": ({}, untouched),  # without a tokenizer
    "mamba": ({"architectures": ["MambaForCausalLM"]}, untouched),
    "hot": ({}, untouched),  # with a generation_config.json that cannot be
    "bnb": ({"quantization_config": {"quant_method": "bitsandbytes"}}, untouched),
    "cut": ({}, lambda weights: weights[:1000]),
    "bad": ({}, lambda weights: weights[:8] + b"\xff" * 40 + weights[48:]),
    "none": ({}, lambda weights: b""),
}
FILES = {"a.toml": "kv-memry = '1GiB'", "b.toml": "port = = 1", "c.toml": "port = true"}
HERE = ("--fabric-host=127.0.0.1", "--bind=tcp://127.0.0.1:0")
SERVE, WORKER, GATEWAY = (
    ("serve", "fine"),
    ("worker", "--gateway=tcp://127.0.0.1:1"),
    ("gateway", "fine", "--port=0"),
)

# TAKEN is a port of loopback; the commands run in a directory that holds CHECKPOINTS and FILES
STARTS: dict[str, Start] = {
    "missing directory": Start(
        ("serve", "/no/such/model"), ("/no/such/model", "no such directory", "Hub id")
    ),
    "unsupported architecture": Start(
        ("serve", "mamba", "--port=0"),
        ("MambaForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"),
        quick=False,
    ),
    "quantised": Start(("serve", "bnb"), ("quantised with bitsandbytes", "bfloat16", "GGUF")),
    "truncated weights": Start(
        ("serve", "cut"), ("cut/model.safetensors", "1000 bytes", "damaged", "fetch it again")
    ),
    "corrupt weights": Start(
        ("serve", "bad"), ("bad/model.safetensors", "damaged", "fetch it again")
    ),
    "empty weights": Start(
        ("serve", "none"), ("none/model.safetensors", "0 bytes", "fetch it again")
    ),
    "truncated weights of a worker": Start(
        (*WORKER, "cut"), ("cut/model.safetensors", "1000 bytes", "fetch it again")
    ),
    "port in use": Start((*SERVE, "--port=TAKEN"), ("127.0.0.1:TAKEN", "in use", "--port")),
    "a demo for other machines": Start(
        (*SERVE, "--demo", "--host=0.0.0.0"), ("--demo", "--host 0.0.0.0", "kill workers")
    ),
    "a demo on Ray": Start((*SERVE, "--demo", "--on=ray"), ("--demo", "--on ray")),
    "control address in use": Start(
        (*GATEWAY, "--control=tcp://127.0.0.1:TAKEN"), ("127.0.0.1:TAKEN", "in use", "--control")
    ),
    "control for all without a secret": Start(
        (*GATEWAY, "--control=tcp://0.0.0.0:0"), ("0.0.0.0", "--secret")
    ),
    "a gateway on another machine without a secret": Start(
        ("worker", "fine", "--role=decode", "--gateway=tcp://10.0.0.1:5500", *HERE),
        ("10.0.0.1:5500", "--secret FILE"),
    ),
    "a fabric for other machines without a secret": Start(
        (*WORKER, "fine", "--fabric-host=10.0.0.1"), ("--fabric-host 10.0.0.1", "--secret FILE")
    ),
    "pools beyond the machine": Start(
        (*SERVE, "--kv-memory=100TiB"), ("200 TiB", "available", "--kv-memory", "decode-0")
    ),
    "a worker's pool beyond the machine": Start(
        (*WORKER, "fine", "--kv-memory=100TiB"), ("100 TiB", "available", "--kv-memory")
    ),
    "fabric that is not installed": Start(
        (*SERVE, "--fabric=nixl"),
        ("fabric nixl", "pip install", "work here: shm"),
        main=WITHOUT_NIXL,
    ),
    "longer than the model": Start(
        (*WORKER, "fine", "--max-model-len=129"),
        ("--max-model-len 129", "128 positions"),
        quick=False,
    ),
    "KV events at a port in use": Start(
        (
            *SERVE,
            '--kv-events-config={"enable_kv_cache_events": true, '
            '"endpoint": "tcp://127.0.0.1:TAKEN"}',
        ),
        ("--kv-events-config", "endpoint tcp://127.0.0.1:TAKEN", "in use", "another port"),
    ),
    "KV events of a worker at an address of another machine": Start(
        (
            *WORKER,
            "fine",
            '--kv-events-config={"enable_kv_cache_events": true, "endpoint": "tcp://192.0.2.1:1"}',
        ),
        ("--kv-events-config", "endpoint tcp://192.0.2.1:1", "an address of this machine"),
    ),
    "KV events by an unknown key": Start(
        (*SERVE, '--kv-events-config={"enable": true}'),
        ("--kv-events-config", "'enable' is no key", "enable_kv_cache_events"),
    ),
    "drafts by another model": Start(
        (*SERVE, '--speculative-config={"method": "eagle"}'),
        ("--speculative-config", "method 'eagle'", "ngram, suffix"),
    ),
    "a draft layer over stages of a pipeline": Start(
        (*WORKER, "fine", "--pp=2", '--speculative-config={"method": "mtp"}'),
        ("--speculative-config", "method mtp", "--pp 2", "--tp"),
    ),
    "a draft layer that the model lacks": Start(
        (*WORKER, "fine", '--speculative-config={"method": "mtp"}'),
        ("--speculative-config", "method mtp", "Llama", "suffix"),
        quick=False,
    ),
    "page size": Start((*SERVE, "--page-size=20"), ("20 tokens", "multiple of 16")),
    "missing secret": Start((*SERVE, "--secret=/no/secret"), ("/no/secret", "No such file")),
    "TOML with an unknown flag": Start(
        (*SERVE, "--config=a.toml"), ("a.toml", "kv-memry", "did you mean kv-memory")
    ),
    "no TOML": Start((*SERVE, "--config=b.toml"), ("b.toml", "not TOML", "line 1")),
    "TOML with a value of another type": Start(
        (*SERVE, "--config=c.toml"), ("c.toml: port = True", "true and false")
    ),
    "missing TOML": Start((*SERVE, "--config=no.toml"), ("no.toml", "No such file")),
    "override that is not JSON": Start(
        (*SERVE, "--override-generation-config=temperature"),
        ("--override-generation-config 'temperature'", "not JSON"),
    ),
    "override of an unknown key": Start(
        (*GATEWAY, '--override-generation-config={"top": 1}'),
        ("--override-generation-config", '"top"', "did you mean top_"),
    ),
    "override beyond its limit": Start(
        (*SERVE, '--override-generation-config={"temperature": -1}'),
        ("temperature = -1", "greater than or equal to 0"),
    ),
    "a certificate that is not there": Start(
        (*SERVE, "--ssl-certfile=/no/cert.pem"),
        ("--ssl-certfile /no/cert.pem", "No such file", "PEM"),
    ),
    "a key without its certificate": Start(
        (*GATEWAY, "--ssl-keyfile=a.toml"), ("--ssl-keyfile", "a.toml", "--ssl-certfile")
    ),
    "origins that are no list": Start(
        (*SERVE, "--allowed-origins=https://a"), ("--allowed-origins https://a", "JSON list")
    ),
    "folder without a generation config": Start(
        (*SERVE, "--generation-config=mute"), ("mute", "auto, vllm, or a folder")
    ),
    "a model's generation config beyond its limits": Start(
        ("gateway", "hot", "--port=0"),
        ("hot/generation_config.json", "temperature = -1", "--generation-config vllm"),
    ),
    "no tokenizer": Start(
        ("gateway", "mute", "--port=0"), ("mute/tokenizer.json", "does not exist")
    ),
}


def prepare(home: Path) -> None:
    """Checkpoints of a Llama as small as they come, enough for whatever looks at config and
    headers, and config files."""
    for name, (changes, spoil) in CHECKPOINTS.items():
        (home / name).mkdir()
        if name != "mute":
            byte_vocabulary().save(str(home / name / "tokenizer.json"))
        (home / name / "config.json").write_text(json.dumps(CONFIG | changes))
        if name == "hot":
            (home / name / "generation_config.json").write_text('{"temperature": -1}')
        weights = home / name / "model.safetensors"
        save_file({"model.embed_tokens.weight": np.zeros((32, 16), np.float32)}, weights)
        weights.write_bytes(spoil(weights.read_bytes()))
    for name, text in FILES.items():
        (home / name).write_text(text)


def run_to_its_end(case: Start, home: Path, ports: dict[str, str]) -> Ended:
    """In a session and with a temporary directory of its own."""

    def fill(text: str) -> str:
        for name, port in ports.items():
            text = text.replace(name, port)
        return text

    with tempfile.TemporaryDirectory(dir=home) as scratch:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", case.main, *map(fill, case.argv)],
            cwd=home,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"TMPDIR": scratch},
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=ENDS_S)
            left = [f"process {p}" for p in in_session(process.pid)] + [
                f"file {name}" for name in os.listdir(scratch)
            ]
        except subprocess.TimeoutExpired:
            left = [f"it did not end in {ENDS_S} s"]
            for one in (*in_session(process.pid), process):
                one.kill()
            out, err = process.communicate()
        said = [line.replace(ports["TAKEN"], "TAKEN") for line in err.splitlines()]
        return Ended(process.returncode, out, said, left)


def in_session(leader: int) -> list[psutil.Process]:
    """The processes that it started, and those that these started."""

    def session(pid: int) -> int:
        try:
            return os.getsid(pid)
        except ProcessLookupError:
            return 0

    return [
        psutil.Process(pid) for pid in psutil.pids() if pid != leader and session(pid) == leader
    ]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where they start."""
    home = tmp_path_factory.mktemp("starts")
    prepare(home)
    return home


@pytest.fixture
def taken() -> Iterator[str]:
    """A port of loopback that somebody else listens on."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        yield str(holder.getsockname()[1])


@pytest.mark.parametrize("case", [pytest.param(case, id=name) for name, case in STARTS.items()])
def test_one_line_says_why_and_nothing_is_left(case: Start, home: Path, taken: str) -> None:
    end = run_to_its_end(case, home, {"TAKEN": taken})
    assert end.left == []
    assert end.code == 2, end
    line = end.err[-1]
    assert line.startswith("baton: ")
    assert [word for word in case.words if word not in line] == [], line
    assert "Traceback" not in "".join(end.err) + end.out
    if case.quick:
        assert end.err == [line], "one line"
        assert end.out == ""
