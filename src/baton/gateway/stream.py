"""The text of one choice of one request, as it grows.

Drawn tokens ─▶ detokenizer ─▶ stop finder ─▶ TextDelta (text to show, tokens, logprobs)
"""

from collections.abc import Callable, Sequence

import msgspec

from baton.core.door import Emit
from baton.core.errors import Bug
from baton.core.ids import TokenId
from baton.core.messages import Drawn, FinishReason
from baton.gateway.detokenize import Detokenizer
from baton.gateway.stops import StopFinder


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


class Ending(msgspec.Struct, frozen=True):
    """How a choice ended. `cause` is a stop string or
    stop token id; None for end token or length."""

    reason: FinishReason
    cause: str | int | None


class TextStream:
    """One choice. Feed it until it has an `ending`.

    Attributes:
        wrap: makes the event for a piece that is only text; None if the form has none, or not yet

    Args:
        index: index of the choice in the response
        choice: index of the choice among those of its prompt, from 0
        min_tokens: text up to this token is not searched for stop strings
        quiet: token ids that end the generation; they are counted and reported, but have no text
        scored: whether logprobs are wanted
    """

    __slots__ = (
        *(
            "_bare",
            "_detokenizer",
            "_last",
            "_min_tokens",
            "_offset",
            "_quiet",
            "_stop_token_ids",
            "_stops",
            "_wants_scores",
        ),
        *("cached", "choice", "count", "ending", "index", "prompt", "wrap"),
    )

    def __init__(
        self,
        *,
        index: int,
        choice: int,
        prompt: tuple[TokenId, ...],
        detokenizer: Detokenizer,
        stops: Sequence[str],
        min_tokens: int,
        stop_token_ids: frozenset[int],
        quiet: frozenset[int],
        scored: bool,
    ) -> None:
        self.index = index
        self.choice = choice
        self.prompt = prompt
        self.count = 0  # generated tokens
        self.cached = 0  # prompt tokens whose KV cache was reused
        self.ending: Ending | None = None
        self.wrap: Callable[[str], bytes] | None = None
        self._detokenizer = detokenizer
        self._stops = StopFinder(stops)
        self._min_tokens = min_tokens
        self._stop_token_ids = stop_token_ids
        self._quiet = quiet
        self._wants_scores = scored
        self._bare = not scored and not stops
        self._offset = 0  # characters returned by the detokenizer
        self._last: int | None = None

    def feed(self, emit: Emit) -> TextDelta:
        """Take the next tokens; a stop string sets `ending`, and tokens after it are dropped."""
        if emit.start != self.count:
            raise Bug(
                f"request {emit.request}: tokens from index {emit.start} were heard "
                f"where {self.count} was due"
            )
        if not self.count:
            self.cached = emit.cached
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
        return TextDelta("".join(shown), tuple(tokens), tuple(scored))

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
        return TextDelta(tail, (), ())
