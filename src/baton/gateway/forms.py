"""The bytes of answers: OpenAI's objects, with vLLM's additions (`token_ids`, `prompt_token_ids`,
`stop_reason`).

A form belongs to one HTTP request. Nearly all chunks are plain text; such a chunk is a
concatenation of a head and a tail, which are encoded once, and the text.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from baton.gateway.scores import (
    ChatLogprobs,
    CompletionLogprobs,
    chat_logprobs,
    completion_logprobs,
)
from baton.gateway.stream import Ending, TextDelta, TextStream
from baton.gateway.tokenizer import Tokenizer

DONE = b"data: [DONE]\n\n"
HOLE = "\0"  # stands for the text in an encoded chunk while that is cut into head and tail
NO_PIECE = TextDelta("", (), ())

Tokens = tuple[int, ...] | UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """Details of the prompt tokens."""

    cached_tokens: int  # prompt tokens whose KV cache was reused


class Usage(msgspec.Struct, frozen=True):
    """Token counts of all choices together."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class Heading(msgspec.Struct, frozen=True):
    """Fields that all objects of an answer share, and what the client asked for.

    `created` is in Unix seconds.
    """

    id: str
    created: int
    model: str
    usage: bool
    running_usage: bool
    token_ids: bool
    scored: bool


class Form(Protocol):
    """How one endpoint writes its answers. Methods return complete events or a JSON document."""

    def opening(self, stream: TextStream) -> bytes:
        """Return the event before a choice's first piece; may be empty.

        Sets the stream's `wrap` if its pieces are plain text.
        """
        ...

    def delta(self, stream: TextStream, piece: TextDelta) -> bytes:
        """The event of a piece; empty if there is nothing to show."""
        ...

    def ending(self, stream: TextStream, piece: TextDelta, ending: Ending) -> bytes:
        """A choice's last event."""
        ...

    def closing(self, streams: Sequence[TextStream]) -> bytes:
        """Return what follows when all choices have ended."""
        ...

    def whole(self, streams: Sequence[TextStream], pieces: Sequence[Sequence[TextDelta]]) -> bytes:
        """The undivided answer; pieces in the order of the streams."""
        ...


def usage_of(streams: Sequence[TextStream]) -> Usage:
    """Count tokens over all choices; a prompt counts once, however many choices it has.

    Of a prompt, the tokens cached for every one of its choices count as cached: tokens that one
    choice computed and the others reused do not.
    """
    firsts = [i for i, s in enumerate(streams) if s.choice == 0]
    each = [streams[a:z] for a, z in zip(firsts, [*firsts[1:], len(streams)], strict=True)]
    cached = sum(min(s.cached for s in choices) for choices in each)
    return _usage(
        sum(len(choices[0].prompt) for choices in each), sum(s.count for s in streams), cached
    )


def _usage(prompt: int, said: int, cached: int) -> Usage:
    return Usage(prompt, said, prompt + said, PromptTokensDetails(cached))


def _usage_so_far(heading: Heading, stream: TextStream) -> Usage | UnsetType | None:
    """Return the usage field of a chunk of one choice."""
    if not heading.running_usage:
        return None if heading.usage else UNSET
    return _usage(len(stream.prompt), stream.count, stream.cached)


def event(data: msgspec.Struct) -> bytes:
    """A server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def _merge(pieces: Sequence[TextDelta]) -> TextDelta:
    return TextDelta(
        "".join(p.text for p in pieces),
        tuple(t for p in pieces for t in p.tokens),
        tuple(s for p in pieces for s in p.scored),
    )


_json = msgspec.json.Encoder().encode


def _around(sample: msgspec.Struct) -> Callable[[str], bytes]:
    """Return a function that makes events like `sample`, with a text in the place of HOLE."""
    head, _, tail = event(sample).rpartition(_json(HOLE))
    return lambda text: head + _json(text) + tail


# ---- chat ---------------------------------------------------------------------------------------


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """A choice in a chunk."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Tokens = UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    """One event of a streamed chat."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[ChatChunkChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: Tokens = UNSET


class ChatMessageOut(msgspec.Struct, frozen=True):
    """The assistant's message."""

    role: str
    content: str


class ChatChoice(msgspec.Struct, frozen=True):
    """A choice of an undivided answer."""

    index: int
    message: ChatMessageOut
    logprobs: ChatLogprobs | None
    finish_reason: str
    stop_reason: str | int | None
    token_ids: Tokens = UNSET


