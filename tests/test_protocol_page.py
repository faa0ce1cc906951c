"""docs/protocol.md says what the code does."""

import pytest

import protocol_page as page
from baton.core.scheduler.room import RoomState, Saw
from document import with_parts, write_or_check


def test_the_page_is_up_to_date():
    text = page.PAGE.read_text()
    assert with_parts(text, page.parts()) == text


def test_a_table_becomes_arrows_and_what_changes_nothing_is_told_apart():
    table = {
        (RoomState.QUEUED, Saw.HELD): RoomState.RUNNING,
        (RoomState.RUNNING, Saw.RECEIVED): RoomState.ENDED,
        (RoomState.RUNNING, Saw.END): RoomState.ENDED,
        (RoomState.RUNNING, Saw.ADMITTED): RoomState.RUNNING,
    }
    lines = page.table_diagram(table, first=RoomState.QUEUED, last=RoomState.ENDED).splitlines()
    assert "    queued --> running: held" in lines
    assert "    running --> ended: received, end" in lines
    assert page.ignored(table) == "Legal without effect on the state: admitted in running."


def test_a_session_begins_for_its_listener_with_the_first_frame_and_ends_with_silence():
    drawn = page.session_diagram(page._listening, idle="closed")
    assert "promised --> up: Beat or Data\n" in drawn
    assert "closed --> up" not in drawn
    assert "silence" in drawn.partition("up --> closed")[2]


def test_a_page_without_markers_is_refused():
    for text in (
        "text",
        "<!-- prefill: begin -->\n",
        "<!-- prefill: end -->\n<!-- prefill: begin -->\n",
    ):
        with pytest.raises(ValueError, match="no markers '<!-- prefill: begin"):
            with_parts(text, {"prefill": "x"})


def test_what_stands_between_the_markers_is_replaced_and_nothing_else():
    text = (
        "head\n<!-- a: begin (made) -->\nold\n<!-- a: end -->\nmiddle\n<!-- b: begin "
        "-->\n<!-- b: end -->\ntail\n"
    )
    right = text.replace("old", "new\\1").replace("<!-- b: end", "more\n<!-- b: end")
    assert with_parts(text, {"a": "new\\1", "b": "more"}) == right
    assert with_parts(right, {"a": "new\\1", "b": "more"}) == right


def test_a_page_that_is_out_of_date_is_said_and_left_alone(tmp_path, monkeypatch, capsys):
    file = tmp_path / "page.md"
    file.write_text("old\n")
    monkeypatch.setattr("sys.argv", ["tool", "--check"])
    assert write_or_check(file, lambda found: found, "") == 0
    assert write_or_check(file, lambda _: "new\n", "") == 1
    said = capsys.readouterr().err
    assert "-old" in said
    assert "+new" in said
    assert file.read_text() == "old\n"
    monkeypatch.setattr("sys.argv", ["tool"])
    assert write_or_check(file, lambda _: "new\n", "") == 0
    assert file.read_text() == "new\n"
