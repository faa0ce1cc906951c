"""What the operator reads where there is no terminal."""

import json
import shlex

import pytest

from baton.cli import narrate
from baton.cli.narrate import Narrator, Steps, greeting
from baton.shell.gateway_settings import GatewaySettings
from baton.shell.supervisor import (
    Died,
    GaveUp,
    Killed,
    LineWritten,
    NotReady,
    Ready,
    Started,
    Stopping,
)

FRONT = GatewaySettings(
    host="0.0.0.0",
    port=8000,
    control="tcp://127.0.0.1:5",
    model="/m",
    served_model_name="it's [bold]",
    max_model_len=None,
    secret=None,
    api_keys=("key",),
    log_level="info",
)


@pytest.fixture
def clock(monkeypatch):
    """The narrator's time, set by hand."""
    now = [100.0]
    monkeypatch.setattr(narrate.time, "monotonic", lambda: now[0])
    return now


def test_a_quick_start_says_only_that_it_is_ready(clock, capsys):
    tell = Narrator("hello [x]", warning=None)
    for event in (Started("a", 1), NotReady("loading"), Ready(), Stopping()):
        tell(event)
        clock[0] += 0.4
    out, err = capsys.readouterr()
    assert out == "Ready after 0.8 s: hello [x]\n"
    assert err == ""


def test_a_program_that_had_to_be_killed_is_named(clock, capsys):
    Narrator("", warning=None)(Killed("decode-0", 4.52))
    assert capsys.readouterr().err == (
        "baton: decode-0 did not end within 4.5 s of SIGTERM; it is killed\n"
    )


def test_a_slow_start_says_what_it_does_once_and_again_now_and_then(clock, capsys):
    tell = Narrator("", warning=None)
    for _ in range(100):
        tell(NotReady("loading" if clock[0] < 105 else "no decode worker"))
        clock[0] += 0.2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition("s: ")[2] for line in lines] == [
        "loading",
        "no decode worker",
        "no decode worker",
    ]


def test_lines_of_programs_carry_their_names_and_are_taken_literally(capsys):
    Narrator("", warning=None)(LineWritten("decode-0", "a [red]word[/red] " + "x" * 300))
    assert capsys.readouterr().err == f"decode-0 | a [red]word[/red] {'x' * 300}\n"


def test_bad_news(capsys):
    tell = Narrator("", warning="too many threads")
    tell(Died("decode-0", "was ended by SIGKILL", 0.2))
    tell(GaveUp("prefill-0", "no such [fabric]"))
    assert capsys.readouterr().err.splitlines() == [
        "baton: warning: too many threads",
        "baton: decode-0 was ended by SIGKILL; it starts again in 0.2 s",
        "baton: prefill-0: no such [fabric]",
    ]


def test_steps_are_lines(capsys):
    with Steps() as step:
        step("fetching")
        step("converting")
    assert capsys.readouterr().err == "baton: fetching\nbaton: converting\n"


def test_the_greeting_is_a_request_to_paste():
    text = greeting(FRONT, "")
    assert "http://127.0.0.1:8000/v1/chat/completions" in text
    assert "Authorization: Bearer YOUR_KEY" in text
    assert "key" not in text.replace("YOUR_KEY", "")
    words = shlex.split(text[text.index("curl") : text.index("Ctrl-C")])
    assert json.loads(words[-1])["model"] == "it's [bold]"
