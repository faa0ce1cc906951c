"""What a chat request says about tools: which the prompt shows, and which may be called."""

from collections.abc import Mapping
from typing import Any

import msgspec

from baton.gateway.faults import refuse
from baton.gateway.neutral import brief
from baton.gateway.response_formats import AnswerFormat, Native
from baton.gateway.schema import ChatBody, NamedTool, TemplateBody

Tools = tuple[Mapping[str, Any], ...]


class ToolUse(msgspec.Struct, frozen=True):
    """The tools of one request.

    Attributes:
        shown: tools of which the chat template hears; None = of none
        callable: tools that the answer may call; None = calls are not looked for
        forced: the answer must consist of calls of `callable`
        named: `tool_choice` names one function
        most_calls: later calls of the answer are dropped; None = all count
        native: how a grammar makes the model write calls; None = no grammar does
    """

    shown: Tools | None = None
    callable: Tools | None = None
    forced: bool = False
    named: bool = False
    most_calls: int | None = None
    native: Native | None = None


def listed_tools(body: TemplateBody) -> Tools:
    """Return the tools of a request as it has them."""
    return tuple(t.model_dump(exclude_unset=True) for t in body.tools or ())


def use_of_tools(
    body: ChatBody, *, tool_format: AnswerFormat | None, exclude_when_none: bool
) -> ToolUse:
    """Judge `tools`, `tool_choice` and `parallel_tool_calls`.

    Args:
        body: the request
        tool_format: how the model writes calls; None = they cannot be parsed
        exclude_when_none: with `tool_choice` = `none`, the prompt does not show the tools

    Raises:
        HttpFault: 400; the message names the field and what is missing
    """
    tools = listed_tools(body)
    choice = body.tool_choice or "auto"
    if not tools:
        if choice not in ("auto", "none"):
            raise refuse(
                f"tool_choice = {_spelled(choice)} needs tools; the request has none",
                param="tool_choice",
            )
        return ToolUse()
    if choice == "none":
        return ToolUse(shown=None if exclude_when_none else tools)
    if tool_format is None:
        raise refuse(
            "tools are not supported: Baton does not know how this model writes calls; start the "
            "gateway with --tool-call-parser NAME, or send tool_choice = none",
            param="tools",
        )
    most_calls = 1 if body.parallel_tool_calls is False else None
    if choice == "auto":
        native = tool_format.native
        return ToolUse(shown=tools, callable=tools, most_calls=most_calls, native=native)
    if tool_format.native is None:
        raise refuse(
            f"tool_choice = {_spelled(choice)} is not supported for the format "
            f"{tool_format.names[0]}; supported: auto, none",
            param="tool_choice",
        )
    called, named = tools, False
    if isinstance(choice, NamedTool):
        called, named, most_calls = _named(tools, choice.function.name), True, 1
    return ToolUse(
        shown=tools,
        callable=called,
        forced=True,
        named=named,
        most_calls=most_calls,
        native=tool_format.native,
    )


def _named(tools: Tools, name: str) -> Tools:
    found = tuple(t for t in tools if t["function"]["name"] == name)
    if not found:
        names = ", ".join(t["function"]["name"] for t in tools)
        raise refuse(
            f"tool_choice names the function {brief(name)}, which is not one of tools: "
            f"{names[:400]}",
            param="tool_choice",
        )
    return found[:1]


def _spelled(choice: str | NamedTool) -> str:
    return brief(choice if isinstance(choice, str) else choice.model_dump(exclude_unset=True))
