"""What a package index shows, and what an installation brings."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from baton.engine import trial

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
HOME = PROJECT["urls"]["Homepage"]


def test_no_link_of_the_readme_is_relative():
    """A package index shows the README by itself."""
    targets = re.findall(r"\]\(([^)]*)\)", (ROOT / "README.md").read_text())
    assert any(target.startswith(f"{HOME}/blob/main/docs/") for target in targets)
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []


def test_the_default_model_needs_nothing_but_a_plain_installation():
    names = {re.match(r"[A-Za-z0-9_.-]+", line).group() for line in PROJECT["dependencies"]}
    assert {"gguf", "accelerate", "httpx"} <= names
    assert PROJECT["optional-dependencies"]["gguf"] == [], "installing with it goes on working"


def test_what_make_installs_is_the_trial_model_that_is_known():
    (line,) = [
        line for line in (ROOT / "Makefile").read_text().splitlines() if trial.PACKAGE in line
    ]
    assert line.endswith(f"--no-deps {trial.PACKAGE}=={trial.VERSION}")


def test_the_module_is_the_command():
    said = subprocess.run(
        [sys.executable, "-m", "baton", "--version"], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("baton ")
