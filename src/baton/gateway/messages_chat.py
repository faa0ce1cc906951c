"""Turns requests of Anthropic's Messages API into chats, so that both take one path from there.

    messages ──▶ turns: consecutive messages of one role ──▶ messages of a chat

    user        tool_result blocks      a message of the role tool each
                text blocks             one message of the role user behind them
    assistant   text, thinking, tool_use    one message with content, reasoning and tool_calls
    system      before the first turn: part of the system prompt; later: text of the user's turn

A later system message is no message of its own, because many chat templates leave it out, refuse it
or move it to the front, where it would change the prompt of every turn. It is no turn of the user
either if it stands beside tool results, because many templates drop the reasoning before such a
turn.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from baton.gateway.faults import refuse
from baton.gateway.messages_schema import (
    ContentBlock,
    ConversationBody,
    MessageIn,
    MessagesBody,
    MessagesTool,
    MessagesToolChoice,
)
from baton.gateway.neutral import brief
from baton.gateway.schema import (
    LISTED,
    TOOLS,
    ChatBody,
    ChatMessage,
    Function,
    FunctionCall,
    NamedFunction,
    NamedTool,
    TextPart,
    Tool,
    ToolCallIn,
)
from baton.gateway.tool_use_ids import call_id

T = TypeVar("T")

# Claude Code begins its system prompt with this line, which is another one in each request.
BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
TOOL_CHOICES: Mapping[str, Any] = {"auto": "auto", "any": "required", "none": "none"}
# Fields that a chat has under the same name, with the same meaning.
SHARED = (MessagesBody.model_fields.keys() & ChatBody.model_fields.keys()) - {
    "messages",
    "tools",
    "tool_choice",
    "chat_template_kwargs",
}
# By field of a chat: the field of a message request that says it.
INSTEAD: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "stop": "stop_sequences",
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "output_config.effort",
    "include_reasoning": "thinking.display",
    "response_format": "output_config.format",
}


class _Turn(msgspec.Struct):
    """Consecutive messages of one role.

    Attributes:
        where: of its last message, e.g. messages[3]
        spoken: whether the user has written text, not only a system message
        results: by the id of the tool_use, its result
        calls: by the id of the tool_use, its function
    """

    role: str
    where: str
    texts: list[TextPart] = []
    spoken: bool = False
    results: dict[str, list[TextPart]] = {}
    calls: dict[str, FunctionCall] = {}
    thoughts: list[str] = []


def as_chat(body: ConversationBody) -> ChatBody:
    """Return the chat that a request asks for.

    Raises:
        HttpFault: 400; the message names the field, its value and what is supported
    """
    chat = _conversation(body)
    fields: dict[str, Any] = {"model": body.model}
    if isinstance(body, MessagesBody):
        _refuse_fields_of_chats(body.model_extra or {})
        fields |= {f: getattr(body, f) for f in SHARED & body.model_fields_set}
        fields["stop"] = body.stop_sequences
    if (choice := body.tool_choice) is not None:
        fields["tool_choice"] = _tool_choice(choice)
        fields["parallel_tool_calls"] = False if choice.disable_parallel_tool_use else None
    if (output := body.output_config) is not None:
        fields["reasoning_effort"] = output.effort
        fields["json_schema"] = None if output.format is None else output.format.schema_
    if body.thinking is not None and body.thinking.display == "omitted":
        fields["include_reasoning"] = False
    return ChatBody(
        messages=chat,
        tools=[_tool(f"tools[{i}]", tool) for i, tool in enumerate(body.tools or ())],
        chat_template_kwargs=_template_options(body),
        continue_final_message=chat[-1].role == "assistant",
        **fields,
    )


def _refuse_fields_of_chats(extra: Mapping[str, Any]) -> None:
    """Refuse fields that only chats have: ignoring them would change the answer."""
    for field in sorted(ChatBody.model_fields.keys() & extra.keys()):
        if extra[field] is not None:
            other = INSTEAD.get(field)
            raise refuse(
                f"{field} = {brief(extra[field])} is not supported in a message request; "
                f"{'leave it out' if other is None else 'use ' + other}",
                param=field,
            )


def _template_options(body: ConversationBody) -> dict[str, Any] | None:
    """Return the variables of the template; they have one of two names for the same switch."""
    if body.thinking is None:
        return body.chat_template_kwargs
    thinks = body.thinking.type != "disabled"
    return {"enable_thinking": thinks, "thinking": thinks, **(body.chat_template_kwargs or {})}


# ---- tools --------------------------------------------------------------------------------------


def _tool(where: str, tool: MessagesTool) -> Tool:
    if tool.type not in (None, "custom"):
        raise refuse(
            f"{where}.type = {brief(tool.type)} is not supported: this server runs no tools; "
            "supported: custom, with name and input_schema",
            param="tools",
        )
    function = Function(
        name=_needed(f"{where}.name", tool.name, param="tools"),
        parameters=_needed(f"{where}.input_schema", tool.input_schema, param="tools"),
        # templates show what is set
        **tool.model_dump(include={"description", "strict"}, exclude_none=True),
    )
    return Tool(type="function", function=function)


def _tool_choice(choice: MessagesToolChoice) -> Any:
    if choice.type != "tool":
        return TOOL_CHOICES[choice.type]
    name = _needed("tool_choice.name", choice.name, param="tool_choice")
    return NamedTool(type="function", function=NamedFunction(name=name))


# ---- messages -----------------------------------------------------------------------------------


def _conversation(body: ConversationBody) -> list[ChatMessage]:
    leading = next(
        (i for i, m in enumerate(body.messages) if m.role != "system"), len(body.messages)
    )
    first: list[TextPart] = _texts("system", body.system or [])
    for i, message in enumerate(body.messages[:leading]):
        first += _system_text(f"messages[{i}]", message)
    turns = _turns(body.messages, start=leading)
    _require_pairs(turns)
    found = [ChatMessage(role="system", content=first)] if (first := _unbilled(first)) else []
    for turn in turns:
        found += _of_user(turn) if turn.role == "user" else [_of_assistant(turn)]
    if not found:
        raise refuse("messages has no text; at least one message needs some", param="messages")
    if len(found) > LISTED:
        raise refuse(
            f"messages, tool results and the system prompt are {len(found)} messages for the "
            f"model; at most {LISTED} are served",
            param="messages",
        )
    _require_continuable(turns)
    return found


def _turns(messages: Sequence[MessageIn], *, start: int) -> list[_Turn]:
    turns: list[_Turn] = []
    for i, message in enumerate(messages[start:], start):
        where = f"messages[{i}]"
        role = "assistant" if message.role == "assistant" else "user"
        if not turns or turns[-1].role != role:
            turns.append(_Turn(role, where))
        turn = turns[-1]
        turn.where = where
        if message.role == "system":
            turn.texts += _unbilled(_system_text(where, message))
            continue
        blocks = message.content
        if isinstance(blocks, str):
            blocks = [ContentBlock(type="text", text=blocks)]
        for j, block in enumerate(blocks):
            _read(turn, f"{where}.content[{j}]", block)
    return turns


def _read(turn: _Turn, where: str, block: ContentBlock) -> None:
    if block.type not in BLOCKS:
        raise refuse(
            f"{where}.type = {brief(block.type)} is not supported; supported: {', '.join(BLOCKS)}",
            param="messages",
        )
    roles, take = BLOCKS[block.type]
    if turn.role not in roles:
        raise refuse(
            f"{where} is a {block.type} block in a message of the role {turn.role}; it belongs to "
            f"the role {roles[0]}",
            param="messages",
        )
    take(turn, where, block)


def _text(turn: _Turn, where: str, block: ContentBlock) -> None:
    turn.texts.append(TextPart(type="text", text=_needed(f"{where}.text", block.text)))
    turn.spoken = True


def _thinking(turn: _Turn, where: str, block: ContentBlock) -> None:
    turn.thoughts.append(_needed(f"{where}.thinking", block.thinking))


def _redacted(turn: _Turn, where: str, block: ContentBlock) -> None:
    """Leave it out: only its maker can read it."""


def _tool_use(turn: _Turn, where: str, block: ContentBlock) -> None:
    given = _needed(f"{where}.input", block.input)
    call = FunctionCall(name=_needed(f"{where}.name", block.name), arguments=json.dumps(given))
    _add(turn.calls, _needed(f"{where}.id", block.id), call, where=f"{where}.id")
    if len(turn.calls) > TOOLS:
        raise refuse(
            f"{where} is tool_use {len(turn.calls)} of one turn; at most {TOOLS} are served",
            param="messages",
        )


def _tool_result(turn: _Turn, where: str, block: ContentBlock) -> None:
    parts = _texts(f"{where}.content", block.content or [])
    if block.is_error:  # chat templates have no field for it
        parts.insert(0, TextPart(type="text", text="Error:"))
    answered = _needed(f"{where}.tool_use_id", block.tool_use_id)
    _add(turn.results, answered, parts, where=f"{where}.tool_use_id")


def _add(known: dict[str, T], key: str, value: T, *, where: str) -> None:
    if key in known:
        raise refuse(
            f"{where} = {brief(key)} is there twice in one turn; ids must differ", param="messages"
        )
    known[key] = value


# By type: the roles whose messages have such blocks.
BLOCKS: Mapping[str, tuple[tuple[str, ...], Callable[[_Turn, str, ContentBlock], None]]] = {
    "text": (("user", "assistant"), _text),
    "tool_use": (("assistant",), _tool_use),
    "tool_result": (("user",), _tool_result),
    "thinking": (("assistant",), _thinking),
    "redacted_thinking": (("assistant",), _redacted),
}


def _of_user(turn: _Turn) -> Iterator[ChatMessage]:
    """Return the messages of a user's turn: first the tools' results."""
    texts, results = turn.texts, turn.results
    if results and not turn.spoken:
        last = next(reversed(results))
        results, texts = {**results, last: [*results[last], *texts]}, []
    for answered, parts in results.items():
        yield ChatMessage(role="tool", tool_call_id=call_id(answered), content=parts)
    if texts or not results:
        yield ChatMessage(role="user", content=texts)


def _of_assistant(turn: _Turn) -> ChatMessage:
    calls = [ToolCallIn(id=call_id(i), function=call) for i, call in turn.calls.items()]
    return ChatMessage(
        role="assistant",
        content=turn.texts,
        tool_calls=calls or None,
        reasoning_content="\n".join(turn.thoughts) or None,
    )


def _require_pairs(turns: Sequence[_Turn]) -> None:
    """Check that the results of a turn answer the calls of the turn before it, all of them."""
    pairs = zip([_Turn("user", ""), *turns], [*turns, _Turn("user", "")], strict=True)
    for before, turn in pairs:
        if unasked := next((i for i in turn.results if i not in before.calls), None):
            raise refuse(
                f"{turn.where} has a tool_result for {brief(unasked)}, which is no tool_use of the "
                "message before it",
                param="messages",
            )
        if missing := next((i for i in before.calls if i not in turn.results), None):
            raise refuse(
                f"{before.where} has the tool_use {brief(missing)} without a tool_result in the "
                "message after it; every tool_use needs one",
                param="messages",
            )


def _require_continuable(turns: Sequence[_Turn]) -> None:
    if turns and turns[-1].role == "assistant" and not any(p.text for p in turns[-1].texts):
        raise refuse(
            f"{turns[-1].where} is the last message, which the model continues if it is the "
            "assistant's, but it has no text; leave it out, or end with a message of the user",
            param="messages",
        )


def _system_text(where: str, message: MessageIn) -> list[TextPart]:
    if isinstance(message.content, str):
        return _texts(where, message.content)
    parts = [TextPart(type=b.type, text=b.text) for b in message.content]
    return _texts(f"{where}.content", parts)


def _texts(where: str, content: str | Sequence[TextPart]) -> list[TextPart]:
    """Return content that must be text.

    Raises:
        HttpFault: 400, a block has another type
    """
    if isinstance(content, str):
        return [TextPart(type="text", text=content)]
    for i, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise refuse(
                f"{where}[{i}] is of type {brief(part.type)}; only text blocks with text are "
                "served here",
                param=where.partition("[")[0],
            )
    return list(content)


def _unbilled(parts: Sequence[TextPart]) -> list[TextPart]:
    """Return the texts of a system prompt that are not empty, without Claude Code's first line."""
    texts = (BILLING.sub("", part.text or "") for part in parts)
    return [TextPart(type="text", text=text) for text in texts if text]


def _needed(where: str, value: T | None, *, param: str = "messages") -> T:
    if value is None:
        raise refuse(f"{where} is missing", param=param)
    return value
