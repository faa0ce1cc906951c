"""How models write tool calls and reasoning: the table in response_formats.toml, and the choice
from it.

    --tool-call-parser, --reasoning-parser, chat template ─▶ Formats ─▶ one response template for
                                                                        each kind of request
"""

import tomllib
from collections.abc import Mapping, Sequence
from enum import Enum
from importlib.resources import files
from typing import Any

import msgspec

from baton.core.errors import ConfigError

AUTO, NONE = "auto", "none"
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")  # of response templates


class Thinking(Enum):
    """Whether an answer begins with reasoning."""

    NO = "no"  # the prompt has ended it, or the model has none
    OPENED = "opened"  # the prompt has opened it
    MAYBE = "maybe"  # the model decides


class Native(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The text around calls that a grammar makes the model write; response_formats.toml explains
    it."""

    before: str
    after: str
    begin: str = ""
    end: str = ""
    between: str | None = None
    key: str | None = None
    value_end: str = ""
    separator: str = ""
    quote: str = ""


class AnswerFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One way to write tool calls, or reasoning.

    Attributes:
        names: what the flag calls it
        when: texts that the chat template of such a model has
        field: the field of a response template
        content: settings of the response template's `content` field that go with it
        shown_close: what closed a region, shown if its body is malformed
        id_chars: length of the ids of calls; None = an id with a prefix
        native: how a grammar makes the model write calls; None = no grammar does
        pythonic: the body of a region is calls in Python's syntax
    """

    names: tuple[str, ...]
    field: Mapping[str, Any]
    when: tuple[str, ...] = ()
    content: Mapping[str, Any] = {}
    shown_close: str = ""
    id_chars: int | None = None
    native: Native | None = None
    pythonic: bool = False

    @property
    def self_closed(self) -> bool:
        """Whether the end of the answer may close a call, because its body shows by itself if it is
        whole: JSON, and Python."""
        return self.pythonic or self.field.get("content") == "json"

    @property
    def names_calls(self) -> bool:
        """Whether the mark that opens a call has its name, and the rest is its arguments."""
        function = self._function
        return isinstance(function, Mapping) and function.get("arguments") == "{content}"

    @property
    def arguments_are_text(self) -> bool:
        """Whether arguments are JSON as the model writes it, so that they can be passed on."""
        plain = self.field.get("content") == "json" and not self.field.get("content_args")
        return plain and (self.names_calls or self._function == "{content}")

    @property
    def _function(self) -> Any:
        transform = self.field.get("transform")
        return transform.get("function") if isinstance(transform, Mapping) else None


class Table(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All known formats; where several fit a model, the first one counts."""

    tool_calls: tuple[AnswerFormat, ...]
    reasoning: tuple[AnswerFormat, ...]


class Formats(msgspec.Struct, frozen=True):
    """How the served model writes tool calls and reasoning; None = not parsed.

    Attributes:
        anchor: where the answer begins in a prompt, for a response template from the model's files;
            empty = Baton says where it begins
    """

    tool_calls: AnswerFormat | None
    reasoning: AnswerFormat | None
    anchor: Mapping[str, Any] = {}

    def response_template(self, *, tools: bool) -> dict[str, Any] | None:
        """Return the response template of requests with or without tools, for transformers.

        None if nothing is parsed in answers to such requests.
        """
        calls = self.tool_calls if tools else None
        if calls is None and self.reasoning is None:
            return None
        fields: dict[str, Any] = {}
        content: dict[str, Any] = {"content": "text"}
        if self.reasoning is not None:
            fields["reasoning_content"] = {"content": "text", **self.reasoning.field}
            content |= self.reasoning.content
        if calls is not None:
            fields["tool_calls"] = {**_lenient(calls.field), "repeats": True}
            content |= calls.content
        anchor = self.anchor or {"start_anchor_pattern": r"\A"}
        return {**anchor, "fields": {**fields, "content": content}}


def read_table() -> Table:
    """Read response_formats.toml."""
    text = files("baton.gateway").joinpath("response_formats.toml").read_text(encoding="utf-8")
    return msgspec.convert(tomllib.loads(text), Table)


def choose_formats(
    *,
    tool_call_parser: str,
    reasoning_parser: str,
    chat_template: str,
    response_template: Mapping[str, Any] | None,
) -> Formats:
    """Choose the formats of a model.

    `auto` takes the response template of the model's own files, or else the first entry of the
    table that fits the chat template.

    Raises:
        ConfigError: a name is not known
    """
    table = read_table()
    own = own_formats(response_template) if response_template is not None else Formats(None, None)
    calls = reasoning = None
    if tool_call_parser != AUTO or own.tool_calls is None:
        calls = _choose(table.tool_calls, tool_call_parser, chat_template, "--tool-call-parser")
    if reasoning_parser != AUTO or own.reasoning is None:
        reasoning = _choose(table.reasoning, reasoning_parser, chat_template, "--reasoning-parser")
    if tool_call_parser == AUTO:
        calls = own.tool_calls or calls
    if reasoning_parser == AUTO:
        reasoning = own.reasoning or reasoning
    return Formats(calls, reasoning, own.anchor)


def own_formats(response_template: Mapping[str, Any]) -> Formats:
    """Divide the response template of a model's files into its parts."""
    fields = response_template.get("fields", {})
    content = fields.get("content", {})
    anchor = {k: v for k, v in response_template.items() if k.startswith("start_anchor")}

    def part(names: Sequence[str]) -> AnswerFormat | None:
        found = next((fields[n] for n in names if n in fields), None)
        if found is None:
            return None
        close = found.get("close", "")
        return AnswerFormat(
            names=(AUTO,),
            field=found,
            content=content,
            shown_close=close if isinstance(close, str) else close[0],
        )

    return Formats(part(("tool_calls",)), part(REASONING_FIELDS), anchor)


def _choose(
    formats: Sequence[AnswerFormat], name: str, chat_template: str, flag: str
) -> AnswerFormat | None:
    if name == NONE:
        return None
    fitting = [f for f in formats if all(text in chat_template for text in f.when)]
    if name == AUTO:
        return next(iter(fitting), None)
    named = [f for f in formats if name in f.names]
    if not named:
        known = sorted({AUTO, NONE}.union(*(f.names for f in formats)))
        raise ConfigError(f"{flag} {name}: there is no such parser; there is {', '.join(known)}")
    return next((f for f in named if f in fitting), named[0])


def _lenient(field: Mapping[str, Any]) -> dict[str, Any]:
    """Let a call that is not JSON come out as text, so that it can be shown, not as an error."""
    if field.get("content") != "json":
        return dict(field)
    return {**field, "content_args": {**field.get("content_args", {}), "allow_non_json": True}}
