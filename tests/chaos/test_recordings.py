"""Recordings of a run go with it, unless it has a complaint or the user wants them."""

import stat
import tempfile
from pathlib import Path

import pytest

from baton.core.errors import ConfigError
from baton.dev.chaos.recordings import Recordings


@pytest.fixture(autouse=True)
def _own_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def filled(recordings: Recordings) -> Path:
    file = recordings.directory / "decode-0.baton-log"
    file.write_bytes(b"x")
    return file


def test_nobody_but_the_owner_reads_them() -> None:
    """They have what clients have said."""
    assert stat.S_IMODE(Recordings(None).directory.stat().st_mode) == 0o700


def test_they_go_with_a_run_that_is_well() -> None:
    recordings = Recordings(None)
    filled(recordings)
    recordings.close()
    assert not recordings.directory.exists()


def test_what_a_run_keeps_stays() -> None:
    recordings = Recordings(None)
    file = filled(recordings)
    recordings.keep()
    recordings.close()
    assert file.exists()


def test_what_the_user_names_is_made_and_stays(tmp_path: Path) -> None:
    recordings = Recordings(str(tmp_path / "a" / "b"))
    assert recordings.directory == tmp_path / "a" / "b"
    file = filled(recordings)
    recordings.close()
    assert file.exists()
    with pytest.raises(ConfigError, match="it has recordings of another run; name a new one"):
        Recordings(str(tmp_path / "a" / "b"))


def test_a_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--record .*: (Not a directory|File exists)"):
        Recordings(str(tmp_path / "file"))
