"""The objects of /v1/responses: the answer, its items, and the events of a stream.

They are OpenAI's, with `reasoning_text` as vLLM has it. An event has its type as `type` and, in a
stream, as the line `event:` too.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from baton.gateway.scores import ChatLogprob

Object = Mapping[str, Any]
COMPLETED, INCOMPLETE, IN_PROGRESS, FAILED = "completed", "incomplete", "in_progress", "failed"


class OutputText(msgspec.Struct, frozen=True, tag="output_text", tag_field="type"):
    """The text of a message."""

    text: str
    logprobs: tuple[ChatLogprob, ...] = ()
    annotations: tuple[str, ...] = ()


class ReasoningText(msgspec.Struct, frozen=True, tag="reasoning_text", tag_field="type"):
    """The text of a reasoning item."""

    text: str


class OutputMessage(msgspec.Struct, frozen=True, tag="message", tag_field="type"):
    """What the model says."""

    id: str
    content: tuple[OutputText, ...]
    status: str
    role: str = "assistant"


class OutputReasoning(msgspec.Struct, frozen=True, tag="reasoning", tag_field="type"):
    """What the model thinks."""

    id: str
    content: tuple[ReasoningText, ...]
    status: str
    summary: tuple[str, ...] = ()
    encrypted_content: str | None = None


class OutputCall(msgspec.Struct, frozen=True, tag="function_call", tag_field="type"):
    """A call; `arguments` is the text of a JSON object. The output of the call names `call_id`."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: str


Part = OutputText | ReasoningText
Item = OutputMessage | OutputReasoning | OutputCall


class InputTokensDetails(msgspec.Struct, frozen=True):
    """Details of the prompt tokens. What is written to the cache is not counted."""

    cached_tokens: int
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """Details of the generated tokens."""

    reasoning_tokens: int


class ResponsesUsage(msgspec.Struct, frozen=True):
    """Token counts."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why an answer is incomplete."""

    reason: str


class ResponseError(msgspec.Struct, frozen=True):
    """Why an answer failed."""

    code: str
    message: str


class ResponsesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer, as far as it is known; most fields repeat the request."""

    id: str
    object: str = "response"
    created_at: int
    status: str
    error: ResponseError | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: Object
    model: str
    output: tuple[Item, ...] = ()
    parallel_tool_calls: bool
    temperature: float
    tool_choice: str | Object
    tools: tuple[Object, ...]
    top_logprobs: int
    top_p: float
    background: bool = False
    previous_response_id: str | None = None
    prompt: str | None = None
    reasoning: Object
    service_tier: str = "default"
    store: bool = False
    text: Object
    truncation: str
    usage: ResponsesUsage | None = None
    user: str | None


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="event"):
    """One event of a stream. Numbers of a stream's events count from 0."""

    sequence_number: int


class ResponseCreated(Event, frozen=True, tag="response.created"):
    """The answer has begun."""

    response: ResponsesAnswer


class ResponseInProgress(Event, frozen=True, tag="response.in_progress"):
    """The answer grows."""

    response: ResponsesAnswer


class ResponseCompleted(Event, frozen=True, tag="response.completed"):
    """The answer is whole."""

    response: ResponsesAnswer


class ResponseIncomplete(Event, frozen=True, tag="response.incomplete"):
    """The answer was cut off by its limit."""

    response: ResponsesAnswer


class ResponseFailed(Event, frozen=True, tag="response.failed"):
    """The answer has failed."""

    response: ResponsesAnswer


class ErrorEvent(Event, frozen=True, tag="error"):
    """Why the stream fails, in the two forms that clients look for."""

    code: str | None
    message: str
    param: str | None
    error: Object


class ItemAdded(Event, frozen=True, tag="response.output_item.added"):
    """An item has begun."""

    output_index: int
    item: Item


class ItemDone(Event, frozen=True, tag="response.output_item.done"):
    """An item has ended."""

    output_index: int
    item: Item


class OfItem(Event, frozen=True):
    """About the item at `output_index`."""

    item_id: str
    output_index: int


class PartAdded(OfItem, frozen=True, tag="response.content_part.added"):
    """The text of an item has begun."""

    part: Part
    content_index: int = 0


class PartDone(OfItem, frozen=True, tag="response.content_part.done"):
    """The text of an item has ended."""

    part: Part
    content_index: int = 0


class OutputTextDelta(OfItem, frozen=True, tag="response.output_text.delta"):
    """A piece of the text of a message."""

    delta: str
    logprobs: tuple[ChatLogprob, ...] = ()
    content_index: int = 0


class OutputTextDone(OfItem, frozen=True, tag="response.output_text.done"):
    """The text of a message."""

    text: str
    logprobs: tuple[ChatLogprob, ...] = ()
    content_index: int = 0


class ReasoningTextDelta(OfItem, frozen=True, tag="response.reasoning_text.delta"):
    """A piece of reasoning."""

    delta: str
    content_index: int = 0


class ReasoningTextDone(OfItem, frozen=True, tag="response.reasoning_text.done"):
    """The text of reasoning."""

    text: str
    content_index: int = 0


class ArgumentsDelta(OfItem, frozen=True, tag="response.function_call_arguments.delta"):
    """A piece of the arguments of a call."""

    delta: str


class ArgumentsDone(OfItem, frozen=True, tag="response.function_call_arguments.done"):
    """The arguments of a call."""

    name: str
    arguments: str
