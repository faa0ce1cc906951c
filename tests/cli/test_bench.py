"""`baton bench serve` as it is typed."""

import json

import pytest
from tests.bench.service import DONE, USAGE, Script, serving, token

from baton.cli.main import run
from baton.core.errors import ConfigError
from baton.dev.bench.layouts import layouts

GOOD = [token("a"), token("b"), token("c"), USAGE, DONE]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--goodput", "ttft"], ["--goodput ttft", "milliseconds"]),
        (["stray"], ["stray"]),
        (["--random-input-len", "5,x"], ["--random-input-len 5,x"]),
        (["--random-input-len", "0"], ["--random-input-len", "at least 1"]),
        (["--max-concurrency", "1;2"], ["--max-concurrency 1;2"]),
        (["--request-rate", "-1"], ["--request-rate"]),
        (["--token-ids", "100"], ["--token-ids 100", "LOW:HIGH"]),
        (["--dataset-name", "azure"], ["--dataset-name azure", "--dataset-path"]),
        (["--dataset-path", "x"], ["--dataset-name", "mooncake"]),
        (["--length-scale", "0"], ["--length-scale 0"]),
        (
            ["--compare", "unified", "--base-url", "http://127.0.0.1:1"],
            ["--base-url", "--unified-url"],
        ),
        (["--compare", "unified", "--serve-args", "--threads 2"], ["--serve-args", "--threads"]),
        (["--compare", "mixed"], ["--compare", "unified"]),
    ],
)
def test_a_flag_that_cannot_be_is_one_line(flags, words, capsys):
    assert run(["bench", "serve", "--port", "1", *flags]) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert [word for word in words if word not in line] == []


def test_nobody_there_is_one_line(capsys):
    assert run(["bench", "serve", "--port", "1"]) == 1
    assert "is a service running there?" in capsys.readouterr().err


def test_a_sweep_prints_a_table_for_each_load_and_writes_all_figures(tmp_path, capsys):
    file = tmp_path / "figures.json"
    with serving(Script({3: GOOD})) as url:
        flags = [
            "--base-url",
            url,
            "--random-output-len",
            "3",
            "--random-input-len",
            "4,8",
            "--max-concurrency",
            "1,2",
        ]
        assert (
            run(
                [
                    "bench",
                    "serve",
                    *flags,
                    "--goodput",
                    "ttft:9000",
                    "tpot:9000",
                    "--json",
                    str(file),
                ]
            )
            == 0
        )
    out = capsys.readouterr().out
    assert [
        load
        for load in ("4 tokens, 1 at once", "8 tokens, 2 at once", "TTFT", "ITL", "TPOT", "p99")
        if load not in out
    ] == []
    found = json.loads(file.read_text())
    assert found["model"] == "the-model"
    assert [(r["load"]["prompt_tokens"], r["load"]["concurrency"]) for r in found["runs"]] == [
        (4, 1),
        (4, 2),
        (8, 1),
        (8, 2),
    ]
    assert all(r["completed"] == 8 and r["total_output_tokens"] == 24 for r in found["runs"])
    assert all(
        r["request_goodput"] == pytest.approx(r["request_throughput"]) for r in found["runs"]
    )


def test_failures_are_counted_by_kind_and_the_exit_code_says_so(capsys):
    with serving(Script({3: (503, '{"error": {"code": "overloaded"}}')})) as url:
        flags = [
            "--base-url",
            url,
            "--model",
            "m",
            "--random-output-len",
            "3",
            "--random-input-len",
            "4",
        ]
        assert run(["bench", "serve", *flags, "--num-warmups", "0", "--num-prompts", "2"]) == 1
    assert "HTTP 503: overloaded" in capsys.readouterr().out


def test_two_given_services_are_compared(tmp_path, capsys):
    file = tmp_path / "verdict.json"
    slow = [token("a"), *[b": wait\n\n"] * 40, *GOOD[1:]]
    with serving(Script({3: GOOD})) as split, serving(Script({3: slow})) as unified:
        flags = [
            "--compare",
            "unified",
            "--base-url",
            split,
            "--unified-url",
            unified,
            "--random-output-len",
            "3",
        ]
        flags += [
            "--random-input-len",
            "4",
            "--max-concurrency",
            "2",
            "--num-prompts",
            "4",
            "--goodput",
            "tpot:15",
        ]
        assert run(["bench", "serve", *flags, "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert found["points"][0]["better"] == "split"
    assert found["verdict"] in capsys.readouterr().out.replace("\n", " ")


def test_both_layouts_get_the_same_memory_in_all():
    found = layouts(["--dtype", "bfloat16"], pages=100)
    assert found["split"][-1] == "100"  # of each of two workers
    assert found["unified"][-1] == "200"
    with pytest.raises(ConfigError, match="--kv-pages"):
        layouts(["--kv-pages=5"], pages=100)
