"""A model's chat template: renders messages as the text of a prompt, as Hugging Face does."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from baton.core.errors import ConfigError

Message = Mapping[str, Any]
MARK = "END_OF_THE_MESSAGE_TO_CONTINUE "  # its space shows whether the template trims the content
RENDERING = (TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError)


class TemplateRefused(Exception):
    """The template rejects these messages; the text says why."""


class _Generation(Extension):
    """`{% generation %}` marks the assistant's text
    for training; here its body is just rendered."""

    tags = {"generation"}  # noqa: RUF012 the base class declares it as an instance variable

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        """Return the body of the block."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)


def _tojson(
    value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


class ChatTemplate:
    """A compiled template with the special tokens it may name (`bos_token`, ...).

    Attributes:
        text: its source
    """

    def __init__(
        self,
        source: str,
        tokens: Mapping[str, str],
        *,
        today: Callable[[], datetime] = datetime.now,
    ) -> None:
        env = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControls]
        )
        env.filters["tojson"] = _tojson
        env.globals["raise_exception"] = _raise_exception
        env.globals["strftime_now"] = lambda form: today().strftime(form)
        try:
            self._template = env.from_string(source)
        except TemplateError as e:
            raise ConfigError(f"the chat template does not compile: {e}") from e
        self._tokens = dict(tokens)
        self.text = source

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render a conversation.

        The last message is continued as in transformers: the end of its content is found by a mark
        behind it. Spaces there are dropped if the template drops them.

        Raises:
            TemplateRefused: the template rejects these messages
        """
        if continue_final_message:
            *before, last = messages
            marked = {**last, "content": last["content"] + MARK}
            return _cut(
                self.render([*before, marked], tools=tools, add_generation_prompt=False, **kwargs)
            )
        given = {
            "documents": None,
            **self._tokens,
            **kwargs,
            "messages": [dict(m) for m in messages],
            "tools": None if tools is None else [dict(t) for t in tools],
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(given)
        except RENDERING as e:
            raise TemplateRefused(str(e)) from e


def _cut(text: str) -> str:
    """Return a rendered text up to the mark."""
    end = text.rfind(MARK.strip())
    if end < 0:
        raise TemplateRefused("it leaves out the content of the message to continue")
    return text[:end] if text[end:].startswith(MARK) else text[:end].rstrip()
