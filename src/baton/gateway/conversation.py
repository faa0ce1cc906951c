"""Turns the messages of a chat into the values that a chat template takes."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from baton.gateway.faults import refuse
from baton.gateway.neutral import brief
from baton.gateway.schema import ChatMessage, TemplateBody, ToolCallIn

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# Variables of a template that a request sets with fields of its own, or that are refused.
RESERVED = frozenset(
    [
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "documents",
        "messages",
        "self",
        "tokenize",
        "tools",
    ]
)


def plain_messages(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages as transformers' `apply_chat_template` takes them.

    Raises:
        HttpFault: 400; the message names the part that is not supported
    """
    return [_plain(f"messages[{i}]", m) for i, m in enumerate(messages)]


def template_options(body: TemplateBody) -> Mapping[str, Any]:
    """Return the further variables of the template: `chat_template_kwargs` and `reasoning_effort`.

    As in vLLM, an effort also says whether to think at all, unless `enable_thinking` is given.

    Raises:
        HttpFault: 400, a variable that has a field of its own
    """
    given = body.chat_template_kwargs or {}
    if taken := sorted(RESERVED & given.keys()):
        raise refuse(
            f"chat_template_kwargs has {taken[0]}, which is not for it to set; "
            f"not allowed in it: {', '.join(sorted(RESERVED))}",
            param="chat_template_kwargs",
        )
    effort = body.reasoning_effort
    if effort is None:
        return given
    return {"reasoning_effort": effort, "enable_thinking": effort != "none", **given}


def continues_last(body: TemplateBody, last: ChatMessage) -> bool:
    """Return whether the model continues the last message.

    Raises:
        HttpFault: 400, there is nothing to continue, or it contradicts `add_generation_prompt`
    """
    if not body.continue_final_message:
        return False
    if body.add_generation_prompt:
        raise refuse(
            "continue_final_message = true and add_generation_prompt = true exclude each other",
            param="continue_final_message",
        )
    if last.role != "assistant" or not last.content or last.tool_calls:
        raise refuse(
            "continue_final_message = true needs a last message of the role assistant with "
            f"content and without tool_calls; its role is {brief(last.role)}",
            param="continue_final_message",
        )
    return True


def arguments_of(where: str, text: str, *, param: str) -> dict[str, Any]:
    """Return the arguments of a call as an object, which templates write in their own way.

    Raises:
        HttpFault: 400, about the field `param`: the text at `where` is not a JSON object
    """
    try:
        arguments = json.loads(text or "{}")
    except (ValueError, RecursionError) as e:
        raise refuse(f"{where} = {brief(text)} is not JSON: {e}", param=param) from e
    if not isinstance(arguments, dict):
        raise refuse(f"{where} = {brief(text)} is not a JSON object", param=param)
    return arguments


def _plain(where: str, message: ChatMessage) -> dict[str, Any]:
    role = ROLES.get(message.role)
    if role is None:
        raise refuse(
            f"{where}.role = {brief(message.role)} is not supported; supported: {', '.join(ROLES)}",
            param="messages",
        )
    for field in ("function_call", "audio"):
        if (message.model_extra or {}).get(field):
            raise refuse(
                f"{where}.{field} is not supported; messages have text and tool_calls only",
                param="messages",
            )
    plain: dict[str, Any] = {"role": role, "content": _text(where, message)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain | _of_assistant(where, message)


def _of_assistant(where: str, message: ChatMessage) -> dict[str, Any]:
    """Return the fields that only messages of the assistant have."""
    found: dict[str, Any] = {}
    if message.tool_calls:
        if message.role != "assistant":
            raise refuse(
                f"{where}.tool_calls is for the role assistant; the role is {brief(message.role)}",
                param="messages",
            )
        calls = enumerate(message.tool_calls)
        found["tool_calls"] = [_call(f"{where}.tool_calls[{i}]", c) for i, c in calls]
    reasoning = message.reasoning_content or message.reasoning
    if reasoning is not None:
        # templates read it under one of these names; transformers and vLLM fill them too
        found |= dict.fromkeys(("reasoning_content", "reasoning", "thinking"), reasoning)
    return found


def _call(where: str, call: ToolCallIn) -> dict[str, Any]:
    said = call.function
    arguments = arguments_of(f"{where}.function.arguments", said.arguments, param="messages")
    plain = {"type": "function", "function": {"name": said.name, "arguments": arguments}}
    return plain if call.id is None else {"id": call.id, **plain}


def _text(where: str, message: ChatMessage) -> str:
    if message.content is None:
        if message.tool_calls:
            return ""  # as vLLM and SGLang: many templates would print a null
        raise refuse(
            f"{where}.content is missing; it needs a string or a list of text parts",
            param="messages",
        )
    if isinstance(message.content, str):
        return message.content
    texts = []
    for i, part in enumerate(message.content):
        if part.type != "text" or part.text is None:
            raise refuse(
                f"{where}.content[{i}] is of type {brief(part.type)}; only text parts are served",
                param="messages",
            )
        texts.append(part.text)
    return "\n".join(texts)
