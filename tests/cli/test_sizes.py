"""Byte sizes for people."""

import pytest

from baton.cli.sizes import show_size


@pytest.mark.parametrize(
    ("nbytes", "text"), [(1, "1 B"), (1536, "1.5 KiB"), (2 << 30, "2 GiB"), (5 << 40, "5 TiB")]
)
def test_sizes_for_people(nbytes, text):
    assert show_size(nbytes) == text
