"""Values as people write them."""

import re

import pytest

from baton.core.errors import ConfigError
from baton.ports.written import names, numbers, pair, path, size, texts, url_path


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        ("1000000", 1_000_000),
        ("2GiB", 2 << 30),
        ("2gib", 2 << 30),
        (" 512 MiB ", 512 << 20),
        ("1.5G", 1_500_000_000),
        ("1.5GB", 1_500_000_000),
        ("64KiB", 64 << 10),
        ("3k", 3_000),
        ("1TiB", 1 << 40),
    ],
)
def test_sizes(text, nbytes):
    assert size("--x", text) == nbytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "2XB", "-1GiB", "1 2", "0", "0.5", "1e9", "2iB", "nan", "١GiB"]
)
def test_what_is_no_size_is_refused_by_the_name_of_its_flag(text):
    with pytest.raises(ConfigError, match="--x: "):
        size("--x", text)


def test_lists_pairs_and_paths(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert names("--x", "a,b,") == ("a", "b")
    assert numbers("--x", "0, 12") == (0, 12)
    assert pair("--x", "k=a=b") == ("k", "a=b")
    assert path("--x", "f") == str(tmp_path / "f")
    assert texts("--x", '["*", "https://a"]') == ("*", "https://a")
    assert texts("--x", "[]") == ()
    assert [url_path("--x", text) for text in ("", "/api", "/a/b")] == ["", "/api", "/a/b"]


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *((numbers, text) for text in ("a,b", "1,", "-1")),
        *((pair, text) for text in ("k", "=v")),
        *((texts, text) for text in ("https://a", '"a"', "[1]", "{}")),
        *((url_path, text) for text in ("api", "/", "/api/", "//api")),
    ],
)
def test_what_cannot_be_read_is_refused_with_an_example(read, text):
    with pytest.raises(ConfigError, match=rf"--x {re.escape(text)}: write .*, e\.g\. "):
        read("--x", text)
