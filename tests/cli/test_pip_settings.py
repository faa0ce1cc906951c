"""What is fetched comes from where pip would get it."""

import subprocess
import sys
from pathlib import Path

import pytest

from baton.adapters.package_index import Index
from baton.cli import pip_settings
from baton.cli.pip_settings import PUBLIC, config_files, pip_index, read_config
from baton.core.errors import ConfigError

NO_FILES = {"PIP_CONFIG_FILE": "/dev/null"}


def test_without_settings_it_is_the_public_index():
    assert pip_index(NO_FILES) == Index(urls=(PUBLIC,))


@pytest.mark.parametrize(
    ("environment", "index"),
    [
        ({"PIP_INDEX_URL": "http://a/simple"}, Index(urls=("http://a/simple",))),
        (
            {"PIP_EXTRA_INDEX_URL": "http://a \n file:///b"},
            Index(urls=(PUBLIC, "http://a", "file:///b")),
        ),
        (
            {"PIP_CERT": "/c.pem", "PIP_PROXY": "http://p:1"},
            Index(urls=(PUBLIC,), certificates="/c.pem", proxy="http://p:1"),
        ),
        ({"PIP_NO_INDEX": "1", "PIP_INDEX_URL": "http://a"}, Index(urls=())),
        ({"PIP_NO_INDEX": "0"}, Index(urls=(PUBLIC,))),
        ({"PIP_INDEX_URL": ""}, Index(urls=(PUBLIC,))),
    ],
)
def test_the_environment_is_heard(environment, index):
    assert pip_index(NO_FILES | environment) == index


def test_a_file_is_heard_and_the_environment_wins(tmp_path):
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = http://g/simple\nextra_index_url =\n    http://x\n    "
        "http://y\ncert = ~/c.pem\n"
        "[download]\nindex-url = http://d/simple\n[install]\nindex-url = http://i/simple\n"
    )
    environment = {"PIP_CONFIG_FILE": str(file)}
    found = pip_index(environment)
    assert found.urls == ("http://d/simple", "http://x", "http://y")
    assert found.certificates == str(Path.home() / "c.pem")
    assert (
        pip_index(environment | {"PIP_INDEX_URL": "http://e/simple"}).urls[0] == "http://e/simple"
    )


def test_later_files_win(tmp_path, monkeypatch):
    files = [tmp_path / "one.conf", tmp_path / "none.conf", tmp_path / "two.conf"]
    files[0].write_text("[global]\nindex-url = http://one\nproxy = http://p\n")
    files[2].write_text("[global]\nindex-url = http://two\n")
    monkeypatch.setattr(pip_settings, "config_files", lambda _: files)
    assert pip_index({}) == Index(urls=("http://two",), proxy="http://p")


def test_a_file_that_does_not_parse_is_named(tmp_path):
    (tmp_path / "pip.conf").write_text("index-url = x\n")
    with pytest.raises(ConfigError, match=r"pip\.conf does not parse"):
        read_config(tmp_path / "pip.conf")


def test_the_files_are_pips_own_in_its_order(monkeypatch):
    """As `pip config debug` lists them."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "debug"], capture_output=True, text=True
    )
    if said.returncode != 0:
        pytest.skip("pip is not installed here")
    listed = [
        line.split(", exists:")[0].strip()
        for line in said.stdout.splitlines()
        if ", exists:" in line
    ]
    monkeypatch.delenv("PIP_CONFIG_FILE", raising=False)
    ours = [str(file) for file in config_files({})]
    assert sorted(ours) == sorted(listed)
    assert ours[-1] == next(path for path in listed if path.startswith(sys.prefix))
