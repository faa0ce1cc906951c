"""What a package index shows, and what an installation brings."""

import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from baton.engine import trial

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = PROJECT["urls"]["Homepage"]


@pytest.fixture
def shown(monkeypatch):
    """The README as it stands in the metadata of a package; `readme` is the one in the repository."""
    given = {}
    monkeypatch.setattr("setuptools.setup", lambda **arguments: given.update(arguments))
    namespace = runpy.run_path(str(ROOT / "setup.py"))
    return given["long_description"], namespace


def test_no_link_of_the_readme_is_relative_on_a_package_index(shown):
    text, _ = shown
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert any(target.startswith(f"{HOME}/blob/main/docs/") for target in targets)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


@pytest.mark.parametrize(
    ("written", "shown_as"),
    [
        ("[a](docs/a.md#b)", f"[a]({HOME}/blob/main/docs/a.md#b)"),
        ("[from\nhere](docs/a.md)", f"[from\nhere]({HOME}/blob/main/docs/a.md)"),
        ("![plot](docs/p.svg)", f"![plot]({HOME}/raw/main/docs/p.svg)"),
        ("[![plot](p.svg)](docs/a.md)", f"[![plot]({HOME}/raw/main/p.svg)]({HOME}/blob/main/docs/a.md)"),
        ("[a](https://x/y) [b](#c) [d](mailto:e@f)", "[a](https://x/y) [b](#c) [d](mailto:e@f)"),
        ("| `a[0]` (b) |", "| `a[0]` (b) |"),
    ],
)
def test_links_and_pictures_lead_to_the_repository(shown, written, shown_as):
    _, namespace = shown
    assert namespace["LINK"].sub(namespace["absolute"], written) == shown_as


def test_the_default_model_needs_nothing_but_a_plain_installation():
    names = {re.match(r"[A-Za-z0-9_.-]+", line).group() for line in PROJECT["dependencies"]}
    assert {"gguf", "accelerate", "httpx"} <= names
    assert PROJECT["optional-dependencies"]["gguf"] == [], "installing with it goes on working"


def test_what_make_installs_is_the_trial_model_that_is_known():
    (line,) = [line for line in (ROOT / "Makefile").read_text().splitlines() if trial.PACKAGE in line]
    assert line.endswith(f"--no-deps {trial.PACKAGE}=={trial.VERSION}")


def test_the_module_is_the_command():
    said = subprocess.run([sys.executable, "-m", "baton", "--version"], capture_output=True, text=True, check=True).stdout
    assert said.startswith("baton ")
