"""Translates a request of /v1/responses into a chat, which says the same.

items ─▶ messages: what the assistant did between two inputs is one message

reasoning, message, function_call ..   ─▶ assistant, with reasoning, content and tool_calls
function_call_output                   ─▶ tool
message of another role                ─▶ the same
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from baton.gateway.conversation import arguments_of
from baton.gateway.faults import refuse
from baton.gateway.neutral import brief, is_one_of
from baton.gateway.responses_schema import (
    LOGPROBS,
    ChosenFunction,
    FunctionTool,
    InputCall,
    InputCallOutput,
    InputItem,
    InputMessage,
    InputPart,
    InputReasoning,
    ResponsesBody,
    TextFormat,
)
from baton.gateway.schema import (
    ChatBody,
    ChatMessage,
    Function,
    FunctionCall,
    JsonSchemaFormat,
    NamedFunction,
    NamedTool,
    RequestBody,
    ResponseFormat,
    StreamOptions,
    TextPart,
    Tool,
    ToolCallIn,
)

TEXTS = ("input_text", "output_text", "refusal", "reasoning_text", "summary_text", "text")
UNFINISHED = ("in_progress", "incomplete")  # status of a message

STATELESS = "no answer is kept, so the whole history is sent in input with every request"
FIELD = "it is called {} in this API"
STRUCTURE = "use text.format or structured_outputs"


class RefusedField(msgspec.Struct, frozen=True):
    """A field that is not supported: the values that say nothing, and what to do instead."""

    why: str
    neutral: tuple[object, ...] = ()


REFUSED: Mapping[str, RefusedField] = {
    "background": RefusedField(
        "no answer is kept; leave it out, and stream long answers", (False,)
    ),
    "context_management": RefusedField("input is never shortened", ([],)),
    "conversation": RefusedField(STATELESS),
    "ebnf": RefusedField(STRUCTURE),
    "json_schema": RefusedField(STRUCTURE),
    "max_completion_tokens": RefusedField(FIELD.format("max_output_tokens")),
    "max_tokens": RefusedField(FIELD.format("max_output_tokens")),
    "messages": RefusedField(FIELD.format("input")),
    "n": RefusedField("there is one answer; send several requests for several", (1,)),
    "previous_response_id": RefusedField(STATELESS),
    "prompt": RefusedField("no prompts are kept; send instructions and input"),
    "regex": RefusedField(STRUCTURE),
    "response_format": RefusedField(FIELD.format("text.format")),
    "store": RefusedField(f"leave it out or send false: {STATELESS}", (False,)),
}


class TranslatedChat(ChatBody):
    """A chat whose client has sent a request of /v1/responses."""

    NAMES: ClassVar[Mapping[str, str]] = {
        "max_completion_tokens": "max_output_tokens",
        "messages": "input",
        "response_format": "text.format",
    }


def chat_of(body: ResponsesBody) -> TranslatedChat:
    """Translate a request.

    Raises:
        HttpFault: 400; the message names the field and what is supported
    """
    _refuse(body.model_extra or {})
    messages = _messages(body)
    logprobs = LOGPROBS in (body.include or ())
    if body.top_logprobs and not logprobs:
        raise refuse(
            f'top_logprobs = {body.top_logprobs} needs include = ["{LOGPROBS}"]',
            param="top_logprobs",
        )
    fields: dict[str, Any] = {
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "tools": None if body.tools is None else [_tool(tool) for tool in body.tools],
        "tool_choice": _choice(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _format(body.text.format if body.text else None),
        "reasoning_effort": body.reasoning.effort if body.reasoning else None,
        "logprobs": logprobs,
        "top_logprobs": body.top_logprobs if logprobs else None,
        "stream_options": None if body.stream_options is None else StreamOptions(),
        "chat_template_kwargs": body.chat_template_kwargs,
        "continue_final_message": _continues(body, messages),
    }
    shared: dict[str, Any] = {name: getattr(body, name) for name in RequestBody.model_fields}
    # its parts have been validated, and chats have no bounds that the parts do not have
    return TranslatedChat.model_construct(**shared, **fields)


def _refuse(extra: Mapping[str, object]) -> None:
    for field, value in extra.items():
        refused = REFUSED.get(field)
        if refused is not None and not is_one_of(value, (None, *refused.neutral)):
            raise refuse(f"{field} = {brief(value)} is not supported: {refused.why}", param=field)


def _messages(body: ResponsesBody) -> list[ChatMessage]:
    given = body.instructions
    system = [ChatMessage(role="system", content=given)] if given else []
    if isinstance(body.input, str):
        return [*system, ChatMessage(role="user", content=body.input)]
    history = _History()
    for i, item in enumerate(body.input):
        history.add(f"input[{i}]", item)
    return [*system, *history.messages()]


def _tool(tool: FunctionTool) -> Tool:
    said = tool.model_dump(exclude_unset=True, exclude={"type"})
    return Tool(type="function", function=Function(**said))


def _choice(body: ResponsesBody) -> str | NamedTool | None:
    choice = body.tool_choice
    if not isinstance(choice, ChosenFunction):
        return choice
    return NamedTool(type="function", function=NamedFunction(name=choice.name))


def _format(said: TextFormat | None) -> ResponseFormat | None:
    if said is None or said.type != "json_schema":
        return None if said is None else ResponseFormat(type=said.type)
    if said.schema_ is None:
        raise refuse("text.format.schema is missing; it needs a JSON schema", param="text.format")
    return ResponseFormat(type=said.type, json_schema=JsonSchemaFormat(schema=said.schema_))


def _continues(body: ResponsesBody, messages: Sequence[ChatMessage]) -> bool:
    """Return whether the model continues the last message, as in vLLM."""
    last = None if isinstance(body.input, str) else body.input[-1]
    if not isinstance(last, InputMessage) or last.status not in UNFINISHED:
        return False
    message = messages[-1]
    return message.role == "assistant" and bool(message.content) and not message.tool_calls


class _Turn:
    """What the assistant did between two inputs; items come in the order of an answer."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[ToolCallIn] = []

    def takes(self, item: InputItem) -> bool:
        """Whether an item belongs to this message, and not to a further one.

        Behind a call everything does, because the outputs of the calls must follow the message.
        """
        if self._calls or isinstance(item, InputCall):
            return True
        return not (self._content if isinstance(item, InputMessage) else self._reasoning)

    def add(self, where: str, item: InputMessage | InputCall | InputReasoning) -> None:
        """Add an item. Raises HttpFault."""
        match item:
            case InputMessage():
                self._content.append("".join(_texts(where, item.content)))
            case InputReasoning():
                self._reasoning += _reasoning(where, item)
            case InputCall():
                arguments_of(f"{where}.arguments", item.arguments, param="input")
                function = FunctionCall(name=item.name, arguments=item.arguments)
                self._calls.append(ToolCallIn(id=item.call_id, function=function))

    def message(self) -> ChatMessage:
        """Return all of it as one message."""
        return ChatMessage.model_construct(
            role="assistant",
            content="".join(self._content),
            reasoning="\n".join(self._reasoning) or None,
            tool_calls=self._calls or None,
        )


