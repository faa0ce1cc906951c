"""A child's output and its leash."""

import select
import signal
import subprocess
import sys
import time

from baton.shell import leash
from baton.shell.child import LONGEST_LINE, Child, Program

DEADLINE_S = 30


def start(code):
    return Child(Program("x", (sys.executable, "-IS", "-c", code), ends=0))


def all_lines(child):
    """Everything until the output is closed."""
    said, deadline = [], time.monotonic() + DEADLINE_S
    while child.talking:
        assert select.select([child.output], [], [], deadline - time.monotonic())[0]
        said += child.lines()
    return said


def test_lines_of_both_streams_come_whole():
    child = start(
        "import sys\nfor w in 'one ', 'line\\n': print(w, end='', "
        "flush=True)\nprint('two', file=sys.stderr)"
    )
    assert all_lines(child) == ["one line", "two"]
    assert child.reap() == (0, [])


def test_what_was_said_last_is_not_lost():
    child = start("import sys; sys.stdout.write('no newline'); sys.stdout.flush(); sys.exit(5)")
    select.select([child.ended], [], [], DEADLINE_S)
    assert child.reap() == (5, ["no newline"])


def test_a_program_reads_its_document_to_the_end_each_time_it_is_started():
    echo = "import sys; print(len(sys.stdin.buffer.read()), sys.stdin.buffer.read())"
    program = Program("x", (sys.executable, "-IS", "-c", echo), ends=0, document=b"x" * 200_000)
    for _ in range(2):
        child = Child(program)
        assert all_lines(child) == ["200000 b''"]
        assert child.reap() == (0, [])


def test_bytes_that_are_no_text_do_no_harm():
    child = start(r"import os; os.write(1, b'\xff\xfe ok\n')")
    assert all_lines(child) == ["\ufffd\ufffd ok"]
    child.reap()


def test_an_endless_line_is_cut():
    child = start(f"print('x' * {3 * LONGEST_LINE})")
    said = all_lines(child)
    assert "".join(said) == "x" * 3 * LONGEST_LINE
    assert max(map(len, said)) <= 2 * LONGEST_LINE
    child.reap()


def test_a_program_that_closes_its_output_is_not_polled_for_it():
    child = start("import os, signal\nos.close(1); os.close(2)\nwhile True: signal.pause()")
    assert all_lines(child) == []
    child.signal(signal.SIGKILL)
    assert child.reap() == (-signal.SIGKILL, [])


def test_a_signal_to_one_that_has_ended_is_no_error():
    child = start("")
    select.select([child.ended], [], [], DEADLINE_S)
    child.signal(signal.SIGTERM)
    child.reap()


def test_a_program_whose_parent_has_died_already_does_not_run(tmp_path):
    mark = tmp_path / "ran"
    argv = (
        sys.executable,
        "-IS",
        leash.__file__,
        "1",
        sys.executable,
        "-IS",
        "-c",
        f"open({str(mark)!r}, 'w')",
    )
    assert subprocess.run(argv, timeout=DEADLINE_S).returncode == -signal.SIGKILL
    assert not mark.exists()
