"""Measures the bank of planted bugs: writes the table in docs/simulation.md and the first seeds
that the tests start from.

tools/planted_bugs.py [--jobs N] [--seeds N] [NAME ...]      without names all of them, and both files are written
"""

import argparse
import os
import pprint
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.progress import track

from baton.dev.sim.bank import SEEDS, SHRINK_RUNS, PlantResult, measure, table
from baton.dev.sim.plants import BANK, BY_NAME, seeds
from baton.dev.sim.run import be_silent
from document import with_parts

PAGE = Path(__file__).parents[1] / "docs" / "simulation.md"


def found(name: str, worlds: int, shrink_runs: int) -> PlantResult:
    """One row of the table: a rate over so many worlds, or over all of them where the bug shows in
    none of these."""
    be_silent()
    row = measure(BY_NAME[name], SEEDS[:worlds], shrink_runs=shrink_runs)
    return (
        row
        if row.first_seed is not None
        else measure(BY_NAME[name], SEEDS, shrink_runs=shrink_runs)
    )


def write_seeds(rows: list[PlantResult]) -> None:
    """Keep the head of the module, replace what it holds."""
    path = Path(seeds.__file__)
    head = path.read_text().split("FIRST_SEEDS: ")[0]
    known = {row.plant: row.first_seed for row in rows if row.first_seed is not None}
    path.write_text(
        f"{head}FIRST_SEEDS: Mapping[str, int] = {pprint.pformat(known, sort_dicts=False)}\n"
    )


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*BY_NAME, []], metavar="NAME")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--seeds", type=int, default=len(SEEDS), help="worlds that a rate is measured over"
    )
    parser.add_argument(
        "--shrink", type=int, default=SHRINK_RUNS, help="runs spent on making the first world small"
    )
    args = parser.parse_args()
    names = args.names or [plant.name for plant in BANK]
    with ProcessPoolExecutor(args.jobs) as pool:
        measured = pool.map(found, names, [args.seeds] * len(names), [args.shrink] * len(names))
        rows = list(track(measured, "planted bugs", total=len(names)))
    for row in rows:
        print(
            f"{row.plant:32} {row.invariant:22} first {row.first_seed}  {row.rate:.1%}  "
            f"{row.choices} choices  {dict(row.others)}"
        )
    if not args.names:
        PAGE.write_text(with_parts(PAGE.read_text(), {"planted bugs": table(BANK, rows)}))
        write_seeds(rows)
    return 0 if all(row.first_seed is not None for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
