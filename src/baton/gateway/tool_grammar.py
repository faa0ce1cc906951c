"""Grammars that make a model write tool calls in its own format, as text of llguidance.

    required, named   calls and nothing else
    auto, strict      free text, in which every call that begins is a right one

Reasoning may come before either, and before structured output (`behind_reasoning`).

llguidance takes every added token of a tokenizer, special or not, for more than its text; so where
a text of the format has one, the grammar has the token's id.
"""

import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.gateway.dialect_grammar import Dialect, bare, sequence
from baton.gateway.json_types import may_be_text
from baton.gateway.response_formats import Native
from baton.grammar import request as make

NO_ARGUMENTS: Mapping[str, Any] = {
    "type": "object",
    "properties": {},
    "additionalProperties": False,
}
ANY = r"/(.|\n)*/"
PLACES = re.compile("NAME|KEY|STRING")
NUMBER = "/[0-9]{1,4}/"
# What begins calls and nothing else; llama3_json's `{"name"` may stand in any answer.
MARK = re.compile(r"<[^>]*>|\[[^\]]*\]")
JSON_QUOTE = '"'
TAGGED = re.compile(r"[^<>\"\s]+")  # keys of arguments that are written as tags
Tools = Sequence[Mapping[str, Any]]
Tokens = Mapping[str, TokenId]


def required_calls(tools: Tools, native: Native, *, added: Tokens, single: bool) -> str:
    """Return the grammar of one or more calls.

    Args:
        tools: those that may be called, all as strict functions
        native: how the model writes calls
        added: the tokenizer's added tokens by their text
        single: whether there is exactly one call

    Raises:
        GrammarError: the parameters of a function cannot be written as a grammar
    """
    rules = _Rules(added)
    rules.add("start", _calls(rules, tools, native, single=single))
    return rules.text()


def can_be_strict(tools: Tools, native: Native | None) -> bool:
    """Whether `strict_calls` has a grammar: a function is strict, and the format allows one.

    The format must have a text that begins calls and nothing else. Where arguments are tags, all
    functions must be strict, because a grammar has no tags without parameters.
    """
    if native is None or MARK.match(native.begin + native.before) is None:
        return False
    strict = [bool(tool["function"].get("strict")) for tool in tools]
    return any(strict) and (native.key is None or all(strict))


def strict_calls(tools: Tools, native: Native, *, added: Tokens) -> str:
    """Return the grammar of free text with any number of calls.

    The arguments of a function follow its parameters if it is strict; otherwise they are any
    arguments.

    Raises:
        GrammarError: the parameters of a function cannot be written as a grammar
    """
    assert can_be_strict(tools, native)
    begun = MARK.match(native.begin + native.before)
    assert begun is not None
    rules = _Rules(added)
    free = [t if t["function"].get("strict") else _without_parameters(t) for t in tools]
    # Calls that nothing surrounds are begun anew by their mark.
    calls = _calls(rules, free, native, single=not native.begin, written=begun[0])
    rules.add("start", f"({rules.until(begun[0])} {calls})* text")
    rules.add("text", ANY)
    return rules.text()


def behind_reasoning(answer: str, native: Native, *, added: Tokens, opened: bool) -> str:
    """Return the grammar of an answer with the model's reasoning before it.

    Args:
        answer: the grammar of what follows
        native: what is around the reasoning
        added: the tokenizer's added tokens by their text
        opened: whether the prompt has opened the reasoning, so that it must be closed; otherwise
            there may be none
    """
    rules = _Rules(added)
    rest = f"{rules.until(native.after)} /\\n{{0,2}}/"
    if opened:
        return _joined(rules, rest, answer)
    thought = rules.fresh("thought", f"{rules.literal(native.before)} {rest}")
    return _joined(rules, f"{thought}?", answer)


