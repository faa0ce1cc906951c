"""The bytes of answers of Anthropic's Messages API.

    pieces ──▶ blocks, in the order in which the model wrote them ──▶ events, or one document

Neighbouring text, and neighbouring thinking, is one block. So a stream and a document have the same
blocks, however the answer is divided into pieces.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Literal

import msgspec

from baton.core.messages import FinishReason
from baton.gateway.faults import HttpFault
from baton.gateway.forms import Heading
from baton.gateway.messages_faults import MessagesHttpFault
from baton.gateway.scores import Speller
from baton.gateway.stream import Ending, TextDelta, TextStream
from baton.gateway.tool_calls import Parsed, ToolCall
from baton.gateway.tool_use_ids import tool_use_id

HOLE = "\0"  # stands for the text in an encoded event while that is cut into head and tail
NO_INPUT = msgspec.Raw(b"{}")
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class TextBlock(msgspec.Struct, frozen=True, tag_field="type", tag="text"):
    """Text for the user."""

    text: str


class ThinkingBlock(msgspec.Struct, frozen=True, tag_field="type", tag="thinking"):
    """The model's reasoning. Nothing is signed."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, frozen=True, tag_field="type", tag="tool_use"):
    """A call of a tool; `input` is a JSON object."""

    id: str
    name: str
    input: msgspec.Raw


Block = TextBlock | ThinkingBlock | ToolUseBlock


class MessageUsage(msgspec.Struct, frozen=True):
    """Token counts. The first three together are the tokens of the prompt."""

    input_tokens: int
    cache_creation_input_tokens: int
    cache_read_input_tokens: int  # their KV cache was reused
    output_tokens: int


