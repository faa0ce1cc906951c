"""The README for a package index, where links relative to the repository lead nowhere. All else is in pyproject.toml."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

ROOT = Path(__file__).parent
HOME = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]
LINK = re.compile(r"(!\[[^]]*)?\]\((?![a-z]+:|#)([^)\s]+)\)")


def absolute(link: re.Match[str]) -> str:
    """A link as it works anywhere: to the page of a file, or to the picture itself."""
    picture, target = link.groups()
    return f"{picture or ''}]({HOME}/{'raw' if picture else 'blob'}/main/{target})"


readme = LINK.sub(absolute, (ROOT / "README.md").read_text())
setup(long_description=readme, long_description_content_type="text/markdown")
