"""Profiles: their times, and their files."""

import msgspec
import pytest
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
        ('"step_us": 8000.0', '"step_us": -1', ["step_us", ">= 0"]),
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
