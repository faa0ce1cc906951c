"""What is measured, and how a process of an engine is asked for it.

This file is imported in the environments of all engines, so it needs the standard library alone.
"""

import json
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

VOCABULARY = 40_000  # ids of prompts end before
STEPS = 24  # generated tokens of a sequence
NOT_COUNTED = 4  # of them: the first steps of a batch find cold caches


class Case(NamedTuple):
    """One thing that is measured.

    Attributes:
        what: "prefill": seconds until the first tokens of a batch; "decode": seconds of one step
        batch: sequences
        tokens: prompt tokens of each; with "decode" the context
    """

    what: str
    batch: int
    tokens: int

    @property
    def name(self) -> str:
        """As in tables."""
        return f"{self.what} {self.batch} x {self.tokens}"


class Engine(Protocol):
    """One engine over the weights, in one process."""

    def prefill(self, prompts: list[list[int]]) -> float:
        """Compute prompts and draw a token for each; returns seconds. Nothing is cached."""
        ...

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        """Compute prompts, then generate; returns seconds of each step behind the prompts."""
        ...


def prompts(case: Case, seed: int) -> list[list[int]]:
    """Random prompts; none begins like another."""
    chance = random.Random(seed)
    return [
        [chance.randrange(100, VOCABULARY) for _ in range(case.tokens)] for _ in range(case.batch)
    ]


def measured(engine: Engine, case: Case, seed: int) -> list[float]:
    """Measure a case once."""
    asked = prompts(case, seed)
    if case.what == "prefill":
        return [engine.prefill(asked)]
    return engine.decode(asked, STEPS)[NOT_COUNTED:]


def serve(make: Callable[[Mapping[str, Any]], Engine]) -> None:
    """Be the process of an engine: answer each line of stdin with one of stdout, until stdin ends.
    The first line says how the engine is made."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # what libraries print is not an answer
    engine = make(json.loads(sys.stdin.readline()))
    print(json.dumps("ready"), file=answers, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        found = measured(engine, Case(*asked["case"]), asked["seed"])
        print(json.dumps(found), file=answers, flush=True)


def all_cases(*, quick: bool) -> Iterator[Case]:
    """Yield what is measured."""
    if quick:
        yield from (Case("prefill", 1, 128), Case("decode", 1, 128), Case("decode", 8, 128))
        return
    yield from (Case("prefill", 1, n) for n in (128, 512, 2048))
    yield Case("prefill", 8, 512)
    yield from (Case("decode", n, context) for context in (128, 1024) for n in (1, 8, 32))
