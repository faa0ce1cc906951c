"""Writes the table of docs/layouts.md from the layouts that the tests start; `--check` fails where
it is out of date."""

import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from tests.e2e.layouts import KINDS, PRODUCT, RECURRENT, Kind  # noqa: E402

from document import with_parts, write_or_check  # noqa: E402

PAGE = ROOT / "docs" / "layouts.md"


def table() -> str:
    """One row for each model: what was started on either side."""
    kinds = [*KINDS.values(), *RECURRENT.values()]
    rows = [_row(kind) for kind in kinds]
    head = [
        "| model | query heads | K/V heads | fabric | prefill | decode | pairs |",
        "|---|---|---|---|---|---|---|",
    ]
    *first, last = sorted({kind.fabric for kind in PRODUCT.values()})
    said = [
        f"{_pairs(kinds)} pairs, each with a prompt of its own. The pairs of the random Llama "
        "on shm go through"
        f" {', '.join(first)} and {last} too: {_pairs(PRODUCT.values())} more, with `make long`."
    ]
    return "\n".join([*head, *rows, "", *said])


def _pairs(kinds: Iterable[Kind]) -> int:
    return sum(len(kind.prefill) * len(kind.decode) for kind in kinds)


def _row(k: Kind) -> str:
    sides = (", ".join(map(str, side)) for side in (k.prefill, k.decode))
    return " | ".join(
        [f"| {k.model}", str(k.heads), str(k.kv_heads), k.fabric, *sides, f"{_pairs([k])} |"]
    )


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, lambda page: with_parts(page, {"layouts": table()}), __doc__))
