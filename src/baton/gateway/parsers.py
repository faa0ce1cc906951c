"""The parsers of the served model, and what each chat request needs of them."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec
import structlog

from baton.core.ids import TokenId
from baton.gateway.prompts import ChatPrompt
from baton.gateway.response_formats import Formats, Native, Thinking, choose_formats
from baton.gateway.settings import HttpSettings
from baton.gateway.stream import AnswerReader
from baton.gateway.tokenizer import Tokenizer
from baton.gateway.tool_choice import ToolUse
from baton.gateway.tool_grammar import behind_reasoning, behind_text, tokens_of

if TYPE_CHECKING:
    from baton.gateway import response_reader

log = structlog.get_logger("baton.gateway")


class Reading(msgspec.Struct, frozen=True):
    """How the answers to one request are read.

    Attributes:
        make: returns a reader for one choice; None = all text is content
        kept: special tokens whose text the reader needs
    """

    make: Callable[[], AnswerReader] | None = None
    kept: frozenset[int] = frozenset()


PLAIN = Reading()


class AnswerFrame(msgspec.Struct, frozen=True):
    """What comes before an answer's content or calls.

    Attributes:
        added: the tokenizer's added tokens by their text
        reasoning: what is around reasoning; None = there is none
        thinking: whether there is reasoning
    """

    added: Mapping[str, TokenId]
    reasoning: Native | None = None
    thinking: Thinking = Thinking.NO

    @property
    def after(self) -> tuple[TokenId, ...]:
        """The tokens that end reasoning which the prompt has opened; empty if no tokens do."""
        if self.reasoning is None or self.thinking is not Thinking.OPENED:
            return ()
        return tokens_of(self.reasoning.after, self.added) or ()

    def around_calls(self, text: str) -> str:
        """Return the grammar of an answer that has calls behind its reasoning."""
        if self.reasoning is None or self.thinking is Thinking.NO or self.after:
            return text
        opened = self.thinking is Thinking.OPENED
        return behind_reasoning(text, self.reasoning, added=self.added, opened=opened)

    def around_content(self, text: str) -> str:
        """Return the grammar of an answer that has content behind its reasoning."""
        if self.reasoning is not None and self.reasoning.begin:
            text = behind_text(text, self.reasoning.begin, added=self.added)
        return self.around_calls(text)


class Parsers:
    """The parsers of one model.

    Attributes:
        formats: how the model writes tool calls and reasoning
    """

    def __init__(self, formats: Formats, tokenizer: Tokenizer) -> None:
        self.formats = formats
        self._readers: response_reader.Readers | None = None
        self._kept: dict[bool, frozenset[int]] = {}
        self._added = tokenizer.added_tokens()
        if formats.tool_calls is None and formats.reasoning is None:
            return
        # it imports transformers, which takes 1.6 s
        from baton.gateway.response_reader import Readers

        self._readers = readers = Readers(formats)
        special = tokenizer.special_tokens()
        for tools in (False, True):
            named = {i for text, i in special.items() if readers.names(text, tools=tools)}
            self._kept[tools] = frozenset(named.difference(tokenizer.eos_ids))

    def parses(self, use: ToolUse) -> bool:
        """Whether anything is parsed in the answers to such a request."""
        return self._readers is not None and self._readers.parses(tools=use.callable is not None)

    def reading(
        self, prompt: ChatPrompt, use: ToolUse, *, next_seed: Callable[[], int], streams: bool
    ) -> Reading:
        """Return how the answers to a request are read.

        Args:
            prompt: the prompt
            use: the tools that the answers may call
            next_seed: gives 64 random bits
            streams: the answers are streamed
        """
        readers = self._readers
        if readers is None or not self.parses(use):
            return PLAIN

        def make() -> AnswerReader:
            return readers.make(
                text=prompt.text,
                begun=prompt.begun,
                tools=use.callable,
                next_seed=next_seed,
                most_calls=use.most_calls,
                streams=streams,
            )

        return Reading(make, self._kept[use.callable is not None])

    def frame(self, prompt: ChatPrompt) -> AnswerFrame:
        """Return what comes before the content or the calls in answers to a prompt."""
        reasoning, readers = self.formats.reasoning, self._readers
        if reasoning is None or readers is None or reasoning.native is None:
            return AnswerFrame(self._added)
        return AnswerFrame(self._added, reasoning.native, readers.thinking(prompt.begun))


def load_parsers(tokenizer: Tokenizer, settings: HttpSettings) -> Parsers:
    """Return the parsers that the settings name, or that fit the model.

    Raises:
        ConfigError: there is no parser of a name
    """
    formats = choose_formats(
        tool_call_parser=settings.tool_call_parser,
        reasoning_parser=settings.reasoning_parser,
        chat_template=tokenizer.templates.text,
        response_template=tokenizer.response_template,
    )
    log.info(
        "response_parsers",
        tool_calls=None if formats.tool_calls is None else formats.tool_calls.names[0],
        reasoning=None if formats.reasoning is None else formats.reasoning.names[0],
    )
    return Parsers(formats, tokenizer)
