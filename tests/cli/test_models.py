"""What MODEL on a command line may be, and `baton models`. The Hub stands behind its client's one
call, which tests replace."""

import json
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from tests.tiny import make_tiny

from baton.cli import serve
from baton.cli.main import run
from baton.engine import hub
from baton.engine.models import FAMILIES
from baton.vocabulary.load import READERS

ID = "relay/tiny"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub's client, which asks no network."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


@pytest.fixture
def fetched(cache: Path) -> Path:
    """A snapshot as the client files it."""
    model = cache / "models--relay--tiny"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    return make_tiny(model / "snapshots" / ("0" * 40))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The directories that `serve` would serve from."""
    seen: list[str] = []

    def supervise(gateways, workers, _):
        seen.extend([p.model for p in (*gateways, *workers)])
        return 0

    monkeypatch.setattr(serve, "supervise", supervise)
    return seen


def refused(argv: list[str], words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert run(argv) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("baton: ")
    assert [word for word in words if word not in line] == []


def test_the_list_names_every_architecture(capsys):
    assert run(["models", "list"]) == 0
    table = capsys.readouterr().out
    assert [name for family in FAMILIES for name in family.architectures if name not in table] == []
    assert run(["models", "list", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["architectures"] for row in found["families"]] == [
        list(family.architectures) for family in FAMILIES
    ]
    assert found["tokenizer_files"] == ["tokenizer.json", "tiktoken.model", "tekken.json"]
    assert "tokenizer.json, tiktoken.model, tekken.json" in table
    full = {
        "group": "full",
        "unit": "page",
        "extent": "full",
        "specs": [{"name": "kv", "parts": ["k", "v"]}],
    }
    window = {"group": "window", "unit": "page", "specs": [{"name": "swa", "parts": ["k", "v"]}]}
    latent, index = {"name": "latent", "parts": ["c"]}, {"name": "index.k", "parts": ["k"]}
    states = {row["family"]: row["state"] for row in found["families"]}
    assert states["Llama"] == states["Qwen3-MoE"] == [full]
    assert states["Mistral"] == [window | {"extent": "last 4096"}]
    assert states["gpt-oss"] == [full, window | {"extent": "last 128"}]
    assert states["Gemma 3"] == [full, window | {"extent": "last 4096"}]
    assert states["DeepSeek-V2"] == states["DeepSeek-V3"] == [full | {"specs": [latent]}]
    assert states["DeepSeek-V3.2"] == states["GLM-5"] == [full | {"specs": [latent, index]}]
    recurrent = [
        {"name": "delta", "parts": ["s"]},
        *({"name": f"conv.{x}", "parts": ["x"]} for x in "qkv"),
    ]
    slot = {"group": "slot", "unit": "slot", "extent": "whole", "specs": recurrent}
    assert states["Qwen3-Next"] == states["Qwen3.5"] == states["Qwen3.5-MoE"] == [full, slot]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a/b", True),
        ("a-1/b.2_c", True),
        ("a", False),
        ("a/b/c", False),
        ("/a/b", False),
        ("./a", False),
    ],
)
def test_what_can_be_an_id(name, expected):
    assert hub.is_id(name) == expected


def test_a_model_in_the_hubs_cache_is_served_without_network(fetched, planned):
    assert run(["serve", "--port", "0", ID]) == 0
    assert set(planned) == {str(fetched)}


def test_a_model_that_is_not_here_is_fetched_and_served_from_where_it_came(
    cache, planned, monkeypatch, tmp_path
):
    made = make_tiny(tmp_path / "made")
    calls: list[str] = []

    def download(model, **options):
        if options.get("local_files_only"):
            raise errors.LocalEntryNotFoundError("not here")
        calls.append(model)
        return str(made)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert run(["serve", "--port", "0", ID]) == 0
    assert calls == [ID]
    assert set(planned) == {str(made)}


def test_a_directory_comes_before_an_id(tmp_path, monkeypatch, planned):
    make_tiny(tmp_path / "relay" / "tiny")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *_, **__: pytest.fail("it asked the Hub")
    )
    assert run(["serve", "--port", "0", ID]) == 0
    assert set(planned) == {str(tmp_path / "relay" / "tiny")}


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            lambda: errors.LocalEntryNotFoundError("no route\nto host"),
            [ID, "no route", "directory"],
        ),
        (lambda: RuntimeError("connection reset"), [ID, "connection reset"]),
        (lambda: OSError(28, "No space left on device"), [ID, "No space left"]),
        (
            lambda: errors.RepositoryNotFoundError.__new__(errors.RepositoryNotFoundError),
            [ID, "no such model", "hf auth login"],
        ),
        (
            lambda: errors.GatedRepoError.__new__(errors.GatedRepoError),
            [ID, "gated", "hf auth login"],
        ),
    ],
)
def test_why_a_model_cannot_be_fetched_is_one_line(cache, monkeypatch, capsys, error, words):
    def download(_model, **options):
        raise (
            errors.LocalEntryNotFoundError("not here")
            if options.get("local_files_only")
            else error()
        )

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    refused(["models", "pull", ID], words, capsys)


@pytest.mark.parametrize("name", READERS)
def test_every_file_that_may_hold_the_vocabulary_is_fetched(name):
    assert any(fnmatch(name, pattern) for pattern in hub.WANTED)


def test_a_worker_fetches_nothing(cache, capsys):
    refused(["worker", "--gateway=tcp://127.0.0.1:1", ID], [ID, f"baton models pull {ID}"], capsys)


def test_a_file_that_is_not_converted_or_no_gguf(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "tiny.gguf"
    refused(["gateway", "--port", "0", str(file)], [str(file), "No such file"], capsys)
    file.write_bytes(b"GGUF" * 100)
    refused(["gateway", "--port", "0", str(file)], [f"baton models pull {file}"], capsys)
    refused(["serve", "--port", "0", str(file)], [str(file), "damaged"], capsys)


def test_what_cannot_be_pulled(tmp_path, capsys):
    refused(
        ["models", "pull", str(tmp_path)], [str(tmp_path), "smollm2", "owner/model", "GGUF"], capsys
    )
