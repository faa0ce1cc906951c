"""The text of one choice of one request, as it grows.

Drawn tokens ─▶ detokenizer ─▶ stop finder ─▶ reader, if answers are parsed ─▶ TextDelta
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from baton.core.door import Emit
from baton.core.errors import Bug
from baton.core.ids import TokenId
from baton.core.messages import Drawn, FinishReason
from baton.core.prompt_scores import PromptScores
from baton.gateway.detokenize import Detokenizer
from baton.gateway.stops import StopFinder
from baton.gateway.tool_calls import Parsed, ToolCall


class Scored(msgspec.Struct, frozen=True):
    """A token with its logprobs; `offset` is the start
    of its text in the choice's, in characters."""

    drawn: Drawn
    offset: int


class TextDelta(msgspec.Struct, frozen=True):
    """What one step adds to a choice. Held-back text comes later than its tokens."""

    text: str
    tokens: tuple[TokenId, ...]
    scored: tuple[Scored, ...]
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    # text, reasoning and calls in the order in which they were written; empty if nothing is parsed
    parts: tuple[Parsed, ...] = ()


class Ending(msgspec.Struct, frozen=True):
    """How a choice ended. `cause` is a stop string or
    stop token id; None for end token or length."""

    reason: FinishReason
    cause: str | int | None


class AnswerReader(Protocol):
    """Divides the text of one choice (response_reader.py)."""

    calls: int  # found so far

    def read(self, text: str) -> Parsed:
        """Take the next piece of text."""
        ...

    def finish(self) -> Parsed:
        """Return what was held back, at the end of the text."""
        ...


class TextStream:
    """One choice. Feed it until it has an `ending`.

    Attributes:
        wrap: makes the event for a piece that is only text; None if the form has none, or not yet
        scores: logprobs of the prompt, from the first token on; None if they are not wanted

    Args:
        index: index of the choice in the response
        choice: index of the choice among those of its prompt, from 0
        min_tokens: text up to this token is not searched for stop strings
        include_stop: the text includes the stop string that ends it
        quiet: token ids that end the generation; they are counted and reported, but have no text
        scored: whether logprobs are wanted
        prompt_only: what is generated is not shown, reported or counted
        begins: characters that the choice's text has before this
        reader: divides the text; None = all of it is content
    """

    __slots__ = (
        *(
            "_bare",
            "_detokenizer",
            "_last",
            "_min_tokens",
            "_offset",
            "_prompt_only",
            "_quiet",
            "_stop_token_ids",
            "_stops",
            "_wants_scores",
        ),
        *("cached", "choice", "count", "ending", "index", "prompt", "reader", "scores", "wrap"),
    )

    def __init__(
        self,
        *,
        index: int,
        choice: int,
        prompt: tuple[TokenId, ...],
        detokenizer: Detokenizer,
        stops: Sequence[str],
        include_stop: bool,
        min_tokens: int,
        stop_token_ids: frozenset[int],
        quiet: frozenset[int],
        scored: bool,
        prompt_only: bool = False,
        begins: int = 0,
        reader: AnswerReader | None = None,
    ) -> None:
        self.index = index
        self.choice = choice
        self.prompt = prompt
        self.count = 0  # generated tokens
        self.cached = 0  # prompt tokens whose KV cache was reused
        self.ending: Ending | None = None
        self.wrap: Callable[[str], bytes] | None = None
        self.scores: PromptScores | None = None
        self.reader = reader
        self._detokenizer = detokenizer
        self._stops = StopFinder(stops, include=include_stop)
        self._min_tokens = min_tokens
        self._stop_token_ids = stop_token_ids
        self._quiet = quiet
        self._wants_scores = scored
        self._prompt_only = prompt_only
        self._bare = not scored and not stops and not prompt_only
        self._offset = begins  # characters before the next one of the detokenizer
        self._last: int | None = None

    def feed(self, emit: Emit) -> TextDelta:
        """Take the next tokens; a stop string sets `ending`, and tokens after it are dropped."""
        if emit.start != self.count:
            raise Bug(
                f"request {emit.request}: tokens from index {emit.start} were heard "
                f"where {self.count} was due"
            )
        if not self.count:
            self.cached, self.scores = emit.cached, emit.scores
        if self._prompt_only:
            return TextDelta("", (), ())
        shown: list[str] = []
        tokens: list[TokenId] = []
        scored: list[Scored] = []
        for drawn in emit.drawn:
            token = drawn.token
            tokens.append(token)
            if self._wants_scores:
                scored.append(Scored(drawn, self._offset))
            if token not in self._quiet:
                text = self._detokenizer.push(token)
                if text:
                    self._offset += len(text)
                    if self.count + len(tokens) <= self._min_tokens:
                        shown.append(text)
                        continue
                    shown.append(self._stops.push(text))
                    if self._stops.found is not None:
                        self.ending = Ending(FinishReason.STOP, self._stops.found)
                        break
        self.count += len(tokens)
        self._last = tokens[-1] if tokens else self._last
        return self._read("".join(shown), tuple(tokens), tuple(scored))

    def fast_text(self, emit: Emit) -> str | None:
        """The fast path of `feed`, for a single token of which only the text is wanted.

        Returns None, and changes nothing, if this is not such a token.
        """
        drawn = emit.drawn
        if not self._bare or len(drawn) != 1 or emit.start != self.count:
            return None
        if not self.count:
            self.cached = emit.cached
        token = self._last = drawn[0].token
        self.count += 1
        return "" if token in self._quiet else self._detokenizer.push(token)

    def finish(self, reason: FinishReason) -> TextDelta:
        """End the choice; returns the text that was held back, which may complete a stop string."""
        if self._prompt_only:
            self.ending = Ending(FinishReason.LENGTH, None)
            return TextDelta("", (), ())
        tail = self._stops.push(self._detokenizer.flush())
        if self._stops.found is not None:
            self.ending = Ending(FinishReason.STOP, self._stops.found)
        else:
            tail += self._stops.flush()
            cause = (
                self._last
                if reason is FinishReason.STOP and self._last in self._stop_token_ids
                else None
            )
            self.ending = Ending(reason, cause)
        return self._read(tail, (), ())

    def _read(
        self, text: str, tokens: tuple[TokenId, ...], scored: tuple[Scored, ...]
    ) -> TextDelta:
        reader = self.reader
        if reader is None:
            return TextDelta(text, tokens, scored)
        parsed, rest = reader.read(text), Parsed()
        if self.ending is not None:
            rest = reader.finish()
        return TextDelta(
            parsed.content + rest.content,
            tokens,
            scored,
            parsed.reasoning + rest.reasoning,
            parsed.calls + rest.calls,
            parsed.in_order + rest.in_order,
        )
