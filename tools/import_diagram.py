"""Draws which package of Baton imports which, and keeps the drawing in docs/architecture.md true."""

import sys
from itertools import permutations
from pathlib import Path

import grimp

from document import with_parts, write_or_check

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def package_imports() -> list[tuple[str, str]]:
    """(importer, imported) for every two packages of which one imports the other, sorted."""
    graph = grimp.build_graph("baton", cache_dir=None)
    packages = sorted(graph.find_children("baton"))
    return [
        (a.removeprefix("baton."), b.removeprefix("baton."))
        for a, b in permutations(packages, 2)
        if graph.direct_import_exists(importer=a, imported=b, as_packages=True)
    ]


def diagram() -> str:
    """The drawing as a mermaid block."""
    arrows = "\n".join(f"    {a} --> {b}" for a, b in package_imports())
    return f"```mermaid\nflowchart TD\n{arrows}\n```"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, lambda page: with_parts(page, {"import diagram": diagram()}), "Draw who imports whom."))
