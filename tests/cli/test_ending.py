"""What every process is prepared with."""

import os
import pwd
from pathlib import Path

import pytest

from baton.cli.ending import provide_home


def test_a_user_whom_the_system_does_not_know_has_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")  # restored afterwards
    del os.environ["HOME"]
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    provide_home()
    assert Path.home() == Path("/")


def test_a_home_that_there_is_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    provide_home()
    assert os.environ["HOME"] == "/somewhere"
