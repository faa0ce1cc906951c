"""Workloads: lengths, seeds, shared prefixes, and files that cannot be read."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import ConfigError
from baton.dev.bench.workload import MOONCAKE_BLOCK, Item, Shape, file_items, random_items

SHAPE = Shape(seed=0, low=100, high=20_000)


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@given(st.integers(1, 400), st.integers(1, 50), st.floats(0, 0.99), st.integers(0, 5))
def test_random_lengths_stay_in_their_range(length, output, ratio, seed):
    shape = Shape(seed=seed, low=7, high=11)
    items = random_items(5, input_len=length, output_len=output, range_ratio=ratio, shape=shape)
    assert items == random_items(
        5, input_len=length, output_len=output, range_ratio=ratio, shape=shape
    )
    for item in items:
        assert length * (1 - ratio) - 0.5 <= len(item.prompt) <= length * (1 + ratio) + 0.5
        assert 1 <= item.output_tokens <= output * (1 + ratio) + 0.5
        assert set(item.prompt) <= {7, 8, 9, 10}


def test_random_prompts_differ_from_one_another_and_by_seed():
    one, two = (
        random_items(
            4, input_len=8, output_len=1, range_ratio=0, shape=Shape(seed=s, low=0, high=9999)
        )
        for s in (0, 1)
    )
    assert len({i.prompt for i in one + two}) == 8


def test_mooncake_blocks_with_one_id_are_the_same_tokens(tmp_path):
    rows = [
        {"timestamp": 3000, "input_length": 1300, "output_length": 5, "hash_ids": [0, 1, 2]},
        {"timestamp": 4500, "input_length": 1200, "output_length": 6, "hash_ids": [0, 1, 9]},
        {"timestamp": 4500, "input_length": 600, "output_length": 7, "hash_ids": [8, 1]},
    ]
    a, b, c = file_items("mooncake", lines(tmp_path / "t", *rows), None, SHAPE)
    assert [len(x.prompt) for x in (a, b, c)] == [1300, 1200, 600]
    assert a.prompt[: 2 * MOONCAKE_BLOCK] == b.prompt[: 2 * MOONCAKE_BLOCK]
    assert a.prompt[2 * MOONCAKE_BLOCK :][:100] != b.prompt[2 * MOONCAKE_BLOCK :][:100]
    assert c.prompt[MOONCAKE_BLOCK:] == a.prompt[MOONCAKE_BLOCK:600]
    assert c.prompt[:MOONCAKE_BLOCK] != a.prompt[:MOONCAKE_BLOCK]
    assert [x.at_s for x in (a, b, c)] == [0.0, 1.5, 1.5]
    assert [x.output_tokens for x in (a, b, c)] == [5, 6, 7]


def test_scaled_traces_keep_what_they_share(tmp_path):
    rows = [
        {"timestamp": 0, "input_length": 1024, "output_length": 64, "hash_ids": [0, 1]},
        {"timestamp": 1000, "input_length": 1024, "output_length": 1, "hash_ids": [0, 2]},
    ]
    shape = Shape(seed=0, low=100, high=20_000, length_scale=1 / 32, time_scale=4)
    a, b = file_items("mooncake", lines(tmp_path / "t", *rows), None, shape)
    assert (len(a.prompt), a.output_tokens, b.output_tokens) == (32, 2, 1)
    assert a.prompt[:16] == b.prompt[:16]
    assert a.prompt[16:] != b.prompt[16:]
    assert b.at_s == 4.0


def test_azure(tmp_path):
    path = tmp_path / "t.csv"
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    path.write_text(
        head + "2023-11-16 18:17:03.9799600,48,10\n2023-11-16 "
        "18:17:04.4799600,31,8\n2023-11-16 18:17:05.0,1,1\n"
    )
    a, b = file_items("azure", path, 2, SHAPE)
    assert [(len(i.prompt), i.output_tokens) for i in (a, b)] == [(48, 10), (31, 8)]
    assert (a.at_s, b.at_s) == (0.0, pytest.approx(0.5, abs=1e-6))
    assert a.prompt[:31] != b.prompt


def test_prompts_of_a_file(tmp_path):
    path = lines(
        tmp_path / "p", {"prompt": "hello"}, {"prompt": [1, 2], "output_tokens": 3, "more": 1}
    )
    assert file_items("custom", path, None, SHAPE) == [Item("hello", 128), Item((1, 2), 3)]


@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        ("custom", '{"prompt": "a"}\n{"prompt": 5}\n', ["line 2", "prompt"]),
        ("mooncake", "nonsense\n", ["line 1"]),
        ("mooncake", '\n{"input_length": 5}\n', ["line 2", "output_length"]),
        (
            "azure",
            "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n",
            ["line 2", "GeneratedTokens"],
        ),
        (
            "azure",
            "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n",
            ["line 2", "yesterday"],
        ),
        ("custom", "", ["no requests"]),
        ("sharegpt", "", ["--dataset-name sharegpt", "custom", "mooncake", "azure"]),
    ],
)
def test_files_that_cannot_be_read(tmp_path, kind, text, words):
    path = tmp_path / "f"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        file_items(kind, path, None, SHAPE)
    assert [w for w in words if w not in str(error.value)] == []


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="/none"):
        file_items("custom", tmp_path / "none", None, SHAPE)


@pytest.mark.parametrize(("low", "high"), [(5, 5), (-1, 5), (9, 3)])
def test_ids_that_cannot_be(low, high):
    with pytest.raises(ConfigError, match="--token-ids"):
        Shape(seed=0, low=low, high=high)
