"""What is asked of a fleet: traces, mixes, and divisions."""

import json

import pytest

from baton.core.errors import ConfigError
from baton.dev.planning.division import MOST_SPLITS, Division, chosen_divisions, divisions
from baton.dev.planning.traffic import OWN, mix_of, read_trace, requests, span_s


def trace(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_prompts_of_a_trace_share_what_its_blocks_share(tmp_path):
    rows = [
        {"timestamp": 9000, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 10500, "input_length": 600, "output_length": 6, "hash_ids": [0]},
    ]
    read = read_trace(
        trace(tmp_path / "t.jsonl", *rows), None, count=None, length_scale=0.5, time_scale=2.0
    )
    a, b = requests(read, length_scale=0.5, load=4.0)
    assert (a.at_us, b.at_us) == (0, 750_000)
    assert (a.output_tokens, b.output_tokens) == (2, 3)
    assert a.prompt == (0,) * 256 + (1,) * 256 + (2,) * 138
    assert b.prompt == (0,) * 256 + (OWN + 2,) * 44


def test_a_trace_is_ordered_by_time(tmp_path):
    rows = [{"timestamp": t, "input_length": 9, "output_length": 1} for t in (500, 100, 300)]
    read = read_trace(
        trace(tmp_path / "t.jsonl", *rows), None, count=None, length_scale=1, time_scale=1
    )
    assert [row.at_s for row in read] == pytest.approx([0, 0.2, 0.4])
    assert span_s(read) == pytest.approx(0.6)


def test_an_azure_trace_is_read(tmp_path):
    file = tmp_path / "t.csv"
    file.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.5,100,7\n2023-11-16 18:15:48,30,2\n"
    )
    read = read_trace(file, None, count=None, length_scale=1, time_scale=1)
    assert [(r.at_s, r.input_tokens, r.output_tokens) for r in read] == [(0, 100, 7), (1.5, 30, 2)]


def mixed(**changes):
    fields = {"rate": 5.0, "count": 400, "burstiness": 1.0, "range_ratio": 0.5} | changes
    inputs, outputs = fields.pop("inputs", [100, 900]), fields.pop("outputs", [20, 80])
    return mix_of(inputs, outputs, **fields)


def test_a_mix_has_all_its_kinds_at_its_rate():
    rows = mixed().rows(0)
    assert rows == mixed().rows(0)
    assert rows != mixed().rows(1)
    assert {50 <= r.input_tokens <= 150 or 450 <= r.input_tokens <= 1350 for r in rows} == {True}
    assert {r.output_tokens <= 30 for r in rows if r.input_tokens < 200} == {True}
    assert 400 / span_s(rows) == pytest.approx(5.0, rel=0.15)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"inputs": []}, ["--random-input-len", "TRACE"]),
        ({"rate": None}, ["--request-rate"]),
        ({"rate": -1.0}, ["--request-rate -1", "above 0"]),
        ({"outputs": [1, 2, 3]}, ["2 lengths", "3"]),
        ({"inputs": [0], "outputs": [1]}, ["--random-input-len 0", "at least 1"]),
    ],
)
def test_a_mix_that_cannot_be_is_refused(changes, words):
    with pytest.raises(ConfigError) as refused:
        mixed(**changes)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("t.txt", "{}", ["t.txt", "--dataset-name mooncake or azure"]),
        ("t.jsonl", '{"input_length": 5, "output_length": 1}\n', ["timestamp"]),
        ("t.jsonl", '{"input_length": 5}\n', ["line 1", "output_length"]),
        ("t.csv", "A,B\n1,2\n", ["TIMESTAMP"]),
        ("t.jsonl", "", ["no requests"]),
    ],
)
def test_a_file_that_is_no_trace_is_refused(name, text, words, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_trace(tmp_path / name, None, count=None, length_scale=1, time_scale=1)
    assert [word for word in words if word not in str(refused.value)] == []


def test_all_splits_of_a_few_workers_are_tried_and_some_of_many():
    assert divisions(1) == [Division(unified=1)]
    assert divisions(3) == [Division(unified=3), Division(1, 2), Division(2, 1)]
    many = divisions(64)
    assert many[0] == Division(unified=64)
    assert len(many) == 1 + MOST_SPLITS
    assert all(d.prefill + d.decode == 64 and min(d.prefill, d.decode) >= 8 for d in many[1:])


def test_chosen_splits_are_compared_with_unified_workers():
    assert chosen_divisions(4, ["1:3"]) == [Division(unified=4), Division(1, 3)]


@pytest.mark.parametrize("text", ["4", "0:4", "1:2", "a:b", "-1:5"])
def test_a_split_that_cannot_be_is_refused(text):
    with pytest.raises(ConfigError, match=f"--divisions {text}: give"):
        chosen_divisions(4, [text])


def test_there_is_a_worker():
    with pytest.raises(ConfigError, match="--workers 0: there must be at least 1"):
        divisions(0)