class MessageAnswer(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """An undivided answer; without content and reason, the head of a stream."""

    id: str
    role: str
    model: str
    content: tuple[Block, ...]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TextAdded(msgspec.Struct, frozen=True, tag_field="type", tag="text_delta"):
    """What an event adds to a text block."""

    text: str


class ThinkingAdded(msgspec.Struct, frozen=True, tag_field="type", tag="thinking_delta"):
    """What an event adds to a thinking block."""

    thinking: str


class SignatureAdded(msgspec.Struct, frozen=True, tag_field="type", tag="signature_delta"):
    """The signature, at the end of a thinking block."""

    signature: str = ""


class InputAdded(msgspec.Struct, frozen=True, tag_field="type", tag="input_json_delta"):
    """What an event adds to the input of a call, as text."""

    partial_json: str


class MessageStop(msgspec.Struct, frozen=True):
    """Why the message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageStartEvent(msgspec.Struct, frozen=True, tag_field="type", tag="message_start"):
    """The first event."""

    message: MessageAnswer


class BlockStartEvent(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_start"):
    """A block begins, empty."""

    index: int
    content_block: Block


class BlockDeltaEvent(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_delta"):
    """The open block grows."""

    index: int
    delta: TextAdded | ThinkingAdded | SignatureAdded | InputAdded


class BlockStopEvent(msgspec.Struct, frozen=True, tag_field="type", tag="content_block_stop"):
    """The open block is complete."""

    index: int


class MessageDeltaEvent(msgspec.Struct, frozen=True, tag_field="type", tag="message_delta"):
    """The end of the message, with all its tokens."""

    delta: MessageStop
    usage: MessageUsage


class MessageStopEvent(msgspec.Struct, frozen=True, tag_field="type", tag="message_stop"):
    """The last event."""


Event = (
    MessageStartEvent
    | BlockStartEvent
    | BlockDeltaEvent
    | BlockStopEvent
    | MessageDeltaEvent
    | MessageStopEvent
)


class TokenCount(msgspec.Struct, frozen=True):
    """POST /v1/messages/count_tokens: the tokens that the prompt would have."""

    input_tokens: int


class MessageForm:
    """/v1/messages. Its answers have one choice."""

    def __init__(self, heading: Heading, speller: Speller) -> None:
        self._h = heading
        self._open: Block | None = None  # as it began, empty
        self._index = -1  # of the block that is open, or was last

    def opening(self, stream: TextStream) -> bytes:
        """The message without content."""
        return _event(MessageStartEvent(self._message(stream, (), None)))

    def delta(self, stream: TextStream, piece: TextDelta) -> bytes:
        """What a piece adds to blocks."""
        return b"".join(
            self._grow(stream, block, anew=anew) for block, anew in self._pieces([piece])
        )

    def ending(self, stream: TextStream, piece: TextDelta, ending: Ending) -> bytes:
        """The rest of the blocks, and why the message ended."""
        rest = self.delta(stream, piece) + self._close()
        return rest + _event(MessageDeltaEvent(_stop(stream, ending), _usage(stream)))

    def closing(self, streams: Sequence[TextStream]) -> bytes:
        """The end mark."""
        return _event(MessageStopEvent())

    def failure(self, fault: HttpFault) -> bytes:
        """The error."""
        return MessagesHttpFault(fault).event

    def whole(self, streams: Sequence[TextStream], pieces: Sequence[Sequence[TextDelta]]) -> bytes:
        """The undivided answer."""
        (stream,), (own,) = streams, pieces
        assert stream.ending is not None
        blocks = tuple(self._blocks(own))
        return msgspec.json.encode(self._message(stream, blocks, _stop(stream, stream.ending)))

    def _message(
        self, stream: TextStream, content: tuple[Block, ...], stop: MessageStop | None
    ) -> MessageAnswer:
        return MessageAnswer(
            self._h.id,
            "assistant",
            self._h.model,
            content,
            None if stop is None else stop.stop_reason,
            None if stop is None else stop.stop_sequence,
            _usage(stream),
        )

    def _blocks(self, pieces: Sequence[TextDelta]) -> Iterator[Block]:
        """Yield the blocks of a whole answer."""
        return (block for block, _ in self._pieces(pieces))

    def _pieces(self, pieces: Sequence[TextDelta]) -> Iterator[tuple[Block, bool]]:
        """Yield what pieces add, neighbours of one kind as one, and whether it is a new call."""
        each = (part for piece in pieces for part in piece.parts or (Parsed(piece.text),))
        shown = (p for p in each if p.content or p.calls or (p.reasoning and self._h.reasoning))
        for kind, group in groupby(shown, _kind):
            if kind is TextBlock:
                yield TextBlock("".join(p.content for p in group)), False
            elif kind is ThinkingBlock:
                yield ThinkingBlock("".join(p.reasoning for p in group)), False
            else:
                yield from ((_tool_use(call), call.begins) for p in group for call in p.calls)

    def _grow(self, stream: TextStream, block: Block, *, anew: bool) -> bytes:
        """Return the events of a block, which continues the open one if it can."""
        begun = b""
        if anew or type(block) is not type(self._open):
            begun = self._close() + self._begin(stream, block)
        added = _added(block)
        return begun + (_event(BlockDeltaEvent(self._index, added)) if added is not None else b"")

    def _begin(self, stream: TextStream, block: Block) -> bytes:
        self._index += 1
        self._open = _emptied(block)
        if stream.reader is None:  # all that follows is text
            stream.wrap = _around(BlockDeltaEvent(self._index, TextAdded(HOLE)))
        return _event(BlockStartEvent(self._index, self._open))

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        signed = b""
        if isinstance(self._open, ThinkingBlock):
            signed = _event(BlockDeltaEvent(self._index, SignatureAdded()))
        self._open = None
        return signed + _event(BlockStopEvent(self._index))


def _event(data: Event) -> bytes:
    name = str(data.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"


def _around(sample: BlockDeltaEvent) -> Callable[[str], bytes]:
    """Return a function that makes events like `sample`, with a text in the place of HOLE."""
    head, _, tail = _event(sample).rpartition(msgspec.json.encode(HOLE))
    return lambda text: head + msgspec.json.encode(text) + tail


def _kind(part: Parsed) -> type[Block]:
    if part.calls:
        return ToolUseBlock
    return ThinkingBlock if part.reasoning else TextBlock


def _tool_use(call: ToolCall) -> ToolUseBlock:
    return ToolUseBlock(tool_use_id(call.id), call.name, msgspec.Raw(call.arguments.encode()))


def _emptied(block: Block) -> Block:
    match block:
        case TextBlock():
            return TextBlock("")
        case ThinkingBlock():
            return ThinkingBlock("")
        case ToolUseBlock():
            return msgspec.structs.replace(block, input=NO_INPUT)


def _added(block: Block) -> TextAdded | ThinkingAdded | InputAdded | None:
    """Return what a piece adds to its block; None = nothing."""
    match block:
        case TextBlock():
            return TextAdded(block.text)
        case ThinkingBlock():
            return ThinkingAdded(block.thinking)
        case ToolUseBlock():
            added = bytes(block.input).decode()
            return InputAdded(added) if added else None


def _usage(stream: TextStream) -> MessageUsage:
    return MessageUsage(len(stream.prompt) - stream.cached, 0, stream.cached, stream.count)


def _stop(stream: TextStream, ending: Ending) -> MessageStop:
    """Return why a message ended: calls come before a stop string that was found behind them."""
    if ending.reason is FinishReason.LENGTH:
        return MessageStop("max_tokens", None)
    if stream.reader is not None and stream.reader.calls:
        return MessageStop("tool_use", None)
    if isinstance(ending.cause, str):
        return MessageStop("stop_sequence", ending.cause)
    return MessageStop("end_turn", None)
