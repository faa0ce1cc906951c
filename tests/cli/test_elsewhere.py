"""Flags of other servers: those that are tried are answered with what to write here."""

import re

import pytest
import typer

from baton.cli import main
from baton.cli.elsewhere import INSTEAD
from baton.cli.served import root_url

FLAGS = {
    name
    for command in ("serve", "worker")
    for p in typer.main.get_command(main.commands("")).commands[command].params
    for name in p.opts
}


@pytest.mark.parametrize("flag", INSTEAD)
def test_whoever_tries_it_reads_what_to_write(flag: str, capsys: pytest.CaptureFixture) -> None:
    assert main.run(["serve", flag, "1"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"baton: No such option: {flag}; {INSTEAD[flag]}"
    assert set(re.findall(r"--[a-z-]+", INSTEAD[flag])) <= FLAGS
    assert flag not in FLAGS


def test_other_mistakes_are_answered_as_before(capsys: pytest.CaptureFixture) -> None:
    assert main.run(["serve", "--prot", "1"]) == 2
    assert "--port" in capsys.readouterr().err
    assert main.run(["serve", "--port", "x"]) == 2
    assert "--port" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://a:1/v1", "http://a:1"),
        ("https://a/b/v1/", "https://a/b"),
        ("http://a:1", "http://a:1"),
        (None, None),
    ],
)
def test_an_address_may_be_written_as_people_do(given: str | None, meant: str | None) -> None:
    assert root_url(given) == meant


def test_chat_takes_it_so(capsys: pytest.CaptureFixture) -> None:
    assert main.run(["chat", "--url", "127.0.0.1:1"]) == 1
    assert "http://127.0.0.1:1/v1/models: " in capsys.readouterr().err
