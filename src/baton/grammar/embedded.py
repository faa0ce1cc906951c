"""The JSON schemas within the text of a grammar."""

import json
import re
from collections.abc import Iterator
from typing import Any

JSON = "%json"
# Comments, texts, regular expressions, names.
LARK_WORD = re.compile(r'//.*|#.*|"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|%?\w+')


def schemas(text: str) -> Iterator[Any]:
    """Yield the schemas of a grammar as llguidance gets it: in Lark's notation, or in JSON."""
    if not text.lstrip().startswith("{"):
        yield from _in_lark(text)
        return
    for grammar in json.loads(text)["grammars"]:
        if "json_schema" in grammar:
            yield grammar["json_schema"]
        yield from _in_lark(grammar.get("lark_grammar") or "")


def schema_at(text: str, at: int) -> tuple[Any, int]:
    """Return the JSON that stands at a place of a text, behind white space, and where it ends.

    Raises:
        ValueError: there is none
        RecursionError: it is nested too deeply
    """
    start = at + len(text[at:]) - len(text[at:].lstrip())
    return json.JSONDecoder().raw_decode(text, start)


def _in_lark(text: str) -> Iterator[Any]:
    at = 0
    while word := LARK_WORD.search(text, at):
        at = word.end()
        if word[0] == JSON:
            schema, at = schema_at(text, at)
            yield schema