class _History:
    """Messages, as they grow from items."""

    def __init__(self) -> None:
        self._messages: list[ChatMessage] = []
        self._turn: _Turn | None = None
        self._called: dict[str, str] = {}  # names of functions, by the ids of their calls

    def add(self, where: str, item: InputItem) -> None:
        """Add an item. Raises HttpFault."""
        if isinstance(item, InputCallOutput):
            self._close()
            self._messages.append(self._output(where, item))
        elif isinstance(item, InputMessage) and item.role != "assistant":
            self._close()
            self._messages.append(
                ChatMessage(role=item.role, content=_content(where, item.content))
            )
        else:
            if isinstance(item, InputCall):
                self._called[item.call_id] = item.name
            if self._turn is None or not self._turn.takes(item):
                self._close()
                self._turn = _Turn()
            self._turn.add(where, item)

    def messages(self) -> list[ChatMessage]:
        """Return all messages; nothing can be added after that."""
        self._close()
        return self._messages

    def _close(self) -> None:
        if self._turn is not None:
            self._messages.append(self._turn.message())
            self._turn = None

    def _output(self, where: str, item: InputCallOutput) -> ChatMessage:
        """Return the output of a call. Some templates need the name of the function, which only
        the call has."""
        name = self._called.get(item.call_id)
        if name is None:
            raise refuse(
                f"{where}.call_id = {brief(item.call_id)} is not the call_id of a function_call "
                f"before it; {STATELESS}",
                param="input",
            )
        content = _content(f"{where}.output", item.output)
        return ChatMessage(role="tool", content=content, tool_call_id=item.call_id, name=name)


def _reasoning(where: str, item: InputReasoning) -> list[str]:
    found = _texts(where, item.content or item.summary or [])
    if item.encrypted_content and not found:
        raise refuse(
            f"{where}.encrypted_content cannot be read here; reasoning is taken from content",
            param="input",
        )
    return found


def _content(where: str, content: str | list[InputPart]) -> str | list[TextPart]:
    if isinstance(content, str):
        return content
    return [TextPart(type="text", text=text) for text in _texts(where, content)]


def _texts(where: str, content: str | list[InputPart]) -> list[str]:
    if isinstance(content, str):
        return [content]
    found = []
    for part in content:
        text = part.refusal if part.type == "refusal" else part.text
        if text is None or part.type not in TEXTS:
            raise refuse(
                f"{where} has a part of the type {brief(part.type)}; only parts with text are "
                f"served: {', '.join(TEXTS)}",
                param="input",
            )
        found.append(text)
    return found
