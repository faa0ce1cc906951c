"""Draws which package of Baton imports which, and which folder of the core; keeps the drawings in
docs/architecture.md true."""

import sys
from itertools import permutations
from pathlib import Path

import grimp

from document import with_parts, write_or_check

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"


def imports_within(root: str, *, modules: bool) -> list[tuple[str, str]]:
    """(importer, imported) for every two packages below `root` of which one imports the other,
    sorted; single modules too if asked for."""
    graph = grimp.build_graph("baton", cache_dir=None)
    packages = sorted(
        child for child in graph.find_children(root) if modules or graph.find_children(child)
    )
    return [
        (a.removeprefix(f"{root}."), b.removeprefix(f"{root}."))
        for a, b in permutations(packages, 2)
        if graph.direct_import_exists(importer=a, imported=b, as_packages=True)
    ]


def diagram(root: str, *, modules: bool) -> str:
    """The drawing as a mermaid block."""
    arrows = "\n".join(f"    {a} --> {b}" for a, b in imports_within(root, modules=modules))
    return f"```mermaid\nflowchart TD\n{arrows}\n```"


def drawn(page: str) -> str:
    """The page with both drawings."""
    parts = {
        "import diagram": diagram("baton", modules=True),
        "core diagram": diagram("baton.core", modules=False),
    }
    return with_parts(page, parts)


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, drawn, "Draw who imports whom."))
