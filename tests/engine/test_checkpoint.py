"""Reading a Hugging Face directory: which tensors, their values, the identity of the weights, and
every damaged form."""

import json
import subprocess
import sys
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.tiny import END, make_tiny

from baton.core.errors import ConfigError
from baton.engine.checkpoint import INDEX, Checkpoint

BF16 = torch.bfloat16
BIG = 100_000  # bytes; more than the 16 samples of 4 KB


def weights() -> dict[str, torch.Tensor]:
    some = torch.Generator().manual_seed(3)
    return {
        "b.weight": torch.randn(8, 4, generator=some),
        "a.weight": torch.randn(BIG // 2, generator=some).to(BF16),
        "c.scale": torch.tensor(1.5, dtype=torch.float16),
    }


def write(
    directory: Path,
    tensors: Mapping[str, torch.Tensor] | None = None,
    *,
    name: str = "model.safetensors",
) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text('{"architectures": ["X"]}')
    save_file(dict(weights() if tensors is None else tensors), directory / name)
    return directory


def write_sharded(directory: Path) -> Path:
    """b.weight in the first file, the others in the second, and a file that the index does not
    name."""
    tensors = weights()
    first = {"b.weight": tensors.pop("b.weight")}
    write(directory, first, name="model-00001-of-00002.safetensors")
    write(directory, tensors, name="model-00002-of-00002.safetensors")
    write(directory, {"stray": torch.zeros(1)}, name="consolidated.safetensors")
    placed = dict.fromkeys(first, "model-00001-of-00002.safetensors") | dict.fromkeys(
        tensors, "model-00002-of-00002.safetensors"
    )
    (directory / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": placed}))
    return directory


def identity(tensors: Mapping[str, torch.Tensor], directory: Path, served: str = "bfloat16") -> str:
    return Checkpoint.open(write(directory, tensors)).identity(served)


def test_config_and_headers(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write(tmp_path))
    assert checkpoint.config == {"architectures": ["X"]}
    found = {name: (stored.dtype, stored.shape) for name, stored in checkpoint.tensors.items()}
    assert found == {
        "a.weight": ("BF16", (BIG // 2,)),
        "b.weight": ("F32", (8, 4)),
        "c.scale": ("F16", ()),
    }


@pytest.mark.parametrize("writer", [write, write_sharded])
def test_tensors_come_back_in_the_dtype_asked_for(tmp_path: Path, writer) -> None:
    checkpoint = Checkpoint.open(writer(tmp_path))
    assert sorted(checkpoint.tensors) == ["a.weight", "b.weight", "c.scale"]
    for name, tensor in weights().items():
        for dtype in (torch.float32, BF16):
            loaded = checkpoint.load(name, dtype)
            assert loaded.dtype == dtype
            assert torch.equal(loaded, tensor.to(dtype))


def test_headers_are_known_without_torch(tmp_path: Path) -> None:
    """Of fp8 weights too: importing torch takes seconds, and a bad checkpoint is named in one."""
    write(tmp_path)
    said = "import sys; from pathlib import Path; from baton.engine.checkpoint import Checkpoint; "
    said += "Checkpoint.open(Path(sys.argv[1])); sys.exit('torch' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", said, str(tmp_path)], check=False, timeout=60
        ).returncode
        == 0
    )


def test_a_loaded_tensor_does_not_follow_its_file(tmp_path: Path) -> None:
    loaded = Checkpoint.open(write(tmp_path)).load("a.weight", BF16)
    path = tmp_path / "model.safetensors"
    with path.open("r+b") as file:  # in place: a mapping would see it
        file.seek(-BIG // 2, 2)
        file.write(bytes(BIG // 2))
    assert torch.equal(loaded, weights()["a.weight"])


def test_without_an_index_a_copy_in_another_format_is_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"stray": torch.zeros(1)}, name="consolidated.safetensors")
    assert "stray" not in Checkpoint.open(write(tmp_path)).tensors


def test_without_index_or_usual_name_all_files_are_read(tmp_path: Path) -> None:
    write(tmp_path, {"x": torch.zeros(1)}, name="one.safetensors")
    write(tmp_path, {"y": torch.zeros(1)}, name="two.safetensors")
    assert set(Checkpoint.open(tmp_path).tensors) == {"x", "y"}


def test_identity_is_what_the_protocol_says(tmp_path: Path) -> None:
    """Written out once more: workers of different versions pair by this value."""
    digest = blake2b(b"bfloat16", digest_size=32)
    for name, dtype, shape in (
        ("a.weight", "BF16", f"({BIG // 2},)"),
        ("b.weight", "F32", "(8, 4)"),
        ("c.scale", "F16", "()"),
    ):
        digest.update(f"\0{name}\0{dtype}\0{shape}\0".encode())
        raw = weights()[name].reshape(-1).view(torch.uint8).numpy().tobytes()
        for i in range(16):
            at = max(0, len(raw) - 4096) * i // 15
            digest.update(raw[at : at + 4096])
    assert Checkpoint.open(write(tmp_path)).identity("bfloat16") == digest.hexdigest()


def test_identity_does_not_see_how_the_tensors_are_filed(tmp_path: Path) -> None:
    whole, sharded = (
        Checkpoint.open(write(tmp_path / "whole")),
        Checkpoint.open(write_sharded(tmp_path / "sharded")),
    )
    assert whole.identity("bfloat16") == sharded.identity("bfloat16")
    assert len(bytes.fromhex(whole.identity("bfloat16"))) == 32


def test_identity_sees_every_difference(tmp_path: Path) -> None:
    base = weights()
    renamed = {("d.scale" if n == "c.scale" else n): t for n, t in base.items()}
    swapped = base | {"b.weight": base["b.weight"].reshape(4, 8)}
    retyped = base | {"c.scale": base["c.scale"].view(torch.int16)}
    first, last, small = (base | {n: base[n].clone()} for n in ("a.weight", "a.weight", "b.weight"))
    first["a.weight"][0] += 1
    last["a.weight"][-1] += 1
    small["b.weight"][5, 2] += 1e-6
    fewer = {n: t for n, t in base.items() if n != "c.scale"}
    kinds = [base, renamed, swapped, retyped, first, last, small, fewer]
    found = [identity(tensors, tmp_path / str(i)) for i, tensors in enumerate(kinds)]
    found.append(identity(base, tmp_path / "served", served="float32"))
    assert len(set(found)) == len(found)


def refusal(directory: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        Checkpoint.open(directory)
    return str(caught.value)


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    assert str(tmp_path / "nowhere") in refusal(tmp_path / "nowhere")


def test_no_config(tmp_path: Path) -> None:
    (write(tmp_path) / "config.json").unlink()
    assert str(tmp_path / "config.json") in refusal(tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "\ud800"])
def test_a_config_that_is_no_config(tmp_path: Path, text: str) -> None:
    (write(tmp_path) / "config.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    assert str(tmp_path / "config.json") in refusal(tmp_path)


@pytest.mark.parametrize("method", ["bitsandbytes", "aqlm", "hqq", "auto-round"])
@pytest.mark.parametrize("form", ["object", "word", "compression"])
def test_quantised_weights_are_refused_by_name(tmp_path: Path, method: str, form: str) -> None:
    said = method if form == "word" else {"quant_method": method, "bits": 4}
    field = "compression_config" if form == "compression" else "quantization_config"
    (write(tmp_path) / "config.json").write_text(json.dumps({field: said}))
    message = refusal(tmp_path)
    assert method in message
    assert "supported are" in message


def test_weights_quantised_by_modelopt_say_so_in_a_file_of_their_own(tmp_path: Path) -> None:
    (write(tmp_path) / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "NVFP4"}}'
    )
    assert "NVFP4" in refusal(tmp_path)


def test_no_weights(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").unlink()
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    assert "safetensors" in refusal(tmp_path)


@pytest.mark.parametrize("keep", [0, 4, 8, 60, -1])
def test_a_truncated_file_is_named(tmp_path: Path, keep: int) -> None:
    path = write(tmp_path) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert str(path) in refusal(tmp_path)


@pytest.mark.parametrize(
    "head", [b"\xff" * 8, b"version https://git-lfs.github.com/spec/v1\n", bytes(8)]
)
def test_a_file_of_something_else_is_named(tmp_path: Path, head: bytes) -> None:
    path = write(tmp_path) / "model.safetensors"
    path.write_bytes(head + path.read_bytes()[len(head) :])
    assert str(path) in refusal(tmp_path)


def test_a_file_that_is_cut_after_it_was_opened_is_named(tmp_path: Path) -> None:
    checkpoint = Checkpoint.open(write(tmp_path))
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ConfigError, match=r"model\.safetensors"):
        checkpoint.load("a.weight", BF16)


def test_a_shard_that_is_not_there_is_named(tmp_path: Path) -> None:
    (write_sharded(tmp_path) / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refusal(tmp_path)


@pytest.mark.parametrize(
    "index", ["{", "{}", '{"weight_map": []}', '{"weight_map": {}}', '{"weight_map": {"a": 1}}']
)
def test_a_damaged_index_is_named(tmp_path: Path, index: str) -> None:
    (write(tmp_path) / INDEX).write_text(index)
    assert INDEX in refusal(tmp_path)


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"q_proj\.weight"):
        Checkpoint.open(write(tmp_path)).load("model.layers.0.self_attn.q_proj.weight", BF16)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_a_tiny_model_reads_as_transformers_saved_it(tmp_path: Path, family: str) -> None:
    checkpoint = Checkpoint.open(make_tiny(tmp_path, family))
    saved = load_file(tmp_path / "model.safetensors")
    assert set(checkpoint.tensors) == set(saved)
    assert all(
        torch.equal(checkpoint.load(name, torch.float32), tensor) for name, tensor in saved.items()
    )
    assert checkpoint.config["model_type"] == family
    assert checkpoint.config["eos_token_id"] == END
    assert checkpoint.load("model.embed_tokens.weight", torch.float32)[END].abs().max() == 0


def test_a_tiny_model_is_its_seed(tmp_path: Path) -> None:
    made = [make_tiny(tmp_path / name, seed=seed) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    first, again, other = (Checkpoint.open(path).identity("float32") for path in made)
    assert first == again != other
