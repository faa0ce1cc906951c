"""`--record`: who writes where, and what is refused before anything starts."""

import stat

import pytest

from baton.cli.main import run
from baton.cli.record import prepare_directory, recording
from baton.core.errors import ConfigError
from baton.core.gateway.request import FrontSettings
from baton.core.ids import Boot
from baton.core.parts import FrontParts
from baton.trace.coding import records
from baton.trace.recorder import Recorded


def test_without_the_flag_the_core_is_itself():
    parts = FrontParts(Boot(1), FrontSettings())
    front, record = parts.make(), recording(None, name="gateway")
    assert record.of(front, parts) is front
    record.close()


def test_with_it_what_was_kept_is_in_the_file_when_it_is_closed(tmp_path):
    parts = FrontParts(Boot(1), FrontSettings())
    record = recording(str(tmp_path / "x"), name="gateway")
    assert type(record.of(parts.make(), parts)) is Recorded
    record.close()
    assert len(list(records([(tmp_path / "x").read_bytes()]))) == 2


def test_a_directory_is_made_for_its_owner_alone(tmp_path):
    prepare_directory(str(tmp_path / "a" / "b"), ["gateway"])
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700
    prepare_directory(str(tmp_path / "a" / "b"), ["gateway"])


def test_a_directory_of_an_earlier_run_is_refused(tmp_path):
    (tmp_path / "decode-0.baton-log").touch()
    with pytest.raises(
        ConfigError,
        match=r"decode-0\.baton-log exists from an earlier run; " r"name a new directory",
    ):
        prepare_directory(str(tmp_path), ["gateway", "decode-0"])


def test_a_file_is_no_directory(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(ConfigError, match="cannot make this directory"):
        prepare_directory(str(tmp_path / "x"), ["gateway"])


def test_serve_refuses_before_it_starts_anything(checkpoint, tmp_path, capsys):
    logs = tmp_path / "logs"
    logs.mkdir()
    (logs / "prefill-0.baton-log").touch()
    assert run(["serve", str(checkpoint), "--port", "0", "--record", str(logs)]) == 2
    assert "prefill-0.baton-log exists" in capsys.readouterr().err
