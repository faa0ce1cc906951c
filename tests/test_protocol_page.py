"""docs/protocol.md says what the code does."""

import importlib.util
from pathlib import Path

import pytest

from baton.core.room import RoomState, Saw

TOOL = Path(__file__).parents[1] / "tools" / "protocol_page.py"
spec = importlib.util.spec_from_file_location("protocol_page", TOOL)
page = importlib.util.module_from_spec(spec)
spec.loader.exec_module(page)


def test_the_page_is_up_to_date():
    text = page.PAGE.read_text()
    assert page.with_parts(text, page.parts()) == text


def test_a_table_becomes_arrows_and_what_changes_nothing_is_told_apart():
    table = {
        (RoomState.QUEUED, Saw.HELD): RoomState.RUNNING,
        (RoomState.RUNNING, Saw.RECEIVED): RoomState.ENDED,
        (RoomState.RUNNING, Saw.END): RoomState.ENDED,
        (RoomState.RUNNING, Saw.ADMITTED): RoomState.RUNNING,
    }
    lines = page.room_diagram(table).splitlines()
    assert "    queued --> running: held" in lines
    assert "    running --> ended: received, end" in lines
    assert page.ignored(table) == "Legal without effect on the state: admitted in running."


def test_a_session_begins_for_its_listener_with_the_first_frame_and_ends_with_silence():
    drawn = page.session_diagram(page._listening, idle="closed")
    assert "promised --> up: Beat or Data\n" in drawn
    assert "closed --> up" not in drawn
    assert "silence" in drawn.partition("up --> closed")[2]


def test_a_page_without_markers_is_refused():
    with pytest.raises(ValueError, match="no markers"):
        page.with_parts("text", {"prefill": "x"})
