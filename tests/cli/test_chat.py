"""Conversations through a pipe, against a service that says what the test wants."""

import io
import re
import signal
import subprocess
import sys

import pytest
from tests.bench.service import DONE, Script, event, serving

from baton.cli.main import run


def piece(text, **more):
    return event(choices=[{"index": 0, "delta": {"content": text}, **more}])


ROLE = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
USAGE = event(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 5})
HELLO = [ROLE, piece("Hel"), piece("lo!", finish_reason="stop"), USAGE, DONE]


@pytest.fixture
def talk(monkeypatch, capsys):
    """Types these lines; what came out."""

    def typed(script, lines, *flags):
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        with serving(script) as url:
            assert run(["chat", "--url", url, "--max-tokens", "8", *flags]) == 0
        return capsys.readouterr()

    return typed


def messages(script):
    return [[(m["role"], m["content"]) for m in asked["messages"]] for asked in script.asked]


def test_answers_go_to_stdout_and_timing_to_stderr(talk):
    script = Script({8: HELLO})
    found = talk(
        script,
        ["hi", "", "again"],
        "--system",
        "Be brief.",
        "--temperature",
        "0",
        "--top-p",
        "0.5",
        "--seed",
        "3",
    )
    assert found.out == "Hello!\nHello!\n"
    assert (
        len(re.findall(r"^\[TTFT \d+ ms, 5 tokens, \d+\.\d tokens/s\]$", found.err, re.MULTILINE))
        == 2
    )
    first = [("system", "Be brief."), ("user", "hi")]
    assert messages(script) == [first, [*first, ("assistant", "Hello!"), ("user", "again")]]
    common = {
        "model": "the-model",
        "stream": True,
        "max_tokens": 8,
        "temperature": 0,
        "top_p": 0.5,
        "seed": 3,
    }
    assert common.items() <= script.asked[0].items()
    assert "top_k" not in script.asked[0]


def test_commands(talk):
    script = Script({8: HELLO})
    found = talk(
        script,
        ["one", "/reset", "two", "/system Sing.", "three", "/bogus", "/help", "/exit", "four"],
        "--model",
        "m",
    )
    assert messages(script) == [
        [("user", "one")],
        [("user", "two")],
        [("system", "Sing."), ("user", "three")],
    ]
    assert "no command /bogus" in found.err
    assert "/reset forgets" in found.out


def test_a_path_is_a_message(talk):
    script = Script({8: HELLO})
    talk(script, ["/etc/passwd is a file"])
    assert messages(script) == [[("user", "/etc/passwd is a file")]]


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            (400, '{"error": {"message": "max_tokens is 8, the limit 4"}}'),
            "baton: 400: max_tokens is 8, the limit 4",
        ),
        ((502, "bad gateway"), "baton: 502: bad gateway"),
        ([ROLE], "baton: the stream ended early"),
        ([event(error={"message": "worker lost"})], "baton: worker lost"),
        ([b"data: 5\n\n"], "baton: not an event"),
    ],
)
def test_a_refused_message_is_not_kept_and_the_conversation_goes_on(talk, said, words):
    script = Script({8: said})
    found = talk(script, ["hi", "again"])
    assert found.err.count(words) == 2
    assert found.out == ""
    assert messages(script) == [[("user", "hi")], [("user", "again")]]


def test_an_answer_that_breaks_off_is_kept_as_far_as_it_came(talk):
    script = Script({8: [ROLE, piece("Hal"), event(error={"message": "worker lost"})]})
    found = talk(script, ["hi", "again"])
    assert "baton: worker lost" in found.err
    assert messages(script)[1] == [("user", "hi"), ("assistant", "Hal"), ("user", "again")]


def test_a_limit_is_said(talk):
    assert (
        "max_tokens reached"
        in talk(Script({8: [piece("x", finish_reason="length"), DONE]}), ["hi"]).err
    )


def test_nobody_there_is_one_line(capsys):
    assert run(["chat", "--url", "http://127.0.0.1:1"]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_ctrl_c_ends_the_answer_and_at_the_prompt_the_program():
    script = Script({8: [ROLE, piece("Hel"), b"hang"]})
    with serving(script) as url:
        command = [
            sys.executable,
            "-m",
            "baton.cli.main",
            "chat",
            "--url",
            url,
            "--max-tokens",
            "8",
        ]
        pipe = subprocess.PIPE
        with subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=0
        ) as chat:
            chat.stdin.write("hi\n")
            assert chat.stdout.read(3) == "Hel"
            chat.send_signal(signal.SIGINT)
            assert "ended by you" in chat.stderr.readline()
            assert chat.poll() is None
            chat.send_signal(signal.SIGINT)
            assert chat.wait(10) == 130
    assert len(script.asked) == 1
