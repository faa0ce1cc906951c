"""Checkpoints that cannot be served, given to the command as an operator would: exit code 2 and one
line that says why."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import make_tiny

from baton.cli.main import run

DOWN = "model.layers.1.mlp.down_proj.weight"
Spoil = Callable[[Path], object]


def config(**changes: object) -> Spoil:
    def spoil(path: Path) -> None:
        file = path / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return spoil


def cut(name: str, keep: int) -> Spoil:
    return lambda path: (path / name).write_bytes((path / name).read_bytes()[:keep])


def replace(name: str, text: str) -> Spoil:
    return lambda path: (path / name).write_text(text)


def remove(name: str) -> Spoil:
    return lambda path: (path / name).unlink()


def tensor(change: Callable[[torch.Tensor], torch.Tensor | None]) -> Spoil:
    def spoil(path: Path) -> None:
        found = load_file(path / "model.safetensors")
        changed = change(found.pop(DOWN))
        save_file(found if changed is None else found | {DOWN: changed}, path / "model.safetensors")

    return spoil


def file_into_parts(path: Path) -> None:
    """An index that names two files, of which one is not there."""
    (path / "model.safetensors").rename(path / "model-00001-of-00002.safetensors")
    placed = {
        DOWN: "model-00002-of-00002.safetensors",
        "model.norm.weight": "model-00001-of-00002.safetensors",
    }
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))


WORKER: dict[str, tuple[Spoil, list[str]]] = {
    "architecture": (
        config(architectures=["MambaForCausalLM"]),
        ["MambaForCausalLM", "LlamaForCausalLM", "Phi3ForCausalLM"],
    ),
    "no architecture": (config(architectures=None, model_type="odd"), ["odd", "LlamaForCausalLM"]),
    "quantised": (
        config(quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True}),
        ["bitsandbytes", "bfloat16", "awq", "gptq", "fp8"],
    ),
    "no config": (remove("config.json"), ["config.json"]),
    "config cut short": (cut("config.json", 40), ["config.json"]),
    "number of rope": (
        config(rope_parameters={"rope_type": "linear", "rope_theta": 10_000.0, "factor": 10**400}),
        ["factor", "below 1e+38"],
    ),
    "number": (config(rms_norm_eps=10**400), ["rms_norm_eps", "below 1e+38"]),
    "field": (config(num_attention_heads="four"), ["num_attention_heads", "four"]),
    "activation": (config(hidden_act="gelu"), ["gelu", "silu"]),
    "rope": (config(rope_parameters={"rope_type": "spiral"}), ["spiral", "yarn"]),
    "no weights": (remove("model.safetensors"), ["safetensors"]),
    "weights cut short": (cut("model.safetensors", -100), ["model.safetensors", "damaged"]),
    "empty weights": (cut("model.safetensors", 0), ["model.safetensors", "damaged"]),
    "missing file": (file_into_parts, ["model-00002-of-00002.safetensors"]),
    "missing tensor": (tensor(lambda _: None), [DOWN]),
    "wrong shape": (tensor(lambda t: t[:-1].contiguous()), [DOWN, "[63, 128]", "[64, 128]"]),
    "quantised tensor": (tensor(lambda t: t.to(torch.int8)), [DOWN, "I8", "bfloat16"]),
    "dtype": (config(dtype="float8_e4m3fn"), ["float8_e4m3fn", "bfloat16"]),
}
GATEWAY: dict[str, tuple[Spoil, list[str]]] = {
    "no tokenizer": (remove("tokenizer.json"), ["tokenizer.json"]),
    "tokenizer cut short": (cut("tokenizer.json", 1000), ["tokenizer.json", "damaged"]),
    "another file": (replace("tokenizer.json", '{"a": 1}'), ["tokenizer.json", "damaged"]),
}


def refused(argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(argv) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("baton: ")
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize("case", WORKER)
def test_a_worker_says_why_it_cannot_serve_a_checkpoint(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, words = WORKER[case]
    spoil(make_tiny(tmp_path))
    argv = [
        "worker",
        "--gateway=tcp://127.0.0.1:1",
        "--role=decode",
        "--kv-pages=4",
        "--fabric=shm",
        str(tmp_path),
    ]
    refused(argv, words, capsys)


@pytest.mark.parametrize("case", GATEWAY)
def test_a_gateway_says_why_it_has_no_tokenizer(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, words = GATEWAY[case]
    spoil(make_tiny(tmp_path))
    refused(["gateway", "--port", "0", str(tmp_path)], words, capsys)
