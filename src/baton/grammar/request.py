"""The grammars that a request may ask for, as text of llguidance.

JSON may have white space between tokens as people and models write it: on one line, or one line for
each item. It is bounded, because a small model may otherwise write spaces for ever.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from llguidance import LLMatcher, StructTag, grammar_from
from llguidance.gbnf_to_lark import is_lark_syntax

from baton.core.matchers import GrammarError
from baton.grammar import patterns
from baton.grammar.dialect import adapted
from baton.grammar.embedded import JSON, LARK_WORD, schema_at
from baton.grammar.limits import CHOICES, GBNF_WORK, LARK_WORDS, NESTING, TEXT_CHARS

# Not \u0041: a name would be taken for another one than it is.
ESCAPES = 'nrbtf\\"'
WHITE_SPACE = r"\n?[ \t]{0,32}"
Schema = Mapping[str, Any] | bool


def json_schema(schema: Schema, *, white_space: str | None = None) -> str:
    """Return the grammar of JSON that a schema describes.

    Args:
        white_space: regular expression of what may stand between two tokens; empty = nothing

    Raises:
        GrammarError: the schema is nested too deeply, or cannot be written as a grammar
    """
    if (depth := nesting(schema)) > NESTING:
        raise GrammarError(f"the schema has {depth} levels; at most {NESTING} are served")
    if isinstance(schema, bool):
        schema = {} if schema else {"enum": []}
    allowed = WHITE_SPACE if white_space is None else white_space
    options: Any = {
        "whitespace_flexible": bool(allowed),
        "lenient": False,
        "json_allowed_escapes": ESCAPES,
    }
    if allowed:
        patterns.check_length(allowed)
        options["whitespace_pattern"] = allowed
    try:
        text = LLMatcher.grammar_from_json_schema(adapted(schema), overrides=options)
    except ValueError as e:
        raise _unwritable(e) from e
    return _checked(text)


def json_object() -> str:
    """Return the grammar of any JSON object."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> str:
    """Return the grammar of texts that match a regular expression from beginning to end.

    Raises:
        GrammarError: its repetitions make it too long
    """
    patterns.check_length(_checked(pattern))
    return LLMatcher.grammar_from_regex(pattern)


def choice(texts: Sequence[str]) -> str:
    """Return the grammar of these texts.

    Raises:
        GrammarError: there are none, or too many
    """
    if not 0 < len(texts) <= CHOICES:
        raise GrammarError(f"there are {len(texts)} choices; from 1 to {CHOICES} are served")
    # As one terminal: a choice of thousands is one state of a lexer, not thousands of a parser.
    said = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts if text)
    rules = [*(["ONE"] if said else []), *(['""'] if "" in texts else [])]
    return _checked(f"start: {' | '.join(rules)}\n" + (f"ONE: {said}\n" if said else ""))


def context_free(text: str) -> str:
    """Return a grammar in Lark's notation or in GBNF.

    Raises:
        GrammarError: it is neither, or it has too many words or repetitions
    """
    words = _words(_checked(text))
    rules = 0 if is_lark_syntax(text) else text.count("::=")
    if rules * words > GBNF_WORK:
        raise GrammarError(
            f"the grammar has {rules} rules of {words} words together; in GBNF the product of the "
            f"two is at most {GBNF_WORK}; give fewer rules, or write it in Lark's notation"
        )
    try:
        found = _checked(grammar_from("grammar", text))
    except (ValueError, RecursionError) as e:
        raise GrammarError(f"the grammar is neither Lark nor GBNF: {e}") from e
    return _checked(_with_schemas_adapted(found))


def structural_tag(tags: Sequence[Mapping[str, Any]], triggers: Sequence[str]) -> str:
    """Return the grammar of free text in which each tag, once it has begun, is followed to its end.

    Args:
        tags: each with `begin`, `schema` (of JSON) and `end`
        triggers: the texts that begin tags; each tag's `begin` begins with one of them

    Raises:
        GrammarError: a tag begins with no trigger, or a schema cannot be written as a grammar
    """
    found = []
    for tag in tags:
        trigger = next((t for t in triggers if t and tag["begin"].startswith(t)), None)
        if trigger is None:
            raise GrammarError(f"the tag {tag['begin'][:80]!r} begins with none of the triggers")
        body = json.loads(_inner(tag["schema"]))
        found.append(StructTag(trigger=trigger, begin=tag["begin"], grammar=body, end=tag["end"]))
    if not found:
        raise GrammarError("there are no tags; give at least one")
    return _checked(StructTag.to_grammar(found, assume_special=False))


def nesting(value: object) -> int:
    """Return how many objects and lists of a JSON value are nested in each other."""
    depth, level = 0, [value]
    while level:
        depth += any(isinstance(v, (Mapping, list)) for v in level)
        level = [
            inner
            for v in level
            if isinstance(v, (Mapping, list))
            for inner in (v.values() if isinstance(v, Mapping) else v)
        ]
    return depth


def _words(text: str) -> int:
    """Return how many words a grammar has.

    Raises:
        GrammarError: it has too many
    """
    words = sum(1 for _ in LARK_WORD.finditer(text))
    if words > LARK_WORDS:
        raise GrammarError(f"the grammar has {words} words; at most {LARK_WORDS} are served")
    return words


def _with_schemas_adapted(text: str) -> str:
    """Return a grammar in Lark's notation whose schemas are as those that are asked for alone.

    Raises:
        GrammarError: a schema cannot be, or the grammar has too many words or repetitions
    """
    _words(text)
    parts, at, schemas = [], 0, text.count(JSON)
    while word := LARK_WORD.search(text, at):
        parts.append(text[at : word.end()])
        at = word.end()
        if word[0] != JSON:
            patterns.check_length(word[0])
            continue
        try:
            schema, at = schema_at(text, at)
        except (ValueError, RecursionError) as e:
            raise GrammarError(f"{JSON} is not followed by JSON: {e}") from e
        parts.append(f" {_inner(schema)}")
        schemas -= 1
    if schemas:
        raise GrammarError(f"the grammar says {JSON} within a text or a comment")
    return "".join([*parts, text[at:]])


def _inner(schema: Any) -> str:
    if not isinstance(schema, (dict, bool)):
        raise GrammarError(f"the schema is {str(schema)[:40]}; it must be an object")
    return json.dumps(json.loads(json_schema(schema))["grammars"][0]["json_schema"])


def _unwritable(e: ValueError) -> GrammarError:
    if isinstance(e, GrammarError):
        return e
    return GrammarError(f"the schema cannot be written as JSON: {str(e)[:80]}")


def _checked(text: str) -> str:
    if len(text) > TEXT_CHARS:
        raise GrammarError(f"it has {len(text)} characters; at most {TEXT_CHARS} are served")
    return text
