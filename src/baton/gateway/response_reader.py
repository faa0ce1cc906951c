"""Divides an answer into reasoning, content and tool calls while it grows.

    text ─▶ ResponseParser (transformers, by a response template) ─▶ events ─▶ Parsed

A malformed call is reported as content. So a call is reported when its region closes; or, if
arguments are streamed, when they begin: then it stays a call, whatever the model writes.
This module alone imports transformers, which takes 1.6 s and 56 MiB; so it is imported only
by gateways whose model has a parser.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs
from transformers.utils.chat_parsing import ResponseParser
from transformers.utils.chat_parsing.response_templates import (
    ResponseTemplate,
    load_response_template,
)

from baton.core.errors import ConfigError
from baton.gateway.json_types import json_types
from baton.gateway.pythonic_calls import pythonic_calls
from baton.gateway.response_formats import AnswerFormat, Formats, Thinking
from baton.gateway.tool_arguments import ArgumentScanner, Found
from baton.gateway.tool_calls import (
    Malformed,
    Parsed,
    ParsedCall,
    ToolCall,
    joined,
    parsed_calls,
)

NOTHING = Parsed()
# what the parser raises for text that its template does not foresee
UNFORESEEN = (ValueError, KeyError, TypeError, RecursionError)


class ResponseReader:
    """Reads one choice.

    Attributes:
        calls: number of calls so far

    Args:
        parser: of transformers, fed with what the prompt has of the answer
        places: follows the parser through the text
        tool_format: of the calls; None = none are looked for
        next_id: returns a new id of a call
        most_calls: later calls are dropped
        streams: arguments are returned as they come, if the format allows it
    """

    def __init__(
        self,
        parser: ResponseParser,
        places: "_Places",
        tool_format: AnswerFormat | None,
        *,
        next_id: Callable[[], str],
        most_calls: int | None,
        streams: bool,
    ) -> None:
        self._parser: ResponseParser | None = parser
        self._places = places
        self._format = tool_format
        self._next_id = next_id
        self._most_calls = most_calls
        self._streams = streams
        self._tags = None if tool_format is None else _tags(tool_format)
        self._region = _Region(None, None)  # of calls, the open one or the last
        # Spaces before any other content, or after a call: they belong to the format, unless more
        # content follows.
        self._spaces: str | None = ""
        self._divided = False
        self.calls = 0

    def read(self, text: str) -> Parsed:
        """Take the next piece of the answer."""
        if not text:
            return Parsed()
        if self._parser is None:
            return Parsed(text)
        self._places.fed(text)
        try:
            return self._take(self._parser.feed(text), ended=False)
        except UNFORESEEN:
            self._parser = None
            return Parsed(self._release() + self._region.body + text)

    def finish(self) -> Parsed:
        """Return what was held back, at the end of the answer."""
        if self._parser is None:
            return Parsed()
        try:
            parsed = self._take(self._parser.finalize()[1], ended=True)
        except UNFORESEEN:
            return Parsed(self._release() + self._region.body)
        # Without anything else, spaces are the content.
        return parsed if self._divided else Parsed(parsed.content + self._release())

    def _take(self, events: Sequence[Mapping[str, Any]], *, ended: bool) -> Parsed:
        parts: list[Parsed] = []
        for event in events:
            opened = self._places.passed(event)
            match event["type"], event["field"]:
                case "region_open", "tool_calls":
                    self._region = self._opened(opened)
                case "region_chunk", "content":
                    parts.append(Parsed(self._content(event["text"])))
                case "region_chunk", "reasoning_content":
                    self._divided = True
                    parts.append(Parsed(reasoning=event["text"]))
                case "region_chunk", "tool_calls":
                    parts.append(Parsed(calls=self._grown(event["text"])))
                case "region_close", "tool_calls":
                    parts.append(self._closed(event["value"], ended=ended))
                    self._region = _Region(None, None)
                case _:
                    pass
        return joined([p for p in parts if p != NOTHING])

    def _opened(self, opened: re.Match[str] | None) -> "_Region":
        form = self._format
        assert form is not None
        named = opened.groupdict() if opened is not None else {}
        if not form.arguments_are_text or (form.names_calls and not named.get("name")):
            return _Region(None, None)
        name = named["name"].strip() if form.names_calls else None
        return _Region(ArgumentScanner(name), named.get("id"))

    def _grown(self, text: str) -> tuple[ToolCall, ...]:
        """Take the next text of a region of calls; returns what it adds to calls."""
        region = self._region
        region.body += text
        found = list(region.scanner.feed(text)) if region.scanner is not None else []
        if not self._streams:
            region.keep(found)
            return ()
        pieces = []
        for piece in found:
            if piece.begins:
                region.begun += 1
                region.growing = self._numbered(
                    ParsedCall(piece.name, "", region.id), begins=True, ends=False
                )
            if region.growing is None:  # one too many
                continue
            pieces.append(
                structs.replace(
                    region.growing, arguments=piece.text, begins=piece.begins, ends=piece.ends
                )
            )
            if piece.ends:
                region.growing = None
        return tuple(pieces)

    def _closed(self, value: Any, *, ended: bool) -> Parsed:
        """Return what is still to say of a region of calls."""
        region = self._region
        try:
            calls = self._checked(value, ended=ended)
        except Malformed:
            if not region.begun:
                return Parsed(self._content(self._raw(value, ended=ended)))
            calls = ()  # what was said of them stands
        cut = None if ended else region.growing
        rest = () if cut is None else (structs.replace(cut, begins=False, ends=True),)
        later = [self._numbered(call) for call in calls[region.begun :]]
        return Parsed(calls=(*rest, *(call for call in later if call is not None)))

    def _checked(self, value: Any, *, ended: bool) -> tuple[ParsedCall, ...]:
        """Return the calls of a region that has closed. Raises Malformed."""
        region = self._region
        assert self._format is not None
        if ended and not (self._format.self_closed and region.body.strip()):
            raise Malformed  # cut off: arguments may be missing
        if self._tags is not None and self._tags.sub("", region.body).strip():
            raise Malformed  # something beside the tags of arguments
        if self._format.pythonic:
            value = pythonic_calls(region.body)
        calls = parsed_calls(value)
        if len(region.written) != len(calls) or not all(w.ends for w in region.written):
            return calls
        return tuple(
            structs.replace(call, arguments=written.text)
            for call, written in zip(calls, region.written, strict=True)
        )

    def _numbered(
        self, call: ParsedCall, *, begins: bool = True, ends: bool = True
    ) -> ToolCall | None:
        """Return a new call of the answer; None if it is one too many."""
        if self._most_calls is not None and self.calls >= self._most_calls:
            return None
        found = ToolCall(
            self.calls, call.id or self._next_id(), call.name, call.arguments, begins, ends
        )
        self.calls += 1
        self._divided, self._spaces = True, ""
        return found

    def _raw(self, value: Any, *, ended: bool) -> str:
        """Return the text of a region as the model wrote it."""
        assert self._format is not None
        opened = value.get("open") if isinstance(value, Mapping) else None
        before = opened if isinstance(opened, str) else ""
        return before + self._region.body + ("" if ended else self._format.shown_close)

    def _content(self, text: str) -> str:
        if self._spaces is None:
            return text
        self._spaces += text
        return "" if self._spaces.isspace() else self._release()

    def _release(self) -> str:
        spaces, self._spaces = self._spaces or "", None
        return spaces


class _Region:
    """A region of calls while it grows.

    Attributes:
        scanner: finds the arguments in it; None = they are looked at when it closes
        id: of its call, if the model wrote one
        body: its text so far
        written: the arguments of each call so far, if they are not streamed
        begun: number of calls whose arguments have begun, if they are streamed
        growing: the streamed call whose arguments are not complete
    """

    def __init__(self, scanner: ArgumentScanner | None, call_id: str | None) -> None:
        self.scanner, self.id = scanner, call_id
        self.body = ""
        self.written: list[Found] = []
        self.begun = 0
        self.growing: ToolCall | None = None

    def keep(self, found: Sequence[Found]) -> None:
        """Add pieces to the arguments that are not streamed."""
        for piece in found:
            if not piece.begins:
                first = self.written.pop()
                piece = structs.replace(piece, text=first.text + piece.text)
            self.written.append(piece)


class _Places:
    """Follows a parser through the text: its events do not say what has opened a region."""

    def __init__(self, template: ResponseTemplate) -> None:
        self._fields = template.fields
        self._text = ""  # fed to the parser, and not passed

    def fed(self, text: str) -> None:
        """Take the text that the parser is fed."""
        self._text += text

    def passed(self, event: Mapping[str, Any]) -> re.Match[str] | None:
        """Pass the text of an event; returns the mark that opened a region."""
        field, mark = self._fields[event["field"]], None
        match event["type"]:
            case "region_open" if field.open_re is not None:
                mark = field.open_re.search(self._text)
            case "region_chunk":
                at = self._text.find(event["text"])
                self._text = self._text[max(at, 0) + len(event["text"]) :]
            case "region_close" if field.close_re is not None and field.open_re is not None:
                mark = field.close_re.match(self._text)
        if mark is not None:
            self._text = self._text[mark.end() :]
        return mark


class Readers:
    """Makes readers for the answers of one model.

    Raises:
        ConfigError: the response template of the model's files is invalid
    """

    def __init__(self, formats: Formats) -> None:
        self._formats = formats
        self._templates = {tools: _load(formats, tools=tools) for tools in (False, True)}
        self._texts = {tools: _texts(formats, tools=tools) for tools in (False, True)}

    def parses(self, *, tools: bool) -> bool:
        """Whether anything is parsed in answers to requests with or without tools."""
        return self._templates[tools] is not None

    def names(self, token: str, *, tools: bool) -> bool:
        """Whether the format names this special token, so that its text must be kept."""
        return token in self._texts[tools]

    def begins(self, begun: str, *, tools: bool) -> str:
        """Return the part of the prompt that the parser must know: reasoning that it opens."""
        template = self._templates[tools]
        reasoning = template and template.fields.get("reasoning_content")
        if not reasoning or reasoning.open_re is None:
            return ""
        opened = [m.start() for m in reasoning.open_re.finditer(begun)]
        return begun[opened[-1] :] if opened else ""

    def thinking(self, begun: str) -> Thinking:
        """Return whether the answer to such a prompt begins with reasoning."""
        template = self._templates[False]
        reasoning = template and template.fields.get("reasoning_content")
        if not reasoning or reasoning.close_re is None:
            return Thinking.NO
        opened = self.begins(begun, tools=False)
        if reasoning.close_re.search(opened or begun):
            return Thinking.NO
        return Thinking.OPENED if opened else Thinking.MAYBE

    def make(
        self,
        *,
        text: str,
        begun: str,
        tools: Sequence[Mapping[str, Any]] | None,
        next_seed: Callable[[], int],
        most_calls: int | None,
        streams: bool,
    ) -> ResponseReader:
        """Return a reader of one choice.

        Args:
            text: the prompt
            begun: its part that belongs to the answer
            tools: those that the answer may call; None = none
            next_seed: returns 64 random bits, for ids of calls
            most_calls: later calls are dropped
            streams: arguments of calls are returned as they come
        """
        parsed = tools is not None
        template = self._templates[parsed]
        assert template is not None
        prefix = text if self._formats.anchor else self.begins(begun, tools=parsed)
        form = self._formats.tool_calls if parsed else None
        parser = ResponseParser(
            template, prefix=prefix, tools=[_typed(tool) for tool in tools or ()]
        )
        chars = None if form is None else form.id_chars

        def next_id() -> str:
            drawn = f"{next_seed():016x}{next_seed():016x}"
            return f"call_{drawn[-24:]}" if chars is None else drawn[-chars:]

        return ResponseReader(
            parser,
            _Places(template),
            form,
            next_id=next_id,
            most_calls=most_calls,
            streams=streams,
        )


def _typed(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool with the types of its arguments said outright, as the parser follows no
    `$ref`."""
    function = tool["function"]
    root = function.get("parameters") or {}
    properties = root.get("properties")
    found = properties.items() if isinstance(properties, Mapping) else ()
    types = {name: {"type": list(json_types(schema, root))} for name, schema in found}
    return {"function": {"name": function["name"], "parameters": {"properties": types}}}


def _load(formats: Formats, *, tools: bool) -> ResponseTemplate | None:
    spec = formats.response_template(tools=tools)
    if spec is None:
        return None
    try:
        return load_response_template(spec)
    except (ValueError, TypeError) as e:
        raise ConfigError(
            f"the response_template of the model's tokenizer_config.json is invalid: {e}; "
            "--tool-call-parser and --reasoning-parser take another one"
        ) from e


def _texts(formats: Formats, *, tools: bool) -> str:
    """Return the texts that a response template looks for, without the escapes of patterns."""

    def strings(value: Any) -> list[str]:
        if isinstance(value, str):
            return [value]
        if isinstance(value, Mapping):
            return [s for v in value.values() for s in strings(v)]
        return [s for v in value for s in strings(v)] if isinstance(value, (list, tuple)) else []

    return "\n".join(strings(formats.response_template(tools=tools))).replace("\\", "")


def _tags(form: AnswerFormat) -> re.Pattern[str] | None:
    pattern = form.field.get("content_args", {}).get("tag_pattern")
    try:
        return None if pattern is None else re.compile(pattern, re.DOTALL)
    except re.error:  # transformers' patterns may be richer
        return None
