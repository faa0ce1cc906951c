"""Keys from the command line and from files, and new ones."""

import pytest
from typer.testing import CliRunner

from baton.cli.api_keys import draw_key, make_key, open_to_all, read_keys
from baton.cli.secret import app
from baton.core.errors import ConfigError
from baton.gateway.api_keys import ApiKey, plain_key

KEY = draw_key()
NO_LIMITS = {"name": "", "max_concurrent": None, "requests_per_minute": None}


def test_keys_come_from_flags_and_files_each_once(tmp_path):
    file = tmp_path / "keys"
    file.write_text("# of the team\n\n  one \r\ntwo\none\n")
    assert read_keys(("flag", "two"), (str(file),)) == tuple(map(plain_key, ("flag", "two", "one")))


@pytest.mark.parametrize("key", ["", " x", "x\n", "schlüssel", "a\tb"])
def test_a_key_that_no_header_carries_is_refused_without_showing_it(key):
    with pytest.raises(ConfigError, match="printable ASCII") as raised:
        read_keys((key,), ())
    assert not key or key not in str(raised.value)


@pytest.mark.parametrize(
    "limits",
    [
        NO_LIMITS,
        {"name": "alice", "max_concurrent": 4, "requests_per_minute": 60},
        NO_LIMITS | {"requests_per_minute": 1},
    ],
)
def test_a_file_may_hold_hashes_with_limits(tmp_path, limits):
    file = tmp_path / "keys"
    file.write_text(make_key(KEY, **limits).line + "\nplain\n")
    assert read_keys((), (str(file),)) == (
        ApiKey(digest=plain_key(KEY).digest, **limits),
        plain_key("plain"),
    )
    assert KEY not in file.read_text()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("sha256:" + "0" * 63, "64 hex digits"),
        ("sha256:", "64 hex digits"),
        ("sha256:" + "0" * 64 + " nam=alice", "nam=alice"),
        ("sha256:" + "0" * 64 + " max_concurrent=0", "between 1 and"),
        ("sha256:" + "0" * 64 + " max_concurrent=many", "number"),
        ("sha256:" + "0" * 64 + " requests_per_minute=" + "9" * 5000, "between 1 and"),
        ("sha256:" + "0" * 64 + " name=", "name"),
        ("sha256:" + "0" * 64 + " name=a/b", "letters"),
        ("sha256:" + "0" * 64 + " name=a name=b", "twice"),
        (f"sha256:{'0' * 64} name=a\nsha256:{'0' * 64} name=b", "twice"),
    ],
)
def test_a_hashed_key_that_cannot_work_is_refused_by_its_line(tmp_path, line, why):
    file = tmp_path / "keys"
    file.write_text(line)
    with pytest.raises(ConfigError, match=why) as raised:
        read_keys((), (str(file),))
    assert "0" * 63 not in str(raised.value)


def test_a_new_key_is_shown_to_the_operator_and_its_hash_goes_to_the_file(tmp_path):
    ended = CliRunner().invoke(app, ["api-key", "--name", "bob", "--max-concurrent", "2"])
    assert ended.exit_code == 0
    key = ended.stderr.split()[-1]
    assert (
        ended.stdout
        == make_key(key, name="bob", max_concurrent=2, requests_per_minute=None).line + "\n"
    )
    assert key not in ended.stdout
    assert len(key) > 50


def test_a_key_that_exists_is_hashed_unless_it_is_short():
    ended = CliRunner().invoke(app, ["api-key", "--hash"], input=KEY + "\n")
    assert (ended.stdout, ended.stderr) == (make_key(KEY, **NO_LIMITS).line + "\n", "")
    with pytest.raises(ConfigError, match="fewer than 32") as raised:
        make_key("letmein", **NO_LIMITS)
    assert "letmein" not in str(raised.value)


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
    assert (open_to_all(host, tuple(map(plain_key, keys))) is not None) == warned
