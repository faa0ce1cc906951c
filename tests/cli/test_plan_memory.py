"""`baton plan-memory`: what it says is what the state takes, and what a worker gets."""

import json
from pathlib import Path

import pytest
from tests.tiny import make_tiny

from baton.cli.main import run

MIB = 1 << 20


def said(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    capsys.readouterr()
    assert run(["plan-memory", *argv, "--json"]) == 0
    found: dict = json.loads(capsys.readouterr().out)
    return found


def test_pages_tokens_and_requests_follow_from_the_sizes_of_the_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(make_tiny(tmp_path / "m"))  # 2 layers, 2 K/V heads of 16, float32, 4,096 positions
    row = 2 * 2 * 2 * 16 * 4  # bytes of a token: layers, k and v, heads, dim
    found = said(capsys, path, "--kv-memory", "8MiB", "--page-size", "32")
    (pool,) = found["pools"]
    pages = 8 * MIB // (32 * row)
    assert (pool["page_bytes"], pool["pages"], pool["tokens"]) == (32 * row, pages, 32 * pages)
    assert found["fits"] == {"512": pages // 16, "2048": pages // 64, "4096": pages // 128}
    halved = said(capsys, path, "--kv-memory", "8MiB", "--page-size", "32", "--tp", "2")
    assert halved["pools"][0]["pages"] == 2 * pages
    few = said(
        capsys,
        path,
        "--kv-memory",
        "8MiB",
        "--page-size",
        "32",
        "--max-num-seqs",
        "3",
        "--max-model-len",
        "600",
    )
    assert few["fits"] == {"512": 3, "600": 3}


def test_the_text_model_inside_a_multimodal_one_is_planned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = make_tiny(tmp_path / "m", "gemma3", num_hidden_layers=4)
    plain = said(capsys, str(path), "--kv-memory", "8MiB")
    file = path / "config.json"
    text = json.loads(file.read_text())
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    file.write_text(json.dumps({**config, "text_config": text, "dtype": text.pop("dtype")}))
    assert said(capsys, str(path), "--kv-memory", "8MiB") == plain


def test_windows_take_no_more_than_rooms_can_use(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(make_tiny(tmp_path / "m", "gemma3", num_hidden_layers=4))  # windows of 20 positions
    found = said(capsys, path, "--kv-memory", "8MiB", "--page-size", "16", "--max-num-seqs", "4")
    pages = {pool["group"]: pool["pages"] for pool in found["pools"]}
    bytes_ = sum(pool["pages"] * pool["page_bytes"] for pool in found["pools"])
    assert pages.pop("window") == 4 * 3  # 20 adjacent positions lie in three pages of 16 at most
    assert next(iter(pages.values())) > 100
    assert bytes_ <= 8 * MIB


def test_decode_that_computes_prompts_has_windows_for_their_chunks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(make_tiny(tmp_path / "m", "gemma3", num_hidden_layers=4))  # windows of 20 positions
    flags = ("--kv-memory", "8MiB", "--page-size", "16", "--max-num-seqs", "4")
    flags += ("--max-num-batched-tokens", "64")

    def window(*more: str) -> int:
        pools = said(capsys, path, *flags, *more)["pools"]
        return next(int(pool["pages"]) for pool in pools if pool["group"] == "window")

    assert window() == window("--local-prefill", "never") == 4 * 3
    # 19 positions before a chunk of 64 and its own lie in seven pages of 16 at most
    assert window("--local-prefill", "auto") == 4 * 7
    assert window("--role", "unified") == window("--role", "unified", "--local-prefill", "auto")
    assert window("--role", "unified") == 4 * 7
    assert window("--local-prefill", "auto", "--pp", "2") == 4 * 11  # a chunk in each stage


def test_host_memory_holds_so_many_requests_that_give_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(make_tiny(tmp_path / "m"))
    row = 2 * 2 * 2 * 16 * 4
    found = said(
        capsys,
        path,
        "--kv-memory",
        "8MiB",
        "--host-kv-memory",
        "3MiB",
        "--tp",
        "2",
        "--max-model-len",
        "600",
    )
    assert (found["host_bytes"], found["away"]) == (
        3 * MIB,
        {"512": 3 * MIB // (512 * row // 2), "600": 3 * MIB // (608 * row // 2)},
    )
    pool = said(capsys, path, "--kv-memory", "8MiB")
    assert pool["host_bytes"] == 2 * pool["pools"][0]["pages"] * pool["pools"][0]["page_bytes"]
    assert said(capsys, path, "--role", "prefill", "--host-kv-memory", "3MiB")["host_bytes"] == 0


def test_host_memory_of_prefill_holds_so_many_ends_of_prompts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(make_tiny(tmp_path / "m", "gemma3", num_hidden_layers=4))  # windows of 20 positions
    flags = ("--role", "prefill", "--host-kv-memory", "3MiB", "--max-model-len", "599")
    flags += ("--page-size", "16")
    found = said(capsys, path, "--kv-memory", "8MiB", *flags)
    window, full = sorted((p["group"] == "full", p["page_bytes"]) for p in found["pools"])
    # of 512 tokens all complete pages are cached; of 599 the last one is not full
    kept = {512: 2 * window[1], 599: 2 * window[1] + full[1]}
    assert found["host_bytes"] == 3 * MIB
    assert found["away"] == {str(n): 3 * MIB // each for n, each in kept.items()}


def test_what_is_free_is_for_all_workers_and_ranks_of_the_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.adapters.memory.available_bytes", lambda: 40 * MIB)
    flags = (str(make_tiny(tmp_path / "m")), "--kv-memory", "8MiB", "--tp", "2")
    assert said(capsys, *flags)["host_bytes"] == 3 * MIB  # a quarter of 24 MiB, for two ranks
    assert said(capsys, *flags, "--host-kv-memory", "auto/3")["host_bytes"] == MIB


def test_people_get_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan-memory", str(make_tiny(tmp_path / "m")), "--kv-memory", "8MiB"]) == 0
    out = capsys.readouterr().out
    assert "4,096 tokens (the longest)" in out
    assert "16,384" in out  # tokens: 8 MiB of 512 bytes


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--kv-memory", "100B"], "holds no page"),
        (["--tp", "3"], "3"),
        (["--page-size", "20"], "multiple of 16"),
        (["--max-model-len", "5000"], "4096"),
        (["--index-dtype", "fp8"], "no index"),
        (["--host-kv-memory", "auto/0"], "--host-kv-memory auto/0: write auto/N"),
        (["--host-kv-memory", "auto/"], "--host-kv-memory auto/: write auto/N"),
    ],
)
def test_what_cannot_be_is_said_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], why: str
) -> None:
    assert run(["plan-memory", str(make_tiny(tmp_path / "m")), *flags]) == 2
    assert why in capsys.readouterr().err
