"""Writes seal.json from the plain implementation: `python -m tests.core.handoff.golden.make_seal`.
A protocol stands on it."""

import json
from pathlib import Path

from tests.core.handoff.seal_cases import cases, plain_constant, plain_mix, plain_sums

FILE = Path(__file__).with_name("seal.json")


def golden() -> dict[str, object]:
    """Values as hexadecimal strings, so that no reader rounds them."""
    return {
        "mix": {f"{x:016x}": f"{plain_mix(x):016x}" for x in (0, 1, 2**63, 2**64 - 1)},
        "constants": {str(i): f"{plain_constant(i):016x}" for i in (0, 1, 31, 1023)},
        "sums": {
            case.name: [[f"{int(s):016x}" for s in row] for row in case.sums(plain_sums)]
            for case in cases()
        },
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(golden(), indent=1) + "\n")
