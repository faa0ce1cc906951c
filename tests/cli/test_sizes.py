"""Byte sizes."""

import pytest

from baton.cli.sizes import parse_size, show_size
from baton.core.errors import ConfigError


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
    assert parse_size(text, what="--x") == nbytes


@pytest.mark.parametrize("text", ["", "GiB", "2XB", "-1GiB", "1 2", "0", "0.5", "1e9", "2iB", "nan", "١GiB"])
def test_what_is_no_size_is_refused_by_the_name_of_its_flag(text):
    with pytest.raises(ConfigError, match="--x: "):
        parse_size(text, what="--x")


@pytest.mark.parametrize(("nbytes", "text"), [(1, "1 B"), (1536, "1.5 KiB"), (2 << 30, "2 GiB"), (5 << 40, "5 TiB")])
def test_sizes_for_people(nbytes, text):
    assert show_size(nbytes) == text
