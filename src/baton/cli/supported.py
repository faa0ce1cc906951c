"""Lists the models that can be served, for people and as JSON, from the table of families."""

import json
from typing import Any

from baton.core.memory.state import DType, StateTable, Window
from baton.engine.gguf import SUPPORTED
from baton.engine.models import FAMILIES
from baton.engine.models.base import Family
from baton.engine.quantization.methods import METHODS, served_methods
from baton.engine.rope import SCALINGS
from baton.shell.settings import BLOCK_TOKENS
from baton.vocabulary.load import READERS

DTYPES = ("float32", "bfloat16", "float16")
CACHE_RULE = (
    "prefix cache: needs all state in pages of all tokens; with a model that its config gives "
    "windows, or with state per request, a prompt goes on only from where an earlier one ended"
)
# A small config that every family can read, with layers of every kind. What a family caches does
# not depend on the other sizes.
ANY = {
    "hidden_size": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "num_hidden_layers": 6,
    "intermediate_size": 1,
    "vocab_size": 1,
    "num_experts_per_tok": 1,
}


def describe(family: Family) -> dict[str, Any]:
    """Describe one family, as JSON values."""
    return {
        "family": family.name,
        "architectures": list(family.architectures),
        "models": family.examples,
        "state": _state(family.table(ANY, block_tokens=BLOCK_TOKENS, dtype=DType.BF16)),
        "sliding_window": family.window,
        "prefix_cache": family.table(ANY, block_tokens=BLOCK_TOKENS, dtype=DType.BF16).cacheable,
        "notes": family.notes,
    }


def _state(table: StateTable) -> list[dict[str, Any]]:
    return [
        {
            "group": group.name,
            "unit": group.unit.value,
            "extent": f"last {group.extent.tokens}"
            if isinstance(group.extent, Window)
            else type(group.extent).__name__.lower(),
            "specs": [
                {"name": spec.name, "parts": list(spec.parts)}
                for spec in table.specs_of(group.name)
            ],
        }
        for group in table.groups
    ]


def _positions(extent: str) -> str:
    return {"full": "all tokens", "whole": "the whole request"}.get(extent, f"the {extent}")


def as_json(*, trial: str | None) -> str:
    """Describe everything as JSON. `trial` is the
    path of the trial model; None if it is missing."""
    return json.dumps(
        {
            "families": [describe(family) for family in FAMILIES],
            "rope": sorted(SCALINGS),
            "dtypes": list(DTYPES),
            "quantization": {name: method.served for name, method in METHODS.items()},
            "gguf_architectures": list(SUPPORTED),
            "tokenizer_files": list(READERS),
            "trial_model": {"name": "smollm2", "directory": trial},
        },
        indent=2,
    )


def as_table() -> None:
    """Print the families."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("architecture", no_wrap=True)
    for heading in ("models", "state", "prefix cache", "sliding window", "notes"):
        table.add_column(heading, overflow="fold")
    for row in map(describe, FAMILIES):
        state = "\n".join(
            f"{g['group']}: "
            f"{', '.join(s['name'] + ' ' + '/'.join(s['parts']) for s in g['specs'])} "
            f"of {_positions(g['extent'])}, by {g['unit']}"
            for g in row["state"]
        )
        cached = "yes" if row["prefix_cache"] else "ends of prompts"
        table.add_row(
            "\n".join(row["architectures"]),
            row["models"],
            state,
            cached,
            row["sliding_window"],
            row["notes"],
        )
    console = Console(highlight=False)
    console.print(table)
    console.print(CACHE_RULE, soft_wrap=True)
    console.print(f"rope: {', '.join(sorted(SCALINGS))}", soft_wrap=True)
    console.print(
        f"weights: safetensors in {', '.join(DTYPES)}; GGUF of {', '.join(SUPPORTED)}",
        soft_wrap=True,
    )
    console.print(f"tokenizer: the first of {', '.join(READERS)}", soft_wrap=True)
    console.print(f"quantised weights: {served_methods()}", soft_wrap=True)
