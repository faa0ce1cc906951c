"""Request bodies of Anthropic's Messages API, with vLLM's additions.

messages_chat.py judges what depends on the type of a block or a tool.
"""

from typing import Annotated, Any, Literal

from pydantic import Field

from baton.gateway.schema import (
    LISTED,
    NAME,
    SALT_CHARS,
    STOP_STRINGS,
    TOOLS,
    Body,
    Count,
    ModelBody,
    SamplingBody,
    StopString,
    TextPart,
    Whole64,
)

TextBlocks = Annotated[list[TextPart], Field(fail_fast=True)]


class ContentBlock(Body):
    """One block of a message; `type` says which of the other fields it has."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | TextBlocks | None = None
    is_error: bool | None = None


class MessageIn(Body):
    """One message of a conversation."""

    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[ContentBlock], Field(fail_fast=True)]


class MessagesTool(Body):
    """A tool that the model may use. `input_schema` is a JSON schema of its input."""

    type: str | None = None
    name: Annotated[str, Field(pattern=NAME)] | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None


class MessagesToolChoice(Body):
    """Which tools the answer uses; `name` is for the type `tool`."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingConfig(Body):
    """Whether the model reasons. Nothing enforces `budget_tokens`."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Count | None = None
    display: Literal["summarized", "omitted"] | None = None


class JsonOutput(Body):
    """The schema that the text of the answer follows."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    """How much effort the model makes, and what its answer must be."""

    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: JsonOutput | None = None


class ConversationBody(ModelBody):
    """The fields that make the prompt. `cache_control` and `context_management` change nothing."""

    messages: Annotated[list[MessageIn], Field(min_length=1, max_length=LISTED, fail_fast=True)]
    system: str | TextBlocks | None = None
    tools: Annotated[list[MessagesTool], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_choice: MessagesToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None


class CountTokensBody(ConversationBody):
    """POST /v1/messages/count_tokens."""


class MessagesBody(ConversationBody, SamplingBody):
    """POST /v1/messages. The last four fields change nothing."""

    max_tokens: Count
    stop_sequences: (
        Annotated[list[StopString], Field(max_length=STOP_STRINGS, fail_fast=True)] | None
    ) = None
    stream: bool | None = None
    seed: Whole64 | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=SALT_CHARS)] | None = None
    priority: Annotated[int, Field(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    speed: str | None = None
