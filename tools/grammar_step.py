"""Times steps of the trial model with and without a grammar, in turns, and its masks.

    python tools/grammar_step.py --batch 8 --tokens 120

Both batches go through the engine, from embedding to drawn token, with the same weights, threads
and lengths. Every sequence of the constrained batch follows a JSON schema of its own. Medians of
milliseconds by the clock; masks in microseconds, from the tokens so far to the mask.
"""

import argparse
import json
import logging
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import structlog

from baton.cli.models import TRIAL, ensure
from baton.core.ids import Epoch, Key, Room, TokenId, TokenIndex
from baton.core.matchers import Matcher
from baton.core.messages import Grammar
from baton.core.past import Past
from baton.core.work import Draw, GrammarReady, Row
from baton.engine.engine import TorchEngine
from baton.engine.grammars import Mask
from baton.grammar.matcher import LlguidanceMatcher
from baton.grammar.request import json_schema
from baton.grammar.vocabulary import Vocabulary
from decode_step import GREEDY, Ours

ENDS = (TokenId(2),)


def schema(n: int) -> dict[str, Any]:
    """What sequence n says: an object with lists of objects, as tools are called with."""
    person = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "role": {"enum": ["cook", "driver", f"guest {n}"]},
            "age": {"type": "integer", "minimum": 0},
        },
        "required": ["name", "role", "age"],
        "additionalProperties": False,
    }
    return {
        "type": "object",
        "properties": {"people": {"type": "array", "items": person, "minItems": 50}},
        "required": ["people"],
        "additionalProperties": False,
    }


class Timed:
    """A matcher whose calls are timed."""

    def __init__(self, matcher: Matcher[Mask], times: list[float]) -> None:
        self._matcher, self._times, self._spent = matcher, times, 0.0

    def accept(self, tokens: Sequence[TokenId]) -> None:
        """Take the tokens, and keep the time for the mask that follows."""
        began = time.perf_counter()
        self._matcher.accept(tokens)
        self._spent += time.perf_counter() - began

    def go_back(self, count: int) -> None:
        """Go back."""
        self._matcher.go_back(count)

    def allowed(self) -> Mask:
        """Return the mask."""
        began = time.perf_counter()
        found = self._matcher.allowed()
        self._times.append(self._spent + time.perf_counter() - began)
        self._spent = 0.0
        return found


class Batch(Ours):
    """A batch of the trial model that says what it draws; with a grammar for every sequence or for
    none."""

    def __init__(self, path: Path, *, batch: int, longest: int, constrained: bool) -> None:
        self.times: list[float] = []
        self._constrained = constrained
        self._said: list[list[int]] = [[] for _ in range(batch)]
        super().__init__(path, "bfloat16", threads=1, batch=batch, longest=longest)
        if constrained:
            vocabulary = Vocabulary((path / "tokenizer.json").read_text, size=49152)
            engine: TorchEngine = self._engine
            engine._grammars._build = lambda grammar: Timed(
                LlguidanceMatcher(grammar, vocabulary), self.times
            )
            for n in range(batch):
                engine.constrain(key(n), Grammar(json_schema(schema(n)), (), ENDS))
            built = 0
            while built < batch:
                built += sum(isinstance(done, GrammarReady) for done in engine.poll())
                time.sleep(0.001)

    def go_on(self) -> None:
        """One step: every sequence takes its last token and draws the next one."""
        last = np.array([said[-1] if said else 1 for said in self._said])
        for said, token in zip(self._said, self.step(last), strict=True):
            said.append(token)

    def _row(self, n: int, start: int, tokens: np.ndarray) -> Row:
        row = super()._row(n, start, tokens)
        said = tuple(map(TokenId, self._said[n]))
        past = Past((), said, ENDS if not self._constrained else (), self._constrained)
        return Row(
            key(n),
            row.start,
            row.tokens,
            row.pages,
            {},
            row.valid,
            Draw(GREEDY, TokenIndex(len(said)), past),
        )


def key(n: int) -> Key:
    """The room of a sequence."""
    return Key(Room(f"{n:032x}"), Epoch(1))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=120)
    parser.add_argument("--context", type=int, default=128)
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    path = ensure(TRIAL)
    longest = args.context + args.tokens + 1
    both = {
        name: Batch(path, batch=args.batch, longest=longest, constrained=name == "constrained")
        for name in ("free", "constrained")
    }
    prompt = np.arange(1, args.context + 1)
    for batch in both.values():
        batch._said, said = [[] for _ in range(args.batch)], batch._said
        batch.prefill(prompt)
        batch.share(args.batch)
        batch._said = said
    steps: dict[str, list[float]] = {name: [] for name in both}
    for i in range(args.tokens):
        for name in sorted(both, reverse=i % 2 == 0):
            began = time.perf_counter()
            both[name].go_on()
            steps[name].append(time.perf_counter() - began)
    masks = sorted(both["constrained"].times[args.batch :])
    free, bound = (1000 * statistics.median(steps[name][2:]) for name in ("free", "constrained"))
    found = {
        "batch": args.batch,
        "free_ms": round(free, 2),
        "constrained_ms": round(bound, 2),
        "more": f"{bound / free - 1:.1%}",
        "mask_us": {
            name: round(1e6 * masks[int(share * (len(masks) - 1))])
            for name, share in (("median", 0.5), ("p99", 0.99), ("most", 1.0))
        },
    }
    print(json.dumps(found))
    for batch in both.values():
        batch.close()


if __name__ == "__main__":
    main()
