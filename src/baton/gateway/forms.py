"""The bytes of answers: OpenAI's objects, with vLLM's additions (`token_ids`, `prompt_token_ids`,
`prompt_logprobs`, `stop_reason`).

A form belongs to one HTTP request. Nearly all chunks are plain text; such a chunk is a
concatenation of a head and a tail, which are encoded once, and the text.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType

from baton.core.messages import FinishReason
from baton.gateway.echo import Echo
from baton.gateway.faults import HttpFault
from baton.gateway.scores import (
    ChatLogprobs,
    CompletionLogprobs,
    PromptLogprobs,
    Speller,
    chat_logprobs,
    completion_logprobs,
    echoed,
    prompt_logprobs,
)
from baton.gateway.stream import Ending, TextDelta, TextStream
from baton.gateway.tool_calls import ToolCall

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


class ForDecode(msgspec.Struct, frozen=True):
    """What the answer of a prefill leg tells the decode leg (prefill_leg.py)."""

    do_remote_prefill: bool = True
    do_remote_decode: bool = False


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
    logprobs: int | None
    prompt_logprobs: int | None
    temperature: float
    top_p: float
    reasoning: bool = True  # whether parsed reasoning is shown
    named_tool: bool = False

    @property
    def scored(self) -> bool:
        """Whether generated tokens are shown with their logprobs."""
        return self.logprobs is not None


class Form(Protocol):
    """How one endpoint writes its answers. Methods return complete events or a JSON document."""

    def opening(self, stream: TextStream) -> bytes:
        """Return the event before a choice's first piece; may be empty.

        This or a later event sets the stream's `wrap` if its pieces are plain text.
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

    def failure(self, fault: HttpFault) -> bytes:
        """Return the event of an error in the middle of a stream; nothing follows it."""
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
    return counted(
        sum(len(choices[0].prompt) for choices in each), sum(s.count for s in streams), cached
    )


def _prompt_logprobs(
    heading: Heading, stream: TextStream, speller: Speller
) -> PromptLogprobs | UnsetType:
    """Return what a choice's answer says of its prompt."""
    if heading.prompt_logprobs is None:
        return UNSET
    assert stream.scores is not None, "the core sends them with the first token"
    return prompt_logprobs(stream.prompt, stream.scores, heading.prompt_logprobs, speller)


def counted(prompt: int, said: int, cached: int) -> Usage:
    """Return the usage of so many tokens of prompts and answers."""
    return Usage(prompt, said, prompt + said, PromptTokensDetails(cached))


def _usage_so_far(heading: Heading, stream: TextStream) -> Usage | UnsetType | None:
    """Return the usage field of a chunk of one choice."""
    if not heading.running_usage:
        return None if heading.usage else UNSET
    return counted(len(stream.prompt), stream.count, stream.cached)


def event(data: msgspec.Struct) -> bytes:
    """A server-sent event."""
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def _merge(pieces: Sequence[TextDelta]) -> TextDelta:
    return TextDelta(
        "".join(p.text for p in pieces),
        tuple(t for p in pieces for t in p.tokens),
        tuple(s for p in pieces for s in p.scored),
        "".join(p.reasoning for p in pieces),
        tuple(c for p in pieces for c in p.calls),
    )


_json = msgspec.json.Encoder().encode


def _around(sample: msgspec.Struct) -> Callable[[str], bytes]:
    """Return a function that makes events like `sample`, with a text in the place of HOLE."""
    head, _, tail = event(sample).rpartition(_json(HOLE))
    return lambda text: head + _json(text) + tail


# ---- chat ---------------------------------------------------------------------------------------


class FunctionDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the function of a call."""

    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a call; the first one has its id, type and name."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to the message. `reasoning` and `reasoning_content` are the same."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallDelta, ...] | UnsetType = UNSET


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


class FunctionOut(msgspec.Struct, frozen=True):
    """The function of a call; `arguments` is the text of a JSON object."""

    name: str
    arguments: str


class ToolCallOut(msgspec.Struct, frozen=True):
    """A call of a function."""

    id: str
    function: FunctionOut
    type: str = "function"


class ChatMessageOut(msgspec.Struct, frozen=True):
    """The assistant's message. `reasoning` and `reasoning_content` are the same."""

    role: str
    content: str | None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: tuple[ToolCallOut, ...] | UnsetType = UNSET


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
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET
    kv_transfer_params: ForDecode | UnsetType = UNSET


