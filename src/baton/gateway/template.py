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
    """A compiled template with the special tokens it may name (`bos_token`, ...)."""

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

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Render the prompt for the assistant's next message.

        Raises:
            TemplateRefused: the template rejects these messages
        """
        plain = [dict(m) for m in messages]
        try:
            return self._template.render(
                messages=plain,
                add_generation_prompt=True,
                tools=None,
                documents=None,
                **self._tokens,
            )
        except (TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as e:
            raise TemplateRefused(str(e)) from e
