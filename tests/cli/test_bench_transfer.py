"""`baton bench transfer` as it is typed: two real processes, every byte verified."""

import json

import pytest

from baton.cli.main import run
from baton.dev.bench.transfer.figures import Figures

TINY = ["--num-layers", "2", "--num-kv-heads", "4", "--head-dim", "8", "--rounds", "1"]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--fabric", "shm,carrier"], ["--fabric carrier", "shm, nixl, mooncake, tcp"]),
        (["--prefill-tp", "0"], ["--prefill-tp 0", "from 1 to 64"]),
        (["--decode-pp", "x"], ["--decode-pp x"]),
        (
            ["--prefill-tp", "1,2,4", "--decode-tp", "1,2"],
            ["--prefill-tp", "--decode-tp", "as many"],
        ),
        (["--decode-tp", "3"], ["8 heads", "width 3"]),
        (["--decode-pp", "33"], ["pipeline width 33", "32 layers"]),
        (["--page-size", "24"], ["--page-size 24", "multiple of 16"]),
        (["--context-len", "0"], ["--context-len 0", "at least 1"]),
        (["--pages", "heaped"], ["--pages heaped", "adjacent, scattered"]),
        (["--dtype", "int3"], ["--dtype int3", "bfloat16"]),
        (["--json", "/no/such/place/x.json"], ["--json", "no such directory"]),
        # said by the process that makes the pool
        (["--context-len", "1000000000"], ["GiB", "pages"]),
    ],
)
def test_a_flag_that_cannot_be_is_one_line(flags, words, capsys):
    assert run(["bench", "transfer", *flags]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert [word for word in words if word not in line] == []


def test_a_handoff_between_two_processes_is_measured_and_written(tmp_path, capsys):
    files = tmp_path / "a.json", tmp_path / "a.svg"
    flags = [
        "--fabric",
        "tcp,shm",
        "--prefill-tp",
        "1,4",
        "--decode-tp",
        "2,1",
        "--context-len",
        "40,300",
        "--decode-page-size",
        "32",
    ]
    out = ["--json", str(files[0]), "--plot", str(files[1])]
    assert run(["bench", "transfer", *TINY, *flags, *out, "--void-below", "1e6"]) == 1
    assert capsys.readouterr().out.count(" void") == 16
    runs = json.loads(files[0].read_text())["runs"]
    assert [
        (r["fabric"], r["prefill_tp"], r["decode_tp"], r["context_len"], r["pages"]) for r in runs
    ] == [
        (fabric, p, d, n, pages)
        for fabric in ("tcp", "shm")
        for p, d in ((1, 2), (4, 1))
        for n in (40, 300)
        for pages in ("adjacent", "scattered")
    ]
    assert [r["socket_gb_per_s"] is None for r in runs] == [False] * 8 + [True] * 8
    assert set(runs[0]) == set(Figures.__struct_fields__)
    token_bytes = 2 * 2 * 4 * 8 * 2
    assert [r["bytes"] for r in runs[:4:2]] == [48 * token_bytes, 304 * token_bytes]  # whole blocks
    assert all(
        r["ratio"] == pytest.approx(r["gb_per_s"] / r["single_range_gb_per_s"]) for r in runs
    )
    assert [(r["descriptors"], r["legs"]) for r in runs[3::4]] == [(2 * 19, 2), (4 * 19, 4)] * 2
    assert files[1].read_text().startswith("<svg")
