"""The chat format of DeepSeek-V3.2, which publishes no Jinja template.

    <BOS>{system}{tools}
    <｜User｜>{question}<｜Assistant｜><think>{reasoning}</think>{answer}{calls of tools}<EOS>
    {results of tools}<think>{reasoning}</think>{answer}<EOS>

Without thinking, and in all turns before the last question, `</think>` stands in place of
`<think>{reasoning}</think>`: the model is not shown what it thought about earlier questions. A
question is a message of the user or the developer.

The format is that of encoding/encoding_dsv32.py, which is published with the model; so is the text
of PREAMBLE, which the model was trained on and which is therefore the same here, byte for byte.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.gateway.template import TemplateRefused

BEGINNING, END = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"
THINK, THOUGHT = "<think>", "</think>"
DSML = "｜DSML｜"
NEW_PARAGRAPH = "\n\n"
ASKING = ("user", "developer")  # roles of questions

PREAMBLE = f"""## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "<{DSML}function_calls>" block like the following as part of \
your reply to the user:
<{DSML}function_calls>
<{DSML}invoke name="$FUNCTION_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$FUNCTION_NAME2">
...
</{DSML}invoke>
</{DSML}function_calls>

String and scalar parameters should be specified as is without any escaping or quotes, while lists \
and objects should use JSON format. The "string" attribute should be set to "true" for string type \
parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider \
outputting a thinking block. Here is an example:

<{DSML}function_calls>
...
</{DSML}function_calls>

<function_results>
...
</function_results>

{THINK}...thinking about results{THOUGHT}

