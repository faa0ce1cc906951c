"""Measures the bank of planted bugs: whether each is found, by which invariant, how soon and how
often. Makes the table for the docs."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from baton.dev.sim.plants.plant import Plant
from baton.dev.sim.plants.seeds import FIRST_SEEDS
from baton.dev.sim.run import RunOutcome, run
from baton.dev.sim.shrink import shrink

SEEDS = range(500)  # within which every planted bug must be found
SHRINK_RUNS = 300


class PlantResult(msgspec.Struct, frozen=True):
    """How the simulator finds one planted bug.

    Attributes:
        first_seed: the first seed that breaks an invariant named by the plant; None if none did
        invariant: the invariant that it broke
        rate: share of the worlds that break such an invariant
        others: how many worlds break another one first, or crash
        choices: choices other than the calm ones in the first world after shrinking; None if it was
            not shrunk
    """

    plant: str
    first_seed: int | None
    invariant: str
    rate: float
    seeds: int
    others: Counter[str]
    choices: int | None = None


def shows(plant: Plant, seed: int) -> RunOutcome | None:
    """Return the outcome of the world with that seed, if it breaks an invariant that the plant
    names; None if not."""
    outcome = run(seed, parts=plant.make())
    return outcome if outcome.invariant in plant.invariants else None


def first(plant: Plant, seeds: Iterable[int] = SEEDS) -> RunOutcome | None:
    """Return a world that shows a plant: the one that was first at the last measurement, or else
    the first one of these seeds. None if there is none."""
    known = FIRST_SEEDS.get(plant.name)
    order = dict.fromkeys([*seeds] if known is None else [known, *seeds])
    return next((found for seed in order if (found := shows(plant, seed)) is not None), None)


def measure(plant: Plant, seeds: Sequence[int], *, shrink_runs: int = 0) -> PlantResult:
    """Run all these worlds with a bug planted, and return the result."""
    first_seed, invariant, hits, others = None, "", 0, Counter[str]()
    script = None
    for seed in seeds:
        outcome = run(seed, parts=plant.make())
        if outcome.invariant in plant.invariants:
            hits += 1
            if first_seed is None:
                first_seed, invariant, script = seed, outcome.invariant, outcome.choices
        elif outcome.invariant:
            others[outcome.invariant] += 1
    choices = None
    if script is not None and shrink_runs:
        choices = len(shrink(script, plant.make(), invariant, shrink_runs))
    return PlantResult(
        plant.name, first_seed, invariant, hits / max(1, len(seeds)), len(seeds), others, choices
    )


def table(plants: Sequence[Plant], found: Sequence[PlantResult]) -> str:
    """Return a Markdown table with one line for each plant."""
    lines = [
        "| planted bug | what it models | record | found by | first seed | rate | choices |",
        "|---|---|---|---|---|---|---|",
    ]
    for plant, f in zip(plants, found, strict=True):
        row = "" if plant.row is None else str(plant.row)
        choices = "" if f.choices is None else str(f.choices)
        seed = "not found" if f.first_seed is None else str(f.first_seed)
        lines.append(
            f"| `{plant.name}` | {plant.models} | {row} | {f.invariant} | {seed} | "
            f"{f.rate:.1%} of {f.seeds} | {choices} |"
        )
    return "\n".join(lines)
