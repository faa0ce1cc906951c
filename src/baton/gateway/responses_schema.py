"""The request body of /v1/responses, as OpenAI and vLLM define it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from baton.gateway.schema import LISTED, NAME, TOOLS, Body, Count, Effort, RequestBody

PAIRS, KEY_CHARS, VALUE_CHARS = 16, 64, 512  # of metadata
LOGPROBS = "message.output_text.logprobs"  # an entry of `include`


class InputPart(Body):
    """A part of an item's content. Only text is served; `refusal` is the text of a refusal."""

    type: str
    text: str | None = None
    refusal: str | None = None


Parts = Annotated[list[InputPart], Field(fail_fast=True)]


class InputMessage(Body):
    """A message. One of the assistant that is last and `incomplete` is continued."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | Parts
    status: str | None = None


class InputCall(Body):
    """A call of an earlier answer; `arguments` is the text of a JSON object."""

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str


class InputCallOutput(Body):
    """What a function returned."""

    type: Literal["function_call_output"]
    call_id: str
    output: str | Parts


class InputReasoning(Body):
    """Reasoning of an earlier answer: its text is `content`, or else `summary`."""

    type: Literal["reasoning"]
    content: Parts | None = None
    summary: Parts | None = None
    encrypted_content: str | None = None


# by `type`; a message may leave its type out
ITEMS: Mapping[str, str] = {
    "message": "InputMessage",
    "function_call": "InputCall",
    "function_call_output": "InputCallOutput",
    "reasoning": "InputReasoning",
}


def _class_of(item: Any) -> str | None:
    kind = item.get("type", "message") if isinstance(item, Mapping) else None
    return ITEMS.get(kind) if isinstance(kind, str) else None


InputItem = Annotated[
    Annotated[InputMessage, Tag("InputMessage")]
    | Annotated[InputCall, Tag("InputCall")]
    | Annotated[InputCallOutput, Tag("InputCallOutput")]
    | Annotated[InputReasoning, Tag("InputReasoning")],
    Discriminator(
        _class_of,
        custom_error_type="item",
        custom_error_message=f"an item is an object of one of the types {', '.join(ITEMS)}",
    ),
]


class FunctionTool(Body):
    """A function that the model may call, without the nesting of chats."""

    type: Literal["function"]
    name: Annotated[str, Field(pattern=NAME)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ChosenFunction(Body):
    """A `tool_choice` that names a function."""

    type: Literal["function"]
    name: str


class TextFormat(Body):
    """What the answer must be. `schema` is for the type json_schema."""

    type: Literal["text", "json_object", "json_schema"]
    schema_: dict[str, Any] | bool | None = Field(default=None, alias="schema")
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextOptions(Body):
    """`text`: about the text of the answer."""

    format: TextFormat | None = None
    verbosity: Literal["medium"] | None = None


class ReasoningOptions(Body):
    """`reasoning`. Nothing is summarized: the answer has the reasoning itself."""

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesStreamOptions(Body):
    """Options of a streamed answer. Nothing is added to events to hide their length."""

    include_obfuscation: Literal[False] | None = None


class ResponsesBody(RequestBody):
    """POST /v1/responses."""

    input: str | Annotated[list[InputItem], Field(min_length=1, max_length=LISTED, fail_fast=True)]
    instructions: str | None = None
    max_output_tokens: Count | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=TOOLS, fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none", "required"] | ChosenFunction | None = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: Count | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    include: (
        list[
            Literal[
                "code_interpreter_call.outputs",
                "computer_call_output.output.image_url",
                "file_search_call.results",
                "message.input_image.image_url",
                "message.output_text.logprobs",
                "reasoning.encrypted_content",
                "web_search_call.action.sources",
                "web_search_call.results",
            ]
        ]
        | None
    ) = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    stream_options: ResponsesStreamOptions | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None = None
    metadata: (
        Annotated[
            dict[
                Annotated[str, Field(max_length=KEY_CHARS)],
                Annotated[str, Field(max_length=VALUE_CHARS)],
            ],
            Field(max_length=PAIRS),
        ]
        | None
    ) = None
    user: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