Here are the functions available in JSONSchema format:
<functions>
"""
RESPONSE_FORMAT = (
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
)

Message = Mapping[str, Any]


class DeepseekV32Chat:
    """Renders conversations as DeepSeek-V3.2 was trained on them.

    The model thinks if `thinking` or `enable_thinking` of `chat_template_kwargs` is true, as in
    vLLM and SGLang. Tools of a request belong to its first message if that is the system's or the
    developer's, else they come before all messages.
    """

    text = PREAMBLE

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **kwargs: Any,
    ) -> str:
        """Render a conversation.

        Raises:
            TemplateRefused: a message has no place in the format
        """
        before, messages = _with_tools(messages, tools or ())
        if continue_final_message and (not messages or messages[-1].get("role") != "assistant"):
            raise TemplateRefused("continue_final_message needs a last message of the assistant")
        conversation = _Conversation(
            messages, _last_question(messages), _thinking(kwargs), add_generation_prompt
        )
        parts = [_RENDERERS[_role(m, i)](conversation, i) for i, m in enumerate(messages)]
        text = BEGINNING + before + "".join(parts)
        return text.removesuffix(END) if continue_final_message else text


@dataclass(frozen=True)
class _Conversation:
    """What the rendering of a message depends on.

    Attributes:
        last_question: the index of the last question; -1 if there is none
        thinking: whether the model thinks about the last question
        prompt: whether the text ends with the beginning of the next answer
    """

    messages: Sequence[Message]
    last_question: int
    thinking: bool
    prompt: bool

    def answer(self, index: int, before: str) -> str:
        """Return what the answer to message `index` begins with: `before`, then a mark."""
        if index + 1 == len(self.messages) and not self.prompt:
            return ""
        return before + (THINK if self.thinking and index >= self.last_question else THOUGHT)


def _system(conversation: _Conversation, index: int) -> str:
    message = conversation.messages[index]
    return _text(message, index) + _extras(message, index)


def _developer(conversation: _Conversation, index: int) -> str:
    message = conversation.messages[index]
    if not (text := _text(message, index)):
        raise TemplateRefused(f"messages[{index}]: a developer message needs content")
    asked = f"{_extras(message, index)}\n\n# The user's message is: {text}"
    return f"{USER}{asked}{conversation.answer(index, ASSISTANT)}"


def _user(conversation: _Conversation, index: int) -> str:
    text = _text(conversation.messages[index], index)
    return f"{USER}{text}{conversation.answer(index, ASSISTANT)}"


def _assistant(conversation: _Conversation, index: int) -> str:
    message = conversation.messages[index]
    calls = _calls(message, index)
    thought = ""
    if conversation.thinking and index > conversation.last_question:
        reasoning = message.get("reasoning_content") or message.get("reasoning") or ""
        if not (reasoning or calls):
            raise TemplateRefused(
                f"messages[{index}]: with thinking, an answer after the last user message needs "
                "reasoning_content or tool_calls; send one of them, or thinking=false in "
                "chat_template_kwargs"
            )
        thought = f"{reasoning}{THOUGHT}"
    return f"{thought}{_text(message, index)}{calls}{END}"


def _tool(conversation: _Conversation, index: int) -> str:
    messages = conversation.messages
    first = index
    while first > 0 and messages[first - 1].get("role") == "tool":
        first -= 1
    called = len(messages[first - 1].get("tool_calls") or ()) if first > 0 else 0
    place = index - first + 1
    if place > called:
        raise TemplateRefused(
            f"messages[{index}] is result {place} of tools, but the message before the results has "
            f"{called} tool_calls"
        )
    if place < called and (index + 1 == len(messages) or messages[index + 1].get("role") != "tool"):
        raise TemplateRefused(
            f"messages[{first - 1}] has {called} tool_calls, but only {place} results follow; "
            "each call needs a message of role tool"
        )
    result = f"\n<result>{_text(messages[index], index)}</result>"
    opened = "\n\n<function_results>" if place == 1 else ""
    if place < called:
        return opened + result
    return f"{opened}{result}\n</function_results>{conversation.answer(index, NEW_PARAGRAPH)}"


_RENDERERS: Mapping[str, Callable[[_Conversation, int], str]] = {
    "system": _system,
    "developer": _developer,
    "user": _user,
    "assistant": _assistant,
    "tool": _tool,
}


def _role(message: Message, index: int) -> str:
    role = message.get("role")
    if role not in _RENDERERS:
        raise TemplateRefused(
            f"messages[{index}].role is {role!r}; this model knows {', '.join(_RENDERERS)}"
        )
    return str(role)


def _thinking(settings: Mapping[str, Any]) -> bool:
    for name in ("thinking", "enable_thinking"):
        if not isinstance(settings.get(name, False), bool):
            raise TemplateRefused(f"{name} of chat_template_kwargs is not true or false")
    return bool(settings.get("thinking") or settings.get("enable_thinking"))


def _last_question(messages: Sequence[Message]) -> int:
    return max((i for i, m in enumerate(messages) if m.get("role") in ASKING), default=-1)


def _with_tools(
    messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
) -> tuple[str, Sequence[Message]]:
    """Return the text before the first message, and the messages, of which one may have tools."""
    if tools and messages and messages[0].get("role") in ("system", "developer"):
        return "", [{**messages[0], "tools": tools}, *messages[1:]]
    return _tools(tools, "tools"), messages


def _text(message: Message, index: int) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if not isinstance(content, str):
        raise TemplateRefused(f"messages[{index}].content is a list; this model takes text")
    return content


def _extras(message: Message, index: int) -> str:
    """Return the tools of a message and the schema that it asks answers to have."""
    schema = message.get("response_format")
    return _tools(message.get("tools") or (), f"messages[{index}].tools") + (
        f"\n\n{RESPONSE_FORMAT}{_json(schema)}" if schema else ""
    )


def _tools(tools: Sequence[Mapping[str, Any]], where: str) -> str:
    schemas = "\n".join(_json(_function(tool, where)) for tool in tools)
    return f"\n\n{PREAMBLE}{schemas}\n</functions>\n" if schemas else ""


def _calls(message: Message, index: int) -> str:
    where = f"messages[{index}].tool_calls"
    functions = [_function(call, where) for call in message.get("tool_calls") or ()]
    if not functions:
        return ""
    invocations = "\n".join(
        f'<{DSML}invoke name="{f.get("name")}">\n{_parameters(f, where)}\n</{DSML}invoke>'
        for f in functions
    )
    return f"\n\n<{DSML}function_calls>\n{invocations}\n</{DSML}function_calls>"


def _parameters(function: Mapping[str, Any], where: str) -> str:
    arguments = function.get("arguments")
    try:
        found = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError as e:
        raise TemplateRefused(f"{where}: arguments are not JSON: {e}") from e
    if not isinstance(found, Mapping):
        raise TemplateRefused(f"{where}: arguments are not a JSON object")
    return "\n".join(
        f'<{DSML}parameter name="{name}" string="true">{value}</{DSML}parameter>'
        if isinstance(value, str)
        else f'<{DSML}parameter name="{name}" string="false">{_json(value)}</{DSML}parameter>'
        for name, value in found.items()
    )


def _function(holder: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    function = holder.get("function")
    if not isinstance(function, Mapping):
        raise TemplateRefused(f"{where}: an entry has no function")
    return function


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