def behind_text(answer: str, text: str, *, added: Tokens) -> str:
    """Return the grammar of an answer with a text before it."""
    rules = _Rules(added)
    return _joined(rules, rules.literal(text), answer)


def tokens_of(text: str, added: Tokens) -> tuple[TokenId, ...] | None:
    """Return the added tokens that a text consists of; None if it has anything else."""
    pieces = _pieces(text, added)
    if not pieces or any(piece not in added for piece in pieces):
        return None
    return tuple(added[piece] for piece in pieces)


class _Rules:
    """The rules of a Lark grammar, by their names."""

    def __init__(self, added: Tokens) -> None:
        self._added = added
        self._rules: dict[str, str] = {}

    def add(self, name: str, body: str) -> str:
        assert name not in self._rules
        self._rules[name] = body
        return name

    def fresh(self, kind: str, body: str, *, options: str = "") -> str:
        """Add a rule under a new name, which is returned."""
        name = f"{kind}_{len(self._rules)}"
        self._rules[name + options] = body
        return name

    def promise(self, kind: str) -> tuple[str, Callable[[str], None]]:
        """Return a new name and what gives it its rule, which may refer to itself."""
        name = f"{kind}_{len(self._rules)}"
        self._rules[name] = ""

        def keep(body: str) -> None:
            self._rules[name] = body

        return name, keep

    def text(self) -> str:
        lines = [f"{name}: {body}" for name, body in self._rules.items()]
        return "\n".join(["%llguidance {}", *lines, ""])

    def literal(self, text: str) -> str:
        """Return the expression of a text; may be empty."""
        return " ".join(
            f"<[{self._added[piece]}]>" if piece in self._added else _quoted(piece)
            for piece in _pieces(text, self._added)
        )

    def until(self, end: str, *, text: str = ANY) -> str:
        """Return the expression of any text that ends with the first `end`.

        Args:
            text: regular expression of the text
        """
        pieces = _pieces(end, self._added)
        at = next((i for i, piece in enumerate(pieces) if piece in self._added), None)
        if at is None:
            return self.fresh("until", f"{text} {_quoted(end)}", options="[lazy]")
        # The first added token ends the text, so what stands before it can belong to the text.
        before, rest = "".join(pieces[:at]), "".join(pieces[at:])
        return f"{text[:-1]}{_pattern(before)}/ {self.literal(rest)}"

    def filled(self, text: str, **values: str) -> str:
        """Return the expression of a text with names, keys and numbers in their places."""
        parts = [PLACES.sub(lambda m: values[m[0]], part) for part in text.split("NUMBER")]
        return f" {NUMBER} ".join(map(self.literal, parts))


def _joined(rules: "_Rules", before: str, answer: str) -> str:
    grammars = (
        json.loads(answer)["grammars"]
        if answer.lstrip().startswith("{")
        else [{"lark_grammar": answer}]
    )
    first, *others = grammars
    name = f"answer_{len(answer)}"  # an answer within an answer is shorter
    rules.add("start", f"{before} @{name}")
    named = [{**first, "name": name}, *others]
    return json.dumps({"grammars": [{"lark_grammar": rules.text()}, *named]})


def _pieces(text: str, added: Tokens) -> list[str]:
    """Divide a text at the added tokens in it."""
    longest_first = sorted(added, key=len, reverse=True)
    found = re.split("(" + "|".join(map(re.escape, longest_first)) + ")", text) if added else [text]
    return [piece for piece in found if piece]


