"""Ids of tool calls in Anthropic's form.

A request that continues an answer gets the call's own id back, because some chat templates write it
or take ids of one form only.
"""

OURS, ANTHROPICS = "call_", "toolu_"


def tool_use_id(call_id: str) -> str:
    """Return the id of a call as a tool_use block has it."""
    return ANTHROPICS + call_id.removeprefix(OURS)


def call_id(tool_use_id: str) -> str:
    """Return the id of a tool_use block as a chat template gets it."""
    return tool_use_id.removeprefix(ANTHROPICS)
