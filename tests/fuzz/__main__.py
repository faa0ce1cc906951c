"""python -m tests.fuzz [PART...] [--count N] [--seed S]: hostile bytes for everything that listens or loads.

Without a part all run, each with its own count. Exit code 1: something broke; its input is shown.
"""

import argparse
import importlib
import sys

# by part: how many inputs, as the module of that name counts them
COUNTS = {
    "codec": 10_000_000,
    "control": 100_000,
    "doors": 20_000,
    "http": 10_000,
    "loaders": 10_000,
}


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(COUNTS))
    parser.add_argument("--count", type=int, help="inputs of each part")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if unknown := [part for part in given.parts if part not in COUNTS]:
        parser.error(f"no part {unknown[0]!r}: there are {', '.join(COUNTS)}")
    broken = 0
    for part in given.parts or COUNTS:
        fuzz = importlib.import_module(f"tests.fuzz.{part}").fuzz
        report = fuzz(given.count or COUNTS[part], given.seed)
        print("\n".join(report.lines()), flush=True)
        broken += len(report.broken)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
