"""Files of journals: new ones only, their owner's alone, whole frames whatever the disk does."""

import errno
import os
import stat

import pytest

from baton.adapters.log_file import LogFile, log_path, open_log
from baton.core.errors import ConfigError


def test_a_file_is_readable_by_its_owner_alone_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        file = open_log(tmp_path / "x.baton-log", "gateway")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    file.write(b"abc")
    file.write(b"de")
    assert file.path.read_bytes() == b"abcde", "written before it is closed"
    file.close()
    file.close()
    file.write(b"late")
    assert file.path.read_bytes() == b"abcde"


def test_a_file_that_exists_is_not_touched(tmp_path):
    path = tmp_path / "x"
    path.write_text("mine")
    with pytest.raises(ConfigError, match=r"x: the file exists; name a new one") as caught:
        open_log(path, "gateway")
    assert str(path) in str(caught.value)
    assert path.read_text() == "mine"


def test_a_link_to_elsewhere_is_not_followed(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "target")
    with pytest.raises(ConfigError, match="exists"):
        open_log(tmp_path / "link", "gateway")
    assert not (tmp_path / "target").exists()


def test_a_place_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match="No such file or directory"):
        open_log(tmp_path / "no" / "x", "gateway")


def test_in_a_directory_every_incarnation_has_a_file_of_its_own(tmp_path):
    files = [open_log(tmp_path, "decode-0") for _ in range(3)]
    assert [f.path.name for f in files] == [
        "decode-0.baton-log",
        "decode-0.2.baton-log",
        "decode-0.3.baton-log",
    ]
    assert open_log(tmp_path, "prefill-0").path == log_path(tmp_path, "prefill-0")


def test_a_name_that_another_process_took_meanwhile_is_passed_over(tmp_path, monkeypatch):
    # `exists` does not see it, O_EXCL does
    log_path(tmp_path, "a").symlink_to(tmp_path / "nowhere")
    assert open_log(tmp_path, "a").path == log_path(tmp_path, "a", 2)


def test_a_full_disk_ends_the_journal_at_a_whole_frame(tmp_path, monkeypatch):
    file = LogFile(tmp_path / "x")
    file.write(b"whole")
    write = os.write
    room = [3]

    def full(fd, data):
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        took, room[0] = room[0], 0
        return write(fd, bytes(data[:took]))

    monkeypatch.setattr(os, "write", full)
    file.write(b"a frame")
    monkeypatch.setattr(os, "write", write)
    file.write(b"what follows")
    assert file.path.read_bytes() == b"whole"


def test_where_no_file_can_be_made_a_process_that_starts_again_goes_on_and_a_first_one_does_not(
    tmp_path, monkeypatch
):
    open_log(tmp_path, "decode-0").write(b"whole")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    again = open_log(tmp_path, "decode-0")
    again.write(b"what follows")
    again.close()
    with pytest.raises(ConfigError, match="No space left on device"):
        open_log(tmp_path, "prefill-0")
    assert [p.name for p in tmp_path.iterdir()] == ["decode-0.baton-log"]


def test_a_write_that_the_kernel_cuts_is_finished(tmp_path, monkeypatch):
    file = LogFile(tmp_path / "x")
    write = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, bytes(data[:2])))
    file.write(b"a frame")
    assert file.path.read_bytes() == b"a frame"