NO_DELTA = ChatDelta()


def _call_deltas(calls: Sequence[ToolCall]) -> tuple[ToolCallDelta, ...]:
    """Return what pieces of calls add: a name is alone, arguments follow it."""
    found = []
    for call in calls:
        if call.begins:
            found.append(
                ToolCallDelta(call.index, FunctionDelta("", call.name), call.id, "function")
            )
        if call.arguments:
            found.append(ToolCallDelta(call.index, FunctionDelta(call.arguments)))
    return tuple(found)


class ChatForm:
    """/v1/chat/completions."""

    def __init__(self, heading: Heading, speller: Speller) -> None:
        self._h, self._speller = heading, speller
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
        return chat_logprobs(piece.scored, self._speller) if self._h.scored else None

    def _tokens(self, piece: TextDelta) -> Tokens:
        return piece.tokens if self._h.token_ids else UNSET

    def opening(self, stream: TextStream) -> bytes:
        """The role, and the prompt's ids if wanted."""
        role = ChatChunkChoice(stream.index, ChatDelta("assistant", ""))
        usage = _usage_so_far(self._h, stream)
        if not self._rich and stream.reader is None:
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
        if stream.reader is None:
            delta = ChatDelta(content=piece.text)
        else:
            delta = self._delta(piece)
            if delta == NO_DELTA and not self._rich:
                return b""
        choice = ChatChunkChoice(
            stream.index, delta, self._logprobs(piece), token_ids=self._tokens(piece)
        )
        usage = _usage_so_far(self._h, stream)
        return event(self._chunk(choice, usage=usage)) + self._calls(stream, piece)

    def ending(self, stream: TextStream, piece: TextDelta, ending: Ending) -> bytes:
        """The rest of the content with the finish reason, behind the arguments of calls."""
        if piece.calls:
            calls = TextDelta(piece.text, (), (), piece.reasoning, piece.calls)
            piece = TextDelta("", piece.tokens, piece.scored)
            return self.delta(stream, calls) + self.ending(stream, piece, ending)
        content = self._delta(piece)
        scored = self._logprobs(piece) if piece.scored else None
        tokens = self._tokens(piece)
        choice = ChatChunkChoice(
            stream.index, content, scored, self._finish_reason(stream, ending), ending.cause, tokens
        )
        return event(self._chunk(choice, usage=_usage_so_far(self._h, stream)))

    def closing(self, streams: Sequence[TextStream]) -> bytes:
        """Usage if wanted, then the end mark."""
        if not self._h.usage:
            return DONE
        return event(self._chunk(usage=usage_of(streams))) + DONE

    def failure(self, fault: HttpFault) -> bytes:
        """The error, without an end mark."""
        return fault.event

    def whole(self, streams: Sequence[TextStream], pieces: Sequence[Sequence[TextDelta]]) -> bytes:
        """The undivided answer."""
        h = self._h
        choices = tuple(self._choice(s, _merge(p)) for s, p in zip(streams, pieces, strict=True))
        prompt = streams[0].prompt if h.token_ids else UNSET
        scores, usage = _prompt_logprobs(h, streams[0], self._speller), usage_of(streams)
        return msgspec.json.encode(
            ChatAnswer(h.id, "chat.completion", h.created, h.model, choices, usage, prompt, scores)
        )

    def _choice(self, stream: TextStream, piece: TextDelta) -> ChatChoice:
        assert stream.ending is not None
        end = stream.ending
        return ChatChoice(
            stream.index,
            self._message(piece),
            self._logprobs(piece),
            self._finish_reason(stream, end),
            end.cause,
            self._tokens(piece),
        )

    def _message(self, piece: TextDelta) -> ChatMessageOut:
        reasoning = self._shown_reasoning(piece)
        calls = tuple(ToolCallOut(c.id, FunctionOut(c.name, c.arguments)) for c in piece.calls)
        divided = piece.reasoning or calls
        return ChatMessageOut(
            "assistant",
            None if divided and not piece.text else piece.text,
            reasoning,
            reasoning,
            calls or UNSET,
        )

    def _delta(self, piece: TextDelta) -> ChatDelta:
        """Return a piece with the first thing that it adds to calls; `_calls` has the others."""
        reasoning = self._shown_reasoning(piece)
        calls = _call_deltas(piece.calls)
        return ChatDelta(
            content=piece.text or UNSET,
            reasoning=reasoning,
            reasoning_content=reasoning,
            tool_calls=calls[:1] or UNSET,
        )

    def _calls(self, stream: TextStream, piece: TextDelta) -> bytes:
        """Return the events of what a piece adds to calls, less the first."""
        usage = _usage_so_far(self._h, stream)
        return b"".join(
            event(
                self._chunk(ChatChunkChoice(stream.index, ChatDelta(tool_calls=(c,))), usage=usage)
            )
            for c in _call_deltas(piece.calls)[1:]
        )

    def _shown_reasoning(self, piece: TextDelta) -> str | UnsetType:
        return piece.reasoning if piece.reasoning and self._h.reasoning else UNSET

    def _finish_reason(self, stream: TextStream, ending: Ending) -> str:
        """Return why a choice ended: `tool_calls` if it stopped after calls.

        With a named `tool_choice` it is `stop`, as OpenAI and vLLM say.
        """
        called = stream.reader is not None and stream.reader.calls and not self._h.named_tool
        return (
            "tool_calls" if called and ending.reason is FinishReason.STOP else ending.reason.value
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
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


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
    kv_transfer_params: ForDecode | UnsetType = UNSET


class CompletionForm:
    """/v1/completions.

    Args:
        echoes: what the answer of every choice begins with; empty = without echo
    """

    def __init__(self, heading: Heading, speller: Speller, *, echoes: Sequence[Echo]) -> None:
        self._h, self._speller, self._echoes = heading, speller, echoes
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
            completion_logprobs(piece.scored, self._speller)
            if h.scored and (piece.scored or ending is None)
            else None,
            None if ending is None else ending.reason.value,
            UNSET if ending is None else ending.cause,
            piece.tokens if h.token_ids else UNSET,
            stream.prompt if h.token_ids and prompt else UNSET,
            _prompt_logprobs(h, stream, self._speller) if prompt else UNSET,
        )

    def _echo(self, stream: TextStream) -> TextDelta:
        """Return what a choice shows of its prompt."""
        if not self._echoes:
            return NO_PIECE
        echo = self._echoes[stream.index]
        if self._h.logprobs is None:
            return TextDelta(echo.text, (), ())
        assert stream.scores is not None, "the core sends them with the first token"
        scored = echoed(stream.prompt, stream.scores, echo.offsets, self._h.logprobs)
        return TextDelta(echo.text, (), scored)

    def opening(self, stream: TextStream) -> bytes:
        """The prompt's text and ids if wanted."""
        if not self._rich:
            stream.wrap = _around(
                self._answer(
                    CompletionChoice(stream.index, HOLE), usage=_usage_so_far(self._h, stream)
                )
            )
        usage, echo = _usage_so_far(self._h, stream), self._echo(stream)
        if not (self._h.token_ids or echo.text or echo.scored):
            return b""
        ids = stream.prompt if self._h.token_ids else UNSET
        choice = CompletionChoice(
            stream.index,
            echo.text,
            completion_logprobs(echo.scored, self._speller) if echo.scored else None,
            token_ids=UNSET if ids is UNSET else (),
            prompt_token_ids=ids,
        )
        return event(self._answer(choice, usage=usage, prompt=ids))

    def delta(self, stream: TextStream, piece: TextDelta) -> bytes:
        """A piece of text."""
        if stream.wrap is not None:
            return stream.wrap(piece.text) if piece.text else b""
        if not piece.tokens:
            return b""
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

    def failure(self, fault: HttpFault) -> bytes:
        """The error, without an end mark."""
        return fault.event

    def whole(self, streams: Sequence[TextStream], pieces: Sequence[Sequence[TextDelta]]) -> bytes:
        """The undivided answer."""
        choices = [
            self._choice(s, _merge([self._echo(s), *p]), s.ending, prompt=True)
            for s, p in zip(streams, pieces, strict=True)
        ]
        only = streams[0].prompt if self._h.token_ids and len(streams) == 1 else UNSET
        return msgspec.json.encode(self._answer(*choices, usage=usage_of(streams), prompt=only))
