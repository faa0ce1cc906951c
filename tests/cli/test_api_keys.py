"""Keys from the command line and from files."""

import pytest

from baton.cli.api_keys import open_to_all, read_keys
from baton.core.errors import ConfigError


def test_keys_come_from_flags_and_files_each_once(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# of the team\n\n  one \r\ntwo\none\n")
    assert read_keys(("flag", "two"), (str(file),)) == ("flag", "two", "one")


@pytest.mark.parametrize("key", ["", " x", "x\n", "schlüssel", "a\tb"])
def test_a_key_that_no_header_carries_is_refused_without_showing_it(key):
    with pytest.raises(ConfigError, match="printable ASCII") as raised:
        read_keys((key,), ())
    assert not key or key not in str(raised.value)


@pytest.mark.parametrize("content", [None, "", "# nothing\n", b"\xff\xfe"])
def test_a_file_without_keys_is_refused_by_name(tmp_path, content):
    file = tmp_path / "keys"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=r"--api-key-file .*keys"):
        read_keys((), (str(file),))


@pytest.mark.parametrize(
    ("host", "keys", "warned"),
    [
        ("127.0.0.1", (), False),
        ("::1", (), False),
        ("localhost", (), False),
        ("0.0.0.0", (), True),
        ("somewhere", (), True),
        ("0.0.0.0", ("k",), False),
    ],
)
def test_a_port_open_to_all_is_warned_of(host, keys, warned):
    assert (open_to_all(host, keys) is not None) == warned