class ChatAnswer(msgspec.Struct, frozen=True):
    """An undivided answer."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[ChatChoice, ...]
    usage: Usage
    prompt_token_ids: Tokens = UNSET


class ChatForm:
    """/v1/chat/completions."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer) -> None:
        self._h, self._tokenizer = heading, tokenizer
        self._rich = heading.scored or heading.token_ids or heading.running_usage

    def _chunk(
        self,
        *choices: ChatChunkChoice,
        usage: Usage | UnsetType | None = UNSET,
        prompt: Tokens = UNSET,
    ) -> ChatChunk:
        h = self._h
        return ChatChunk(h.id, "chat.completion.chunk", h.created, h.model, choices, usage, prompt)

    def _logprobs(self, piece: TextDelta) -> ChatLogprobs | None:
        return chat_logprobs(piece.scored, self._tokenizer) if self._h.scored else None

    def _tokens(self, piece: TextDelta) -> Tokens:
        return piece.tokens if self._h.token_ids else UNSET

    def opening(self, stream: TextStream) -> bytes:
        """The role, and the prompt's ids if wanted."""
        role = ChatChunkChoice(stream.index, ChatDelta("assistant", ""))
        usage = _usage_so_far(self._h, stream)
        if not self._rich:
            stream.wrap = _around(
                self._chunk(ChatChunkChoice(stream.index, ChatDelta(content=HOLE)), usage=usage)
            )
        return event(
            self._chunk(role, usage=usage, prompt=stream.prompt if self._h.token_ids else UNSET)
        )

    def delta(self, stream: TextStream, piece: TextDelta) -> bytes:
        """A piece of content."""
        if stream.wrap is not None:
            return stream.wrap(piece.text) if piece.text else b""
        choice = ChatChunkChoice(
            stream.index,
            ChatDelta(content=piece.text),
            self._logprobs(piece),
            token_ids=self._tokens(piece),
        )
        return event(self._chunk(choice, usage=_usage_so_far(self._h, stream)))

    def ending(self, stream: TextStream, piece: TextDelta, ending: Ending) -> bytes:
        """The rest of the content with the finish reason."""
        content = ChatDelta(content=piece.text) if piece.text else ChatDelta()
        scored = self._logprobs(piece) if piece.scored else None
        tokens = self._tokens(piece)
        choice = ChatChunkChoice(
            stream.index, content, scored, ending.reason.value, ending.cause, tokens
        )
        return event(self._chunk(choice, usage=_usage_so_far(self._h, stream)))

    def closing(self, streams: Sequence[TextStream]) -> bytes:
        """Usage if wanted, then the end mark."""
        if not self._h.usage:
            return DONE
        return event(self._chunk(usage=usage_of(streams))) + DONE

    def whole(self, streams: Sequence[TextStream], pieces: Sequence[Sequence[TextDelta]]) -> bytes:
        """The undivided answer."""
        h = self._h
        choices = tuple(self._choice(s, _merge(p)) for s, p in zip(streams, pieces, strict=True))
        prompt = streams[0].prompt if h.token_ids else UNSET
        return msgspec.json.encode(
            ChatAnswer(
                h.id, "chat.completion", h.created, h.model, choices, usage_of(streams), prompt
            )
        )

    def _choice(self, stream: TextStream, piece: TextDelta) -> ChatChoice:
        assert stream.ending is not None
        message, end = ChatMessageOut("assistant", piece.text), stream.ending
        return ChatChoice(
            stream.index,
            message,
            self._logprobs(piece),
            end.reason.value,
            end.cause,
            self._tokens(piece),
        )


# ---- completions --------------------------------------------------------------------------------


class CompletionChoice(msgspec.Struct, frozen=True):
    """A choice, in a chunk as in an undivided answer."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | UnsetType | None = UNSET
    token_ids: Tokens = UNSET
    prompt_token_ids: Tokens = UNSET


class CompletionAnswer(msgspec.Struct, frozen=True):
    """An event of a streamed answer, or an undivided one. `prompt_token_ids` is here too if there
    is one prompt."""

    id: str
    object: str
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: Tokens = UNSET


class CompletionForm:
    """/v1/completions."""

    def __init__(self, heading: Heading, tokenizer: Tokenizer) -> None:
        self._h, self._tokenizer = heading, tokenizer
        self._rich = heading.scored or heading.token_ids or heading.running_usage

    def _answer(
        self, *choices: CompletionChoice, usage: Usage | UnsetType | None, prompt: Tokens = UNSET
    ) -> CompletionAnswer:
        h = self._h
        return CompletionAnswer(h.id, "text_completion", h.created, h.model, choices, usage, prompt)

    def _choice(
        self, stream: TextStream, piece: TextDelta, ending: Ending | None, *, prompt: bool = False
    ) -> CompletionChoice:
        h = self._h
        return CompletionChoice(
            stream.index,
            piece.text,
            completion_logprobs(piece.scored, self._tokenizer)
            if h.scored and (piece.scored or ending is None)
            else None,
            None if ending is None else ending.reason.value,
            UNSET if ending is None else ending.cause,
            piece.tokens if h.token_ids else UNSET,
            stream.prompt if h.token_ids and prompt else UNSET,
        )

    def opening(self, stream: TextStream) -> bytes:
        """The prompt's ids if wanted."""
        if not self._rich:
            stream.wrap = _around(
                self._answer(
                    CompletionChoice(stream.index, HOLE), usage=_usage_so_far(self._h, stream)
                )
            )
        if not self._h.token_ids:
            return b""
        choice = CompletionChoice(stream.index, "", token_ids=(), prompt_token_ids=stream.prompt)
        return event(
            self._answer(choice, usage=_usage_so_far(self._h, stream), prompt=stream.prompt)
        )

    def delta(self, stream: TextStream, piece: TextDelta) -> bytes:
        """A piece of text."""
        if stream.wrap is not None:
            return stream.wrap(piece.text) if piece.text else b""
        return event(
            self._answer(self._choice(stream, piece, None), usage=_usage_so_far(self._h, stream))
        )

    def ending(self, stream: TextStream, piece: TextDelta, ending: Ending) -> bytes:
        """The rest of the text with the finish reason."""
        return event(
            self._answer(self._choice(stream, piece, ending), usage=_usage_so_far(self._h, stream))
        )

    def closing(self, streams: Sequence[TextStream]) -> bytes:
        """Usage if wanted, then the end mark."""
        return event(self._answer(usage=usage_of(streams))) + DONE if self._h.usage else DONE

    def whole(self, streams: Sequence[TextStream], pieces: Sequence[Sequence[TextDelta]]) -> bytes:
        """The undivided answer."""
        choices = [
            self._choice(s, _merge(p), s.ending, prompt=True)
            for s, p in zip(streams, pieces, strict=True)
        ]
        only = streams[0].prompt if self._h.token_ids and len(streams) == 1 else UNSET
        return msgspec.json.encode(self._answer(*choices, usage=usage_of(streams), prompt=only))
