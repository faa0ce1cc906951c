"""GGUF files: what comes out is the checkpoint that went in, and what would come out wrongly is
refused."""

import json
import os
from pathlib import Path
from typing import Any

import gguf as format
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.tiny import END, PAD, START, make_tiny
from tokenizers import Tokenizer

from baton.core.errors import ConfigError
from baton.engine import gguf
from baton.engine.checkpoint import Checkpoint
from baton.engine.models import FAMILIES
from baton.engine.models.base import family_of

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "phi3": "phi3",
}


def no_news(_: str) -> None:
    pass


def write(
    source: Path,
    file: Path,
    family: str,
    *,
    quantised: bool = False,
    split: str = "qwen2",
    architecture: str | None = None,
    extra: dict[str, Any] | None = None,
    tensor: str | None = None,
) -> Path:
    """The checkpoint as llama.cpp's converter files it."""
    name, config = architecture or ARCHITECTURES[family], Checkpoint.open(source).config
    writer = format.GGUFWriter(file, name)
    writer.add_name(f"tiny {family}")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_parameters"]["rope_theta"])
    dim = config.get("head_dim", 16)
    writer.add_rope_dimension_count(dim)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_vocab_size(config["vocab_size"])
    if family == "mistral" and config["sliding_window"]:
        writer.add_sliding_window(config["sliding_window"])
    for key, value in (extra or {}).items():
        writer.add_string(key, value)
    vocabulary = json.loads((source / "tokenizer.json").read_text())["model"]
    pieces = sorted(vocabulary["vocab"], key=vocabulary["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(split)
    writer.add_token_list(pieces)
    writer.add_token_types([3 if p.startswith("<|") else 1 for p in pieces])
    writer.add_token_merges([" ".join(m) for m in vocabulary["merges"]])
    writer.add_bos_token_id(START)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(PAD)
    names = format.get_tensor_name_map(
        format.MODEL_ARCH[name.upper()] if name.upper() in format.MODEL_ARCH.__members__ else 1, 2
    )
    for key, value in load_file(source / "model.safetensors").items():
        array = value.numpy()
        # rotated pairs lie side by side there
        if name == "llama" and ("q_proj" in key or "k_proj" in key):
            heads = array.shape[0] // 16
            array = array.reshape(heads, 2, 8, -1).swapaxes(1, 2).reshape(array.shape)
        stem, end = key.rsplit(".", 1)
        if quantised and array.ndim == 2:
            kind = format.GGMLQuantizationType.Q8_0
            writer.add_tensor(
                f"{names.get_name(stem)}.{end}", format.quants.quantize(array, kind), raw_dtype=kind
            )
        else:
            writer.add_tensor(f"{names.get_name(stem)}.{end}", np.ascontiguousarray(array))
    if tensor is not None:
        writer.add_tensor(tensor, np.ones(8, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("family", ARCHITECTURES)
def test_a_file_becomes_the_checkpoint_that_it_was_made_from(tmp_path: Path, family: str) -> None:
    overrides = {"mistral": {"sliding_window": 20}, "qwen3": {"head_dim": 128}}.get(family, {})
    source = make_tiny(tmp_path / "source", family, rms_norm_eps=2**-15, **overrides)
    file = write(source, tmp_path / "tiny.gguf", family)
    made = Checkpoint.open(
        gguf.convert_file(file, gguf.directory_of(file, tmp_path / "cache"), no_news)
    )
    original = Checkpoint.open(source)
    known = family_of(original.config, FAMILIES)
    assert family_of(made.config, FAMILIES).read(made.config) == known.read(original.config)
    for name in original.tensors:
        assert torch.equal(made.load(name, torch.float32), original.load(name, torch.float32)), name
    text = "The first runner hands the baton over."
    ids = [
        Tokenizer.from_file(str(d / "tokenizer.json")).encode(text).ids
        for d in (made.directory, source)
    ]
    assert ids[0] == ids[1]


def test_blocks_are_dequantised_to_bfloat16(tmp_path: Path) -> None:
    source = make_tiny(tmp_path / "source", "qwen2")
    file = write(source, tmp_path / "tiny.gguf", "qwen2", quantised=True)
    made = Checkpoint.open(gguf.convert_file(file, tmp_path / "made", no_news))
    assert {stored.dtype for stored in made.tensors.values()} == {"BF16"}
    name = "model.layers.1.mlp.down_proj.weight"
    found, expected = (c.load(name, torch.float32) for c in (made, Checkpoint.open(source)))
    assert (found - expected).abs().max() <= 0.01 * expected.abs().max()


def test_a_file_is_converted_once_and_known_by_its_content(tmp_path: Path) -> None:
    source = make_tiny(tmp_path / "source", "qwen2")
    file = write(source, tmp_path / "tiny.gguf", "qwen2")
    directory = gguf.directory_of(file, tmp_path / "cache")
    gguf.convert_file(file, directory, no_news)
    stamp = (directory / "config.json").stat().st_mtime_ns
    moved = file.rename(tmp_path / "elsewhere.gguf")
    assert (
        gguf.directory_of(moved, tmp_path / "cache").name.split("-")[1:]
        == directory.name.split("-")[1:]
    )
    gguf.convert_file(moved, directory, no_news)
    assert (directory / "config.json").stat().st_mtime_ns == stamp
    moved.write_bytes(moved.read_bytes()[:-4] + b"else")
    assert (
        gguf.directory_of(moved, tmp_path / "cache").name.split("-")[1:]
        != directory.name.split("-")[1:]
    )
    assert os.listdir(tmp_path / "cache") == [directory.name]


def test_a_tokenizer_beside_the_file_is_taken(tmp_path: Path) -> None:
    source = make_tiny(tmp_path / "source", "qwen2")
    file = write(source, source / "tiny.gguf", "qwen2", split="nobody-knows")
    made = gguf.convert_file(file, tmp_path / "made", no_news)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (made / name).read_bytes() == (source / name).read_bytes()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"architecture": "gemma2"}, ["gemma2", "llama, qwen2"]),
        ({"split": "nobody-knows"}, ["nobody-knows", "tokenizer.json"]),
        ({"extra": {"qwen2.rope.scaling.type": "yarn"}}, ["yarn", "safetensors"]),
        ({"tensor": "rope_freqs.weight"}, ["rope_freqs.weight", "safetensors"]),
    ],
)
def test_what_would_be_converted_wrongly_is_refused(
    tmp_path: Path, changes: dict[str, Any], words: list[str]
) -> None:
    file = write(
        make_tiny(tmp_path / "source", "qwen2"), tmp_path / "tiny.gguf", "qwen2", **changes
    )
    with pytest.raises(ConfigError) as caught:
        gguf.convert_file(file, tmp_path / "cache" / "made", no_news)
    assert [word for word in words if word not in str(caught.value)] == []
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("keep", [0, 3, 20, 200, -1000])
def test_a_file_that_is_cut_short_is_named(tmp_path: Path, keep: int) -> None:
    file = write(make_tiny(tmp_path / "source", "qwen2"), tmp_path / "tiny.gguf", "qwen2")
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ConfigError, match=r"tiny\.gguf"):
        gguf.convert_file(file, tmp_path / "made", no_news)
    assert not (tmp_path / "made").exists()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.gguf"):
        gguf.directory_of(tmp_path / "none.gguf", tmp_path)
