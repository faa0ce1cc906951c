"""Asks a service for answers to many JSON schemas, and checks each answer against its schema.

    baton serve --model smollm2 --port 8000
    python -m tools.schema_run --url http://127.0.0.1:8000 --schemas 1000 --greedy 1 --sampled 1
    python -m tools.schema_run --url http://127.0.0.1:8000 --folder schemas/ --sample 200

The schemas are drawn from seeds (`baton.dev.schemas`), or read from a folder that has one folder
for each family. What may become of an answer:

    valid        it ended with `stop`, and `jsonschema` finds nothing wrong, formats included
    cut          it ended with `length`, and is the beginning of a right one
    invalid      neither; the first ones are printed
    unsupported  the service refused the schema; why, is counted
    error        anything else
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from tests.grammar.walk import wrong
from tokenizers import Tokenizer

from baton.cli.models import TRIAL, ensure
from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.dev.schemas import schema
from baton.grammar.matcher import LlguidanceMatcher
from baton.grammar.request import json_schema
from baton.grammar.vocabulary import Vocabulary

OUTCOMES = ("valid", "cut", "invalid", "unsupported", "error")
BAD = ("invalid", "error")
SHOWN = 20  # of the bad ones
SAID = re.compile(r'(?<=: )?(?:"[^"]*"(?:, )?)+|the format \S+')


@dataclass(frozen=True)
class Item:
    """One schema, and how an answer to it is drawn."""

    family: str
    name: str
    schema: Any
    temperature: float


@dataclass(frozen=True)
class Found:
    """What became of an item."""

    item: Item
    outcome: str
    why: str = ""
    tokens: int = 0


class Prefixes:
    """Says whether a text is the beginning of an answer that a schema allows."""

    def __init__(self, model: Path) -> None:
        path = model / "tokenizer.json"
        self._tokenizer = Tokenizer.from_file(str(path))
        size = self._tokenizer.get_vocab_size()
        self._ends = (TokenId(size - 1),)  # any one: an answer that was cut has none
        self._vocabulary = Vocabulary(path.read_text, size=size)
        self.closing = [self._tokenizer.token_to_id(text) for text in ('"', "]", "}")]

    def wrong(self, schema: Any, text: str) -> str | None:
        """What is wrong; None if nothing is. The last character may be cut in two."""
        ids = self._tokenizer.encode(text.rstrip("\ufffd"), add_special_tokens=False).ids
        matcher = LlguidanceMatcher(Grammar(json_schema(schema), (), self._ends), self._vocabulary)
        try:
            matcher.accept([TokenId(i) for i in ids])
        except GrammarError as e:
            return str(e)
        return None


def items(args: argparse.Namespace) -> Iterator[Item]:
    """The schemas, each once for every answer that is asked for."""
    drawn = (
        [(*schema(seed), f"seed {seed}") for seed in range(args.first, args.first + args.schemas)]
        if args.folder is None
        else [
            (path.parent.name, json.loads(path.read_text()), path.name)
            for path in sorted(args.folder.glob("*/*.json"))
        ]
    )
    if args.sample:
        drawn = random.Random(0).sample(drawn, min(args.sample, len(drawn)))
    for family, said, name in drawn:
        for temperature in [0.0] * args.greedy + [1.0] * args.sampled:
            yield Item(family, name, said, temperature)


def ask(
    client: httpx.Client, item: Item, prefixes: Prefixes, max_tokens: int, close_bias: float
) -> Found:
    """Ask for one answer, and judge it."""
    body = {
        "messages": [{"role": "user", "content": "Give an example of what the schema describes."}],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "example", "schema": item.schema},
        },
        "max_tokens": max_tokens,
        "temperature": item.temperature,
        "seed": 1,
        "logit_bias": {str(token): close_bias for token in prefixes.closing} if close_bias else {},
    }
    try:
        reply = client.post("/v1/chat/completions", json=body)
    except httpx.HTTPError as e:
        return Found(item, "error", repr(e))
    said = reply.json()
    if reply.status_code != 200:
        why = said.get("error", {}).get("message", reply.text)
        return Found(item, "unsupported" if reply.status_code == 400 else "error", why)
    choice, tokens = said["choices"][0], said["usage"]["completion_tokens"]
    text = choice["message"]["content"]
    if choice["finish_reason"] == "length":
        why = prefixes.wrong(item.schema, text)
        return Found(item, "cut" if why is None else "invalid", f"{why}: {text}", tokens)
    try:
        why = wrong(item.schema, text)
    except ValueError as e:
        why = str(e)
    return Found(item, "valid" if why is None else "invalid", f"{why}: {text}", tokens)


def table(found: list[Found]) -> Table:
    """Counts by family."""
    counts: dict[str, Counter[str]] = {}
    for one in found:
        for row in (one.item.family, "all"):
            counts.setdefault(row, Counter())[one.outcome] += 1
    made = Table("family", "asked", *OUTCOMES)
    for row, count in sorted(counts.items(), key=lambda pair: (pair[0] == "all", pair[0])):
        made.add_row(row, str(count.total()), *(str(count[o]) for o in OUTCOMES))
    return made


def reason(why: str) -> str:
    """What a refusal names: keywords, a format, or its first words."""
    said = SAID.search(why.split("implemented:")[-1]) if "implemented" in why else None
    return said[0] if said else why.removeprefix("response_format: ")[:90]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--schemas", type=int, default=1000, help="how many, from seeds")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--folder", type=Path, help="read schemas from here instead")
    parser.add_argument("--sample", type=int, help="take only so many of them")
    parser.add_argument("--greedy", type=int, default=1, help="greedy answers to each schema")
    parser.add_argument("--sampled", type=int, default=1, help="answers at temperature 1 to each")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument(
        "--close-bias",
        type=float,
        default=0.0,
        help="logit_bias of the tokens that close a string, a list or an object, so that the "
        "answers of a random model end",
    )
    parser.add_argument("--model", type=Path, help="the folder with the model's tokenizer.json")
    args = parser.parse_args()
    console, found, shown = Console(), [], 0
    prefixes = Prefixes(args.model or ensure(TRIAL))
    wanted = list(items(args))
    with (
        httpx.Client(base_url=args.url, timeout=600) as client,
        ThreadPoolExecutor(args.concurrency) as threads,
        Progress(console=console) as progress,
    ):
        bar = progress.add_task("answers", total=len(wanted))
        asked = [
            threads.submit(ask, client, i, prefixes, args.max_tokens, args.close_bias)
            for i in wanted
        ]
        for done in as_completed(asked):
            found.append(one := done.result())
            progress.advance(bar)
            shown += one.outcome in BAD
            if one.outcome in BAD and shown <= SHOWN:
                progress.console.print(one.outcome, one.item.name, one.why, markup=False)
    console.print(table(found))
    for why, count in Counter(
        reason(f.why) for f in found if f.outcome == "unsupported"
    ).most_common():
        console.print(f"unsupported {count:5} {why}", markup=False)
    console.print(f"tokens {sum(f.tokens for f in found)}")


if __name__ == "__main__":
    main()