def _pattern(text: str) -> str:
    """Return a regular expression of a text."""
    return "".join(c if c.isalnum() or not c.isascii() else f"\\x{ord(c):02x}" for c in text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _calls(rules: _Rules, tools: Tools, native: Native, *, single: bool, written: str = "") -> str:
    """Return the expression of all calls, less their beginning `written`."""
    first = later = native
    if native.begin:
        first = structs.replace(native, begin=native.begin[len(written) :])
    else:
        first = structs.replace(native, before=native.before[len(written) :])
    calls = rules.literal(first.begin) + " " + _call(rules, tools, first)
    if not single and native.between is not None:
        again = _call(rules, tools, later)
        calls += f" ({rules.literal(native.between)} {again})*"
    return f"{calls} {rules.literal(native.end)}"


def _call(rules: _Rules, tools: Tools, native: Native) -> str:
    each = [_call_of(rules, tool["function"], native) for tool in tools]
    return rules.fresh("call", " | ".join(each))


def _call_of(rules: _Rules, function: Mapping[str, Any], native: Native) -> str:
    schema = {"type": "object", **(function.get("parameters") or NO_ARGUMENTS)}
    if native.quote == JSON_QUOTE:
        for part in function["name"].split("."):
            _python_name(part)
    before = rules.filled(native.before, NAME=function["name"])
    arguments = (
        _json(rules, schema) if native.key is None else _tagged(rules, schema, native, native.key)
    )
    return f"{before} {arguments} {rules.literal(native.after)}"


def _json(rules: _Rules, schema: Mapping[str, Any]) -> str:
    plain = json.loads(make.json_schema(schema))["grammars"][0]["json_schema"]
    return rules.fresh("json", f"%json {json.dumps(plain)}")


def _tagged(rules: _Rules, schema: Mapping[str, Any], native: Native, key: str) -> str:
    """Return the expression of arguments as tags: those that the schema names, in its order."""
    required = schema.get("required") or ()
    shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    found: list[tuple[str, bool]] = []
    for name, about in (schema.get("properties") or {}).items():
        if native.quote:
            written = _between_quotes(rules, about, schema, native)
            known = _python_name(name) if native.quote == JSON_QUOTE else bare(name)
            opened = rules.filled(key, KEY=known)
            found.append((rules.fresh("argument", f"{opened} {written}"), name in required))
            continue
        if not TAGGED.fullmatch(name):
            raise GrammarError(
                f"the argument {name[:80]!r} has a character that this model's format has no way "
                "to write; leave out spaces and any of < > and quotation marks"
            )
        about = about if isinstance(about, Mapping) else {}
        text = may_be_text(about, schema)
        opened = rules.filled(key, KEY=name, STRING="true" if text else "false")
        value = (
            rules.until(native.value_end)
            if text and "enum" not in about
            else f"{_limited(rules, about, shared, text=text)} {rules.literal(native.value_end)}"
        )
        tag = rules.fresh("argument", f"{opened} {value}")
        found.append((tag, name in required))
    if native.separator:
        return sequence(rules, found, rules.literal(native.separator))
    return " ".join(tag if needed else f"{tag}?" for tag, needed in found)


def _python_name(name: str) -> str:
    if keyword.iskeyword(name) or name[:1].isdigit():
        raise GrammarError(
            f"{name[:80]!r} is no name in Python, in whose syntax this model writes calls; "
            "give it another one"
        )
    return bare(name)


def _between_quotes(rules: _Rules, about: object, schema: Mapping[str, Any], native: Native) -> str:
    """Return the expression of a value whose texts are between marks, or are JSON."""
    if native.quote == JSON_QUOTE:
        shared = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
        return _json(rules, {**shared, **(about if isinstance(about, Mapping) else {})})
    dialect = Dialect(
        rules, quote=native.quote, root=schema, scalar=lambda scalar: _json(rules, scalar)
    )
    return dialect.value(about)


def _limited(
    rules: _Rules, about: Mapping[str, Any], shared: Mapping[str, Any], *, text: bool
) -> str:
    """Return the expression of a value between tags: JSON, or one of some texts."""
    if not text:
        return _json(rules, {**shared, **about})
    texts = [rules.literal(str(value)) for value in about["enum"] if value != ""]
    return f"({' | '.join(texts)})" if texts else ""


def _without_parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**tool, "function": {**tool["function"], "parameters": {"type": "object"}}}
