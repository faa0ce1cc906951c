"""Draws which package of Baton imports which, and keeps the drawing in docs/architecture.md true.

python tools/import_diagram.py            write it
python tools/import_diagram.py --check    say what differs and end with code 1 if it is not true
"""

import argparse
import difflib
import sys
from itertools import permutations
from pathlib import Path

import grimp

PAGE = Path(__file__).parents[1] / "docs" / "architecture.md"
BEGIN, END = "<!-- import diagram: begin (made by `make format`) -->", "<!-- import diagram: end -->"


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


def with_diagram(page: str, drawing: str) -> str:
    """The page with the part between the markers replaced. Raises ValueError when it has no markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no markers {BEGIN!r} .. {END!r}")
    return f"{before}{BEGIN}\n{drawing}\n{END}{after}"


def main() -> int:
    """Write or check; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is out of date")
    check = parser.parse_args().check
    page = PAGE.read_text()
    wanted = with_diagram(page, diagram())
    if not check:
        PAGE.write_text(wanted)
        return 0
    if page == wanted:
        return 0
    difference = difflib.unified_diff(page.splitlines(), wanted.splitlines(), "the page", "the imports", lineterm="")
    print(*difference, "the import diagram is out of date; `make format` draws it anew", sep="\n", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
