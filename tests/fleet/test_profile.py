"""Profiles: their times, and their files."""

import math

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fleet.build import profile

from baton.cli import compose_worker
from baton.core.errors import ConfigError
from baton.core.ids import Epoch, Key, Room, TokenId
from baton.core.work import Row
from baton.dev.fleet.profile import (
    LAST_CHUNK_BYTES,
    HostTimes,
    WorkerMemory,
    read_profile,
    write_profile,
)


def answer(position: int) -> Row:
    """The next token of an answer."""
    key = Key(Room("0" * 32), Epoch(1))
    return Row(key, position, (TokenId(1),), {}, {}, position + 1, None, said=1)


def test_steps_in_succession_take_the_sum_of_single_ones():
    steps = profile().steps
    rows = [answer(10), answer(700)]
    each = [steps.of([answer(10 + n), answer(700 + n)]) for n in range(9)]
    assert steps.generating(rows, 9) == pytest.approx(sum(each))


def prompt(start: int, tokens: int) -> Row:
    """A chunk of a prompt."""
    key = Key(Room("1" * 32), Epoch(1))
    return Row(key, start, (TokenId(1),) * tokens, {}, {}, start + tokens, None, said=0)


POINTS = ((1, 900.0), (4, 800.0), (16, 1_600.0), (64, 4_000.0))


@given(st.integers(1, 300), st.sampled_from([1, 32]), st.integers(1, 4))
def test_tokens_take_what_lies_between_the_points(tokens, padded_to, points):
    """Beyond the last point the line goes on; from 32 tokens on, multiples of 32 are computed."""
    steps = profile(tokens_us=POINTS[:points], padded_to=padded_to).steps
    computed = tokens if tokens < padded_to else math.ceil(tokens / padded_to) * padded_to
    known = [(n, us) for n, us in POINTS[:points]]
    if points > 1:
        slope = (known[-1][1] - known[-2][1]) / (known[-1][0] - known[-2][0])
        known.append((1_000, known[-1][1] + slope * (1_000 - known[-1][0])))
    assert steps.of_tokens(tokens) == pytest.approx(np.interp(computed, *zip(*known, strict=True)))


def test_a_step_is_the_sum_of_its_tokens_pairs_answers_and_contexts():
    steps = profile(tokens_us=POINTS, pair_us=2.0, row_us=30.0, context_us=0.5, padded_to=32).steps
    rows = [prompt(100, 63), answer(10), answer(700)]  # 65 tokens, computed as 96
    pairs = sum(range(100, 163)) + 63 / 2
    us = 5_600 + 2.0 * pairs + 2 * 30 + 0.5 * (11 + 701)
    assert steps.of(rows) == pytest.approx(us)


def test_a_profile_is_read_as_it_was_written(tmp_path):
    write_profile(profile(), tmp_path / "p.json")
    assert read_profile(tmp_path / "p.json") == profile()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, ["p.json", "No such file"]),
        ("{", ["p.json", "baton plan measure"]),
        ('{"name": "x"}', ["p.json", "steps"]),
    ],
)
def test_a_file_that_is_no_profile_is_refused(text, words, tmp_path):
    file = tmp_path / "p.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError) as refused:
        read_profile(file)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"pages": 4000', '"pages": 0', ["pages 0", "at least 1"]),
        ('"padded_to": 1', '"padded_to": 0', ["padded_to", ">= 1"]),
        ("8100.0", "-8100.0", ["tokens_us", ">= 0"]),
        ("8100.0", "8100.0], [1, 8100.0", ["tokens_us", "[1, 1, 2]", "rise"]),
        ('"bytes_per_s": 1000000000.0', '"bytes_per_s": 0', ["bytes_per_s", "> 0"]),
        ('"max_rooms": 64', '"max_rooms": 0', ["max_rooms", ">= 1"]),
        ('"max_rooms": 64', '"rooms": 64', ["rooms"]),
    ],
)
def test_a_figure_out_of_range_is_refused(old, new, words, tmp_path):
    file = tmp_path / "p.json"
    write_profile(profile(), file)
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))
    with pytest.raises(ConfigError) as refused:
        read_profile(file)
    assert [word for word in words if word not in str(refused.value)] == []


def test_the_last_chunk_of_a_prompt_is_that_of_a_worker():
    assert profile().last_chunk_tokens == LAST_CHUNK_BYTES // profile().memory.token_bytes
    assert LAST_CHUNK_BYTES == compose_worker.LAST_CHUNK_BYTES


def test_the_host_takes_its_turn_between_steps():
    host = HostTimes(turn_us=80.0, row_us=11.0)
    machine = msgspec.structs.replace(profile(), host=host)
    rows = [answer(10), answer(700)]
    assert machine.step_times.of(rows) == pytest.approx(machine.steps.of(rows) + 80 + 2 * 11)


def test_state_is_made_of_whole_elements():
    with pytest.raises(ValueError, match="multiple of 4"):
        WorkerMemory(page_tokens=16, pages=1, token_bytes=6)
