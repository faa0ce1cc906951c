"""Tool calls as parsed from an answer, checked and brought into OpenAI's form."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


class Malformed(Exception):
    """What the model wrote is not a call."""


class ParsedCall(msgspec.Struct, frozen=True):
    """One call. `arguments` is the text of a JSON object; `id` is the model's own, or None."""

    name: str
    arguments: str
    id: str | None = None


class ToolCall(msgspec.Struct, frozen=True):
    """A call of an answer, or a piece of one.

    Attributes:
        index: counts the calls of one choice
        arguments: the text of a JSON object, or a piece of it
        begins: whether it is the first piece
        ends: whether it is the last piece. If the model writes no JSON, the pieces are no complete
            object; an answer that is cut off has no last piece.
    """

    index: int
    id: str
    name: str
    arguments: str
    begins: bool = True
    ends: bool = True


class Parsed(msgspec.Struct, frozen=True):
    """What a piece of text adds to the message.

    Attributes:
        parts: the same in the order in which the model wrote it, each part of one kind; empty if
            there is only one kind
    """

    content: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    parts: tuple["Parsed", ...] = ()

    @property
    def in_order(self) -> tuple["Parsed", ...]:
        """The parts; of a piece of one kind, the piece itself."""
        return self.parts or (self,)


def joined(parts: Sequence[Parsed]) -> Parsed:
    """Return parts of one kind each as one piece."""
    kinds = {(bool(p.content), bool(p.reasoning), bool(p.calls)) for p in parts}
    return Parsed(
        "".join(p.content for p in parts),
        "".join(p.reasoning for p in parts),
        tuple(c for p in parts for c in p.calls),
        tuple(parts) if len(kinds) > 1 else (),
    )


def parsed_calls(value: Any) -> tuple[ParsedCall, ...]:
    """Return the calls in one region of an answer.

    `value` is what the response template made of the region: a call, or an object whose `function`
    is a call or a list of calls. A call has a `name` and either `arguments` or `parameters`.

    Raises:
        Malformed: it is something else
    """
    call_id = value.get("id") if isinstance(value, Mapping) else None
    found = value["function"] if isinstance(value, Mapping) and "function" in value else value
    if not isinstance(found, list):
        return (_call(found, call_id),)
    if not found:
        raise Malformed
    return tuple(_call(call, None) for call in found)


def _call(call: Any, call_id: Any) -> ParsedCall:
    if not isinstance(call, Mapping):
        raise Malformed
    call = call.get("function", call)  # some models write OpenAI's form
    if not isinstance(call, Mapping):
        raise Malformed
    name = call.get("name")
    arguments = call.get("arguments", call.get("parameters"))
    if isinstance(arguments, str) and not arguments.strip():
        arguments = {}
    if not isinstance(name, str) or not name.strip() or not isinstance(arguments, Mapping):
        raise Malformed
    try:
        name.encode()
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, RecursionError) as e:
        raise Malformed from e
    try:
        text.encode()
    except UnicodeEncodeError:
        text = json.dumps(arguments, allow_nan=False)  # half of a surrogate pair stays escaped
    return ParsedCall(name.strip(), text, call_id if isinstance(call_id, str) else None)
