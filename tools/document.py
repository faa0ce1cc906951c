"""What the tools share that write a page of the documents, or a part of it, from the code.

TOOL.py            write it
TOOL.py --check    say what differs and end with code 1 if the page is not true
"""

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def with_parts(page: str, parts: Mapping[str, str]) -> str:
    """The page with what stands between `<!-- NAME: begin .. -->` and `<!-- NAME: end -->`
    replaced, by name.

    Raises ValueError when a pair of markers is missing.
    """
    for name, text in parts.items():
        markers = (
            rf"(<!-- {re.escape(name)}: begin\b[^\n]*-->\n).*?(<!-- {re.escape(name)}: "
            rf"end -->)"
        )
        page, found = re.subn(
            markers, lambda m, text=text: f"{m[1]}{text}\n{m[2]}", page, count=1, flags=re.DOTALL
        )
        if not found:
            raise ValueError(
                f"the page has no markers '<!-- {name}: begin -->' .. '<!-- {name}: end -->'"
            )
    return page


def write_or_check(page: Path, wanted: Callable[[str], str], about: str) -> int:
    """Carry out the tool's command line; returns the exit code. `wanted` makes the page as it
    should be of the one that is."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if the page is out of date"
    )
    check = parser.parse_args().check
    found = page.read_text()
    right = wanted(found)
    if not check:
        page.write_text(right)
        return 0
    if found == right:
        return 0
    difference = difflib.unified_diff(
        found.splitlines(), right.splitlines(), "the page", "the code", lineterm=""
    )
    print(
        *difference,
        f"{page.name} is out of date; `make format` writes it anew",
        sep="\n",
        file=sys.stderr,
    )
    return 1
