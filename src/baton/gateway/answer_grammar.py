"""The grammar of a chat's answer: of its calls or its content, behind the model's reasoning."""

from functools import partial

from baton.core.messages import Grammar
from baton.gateway.faults import refuse
from baton.gateway.parsers import AnswerFrame
from baton.gateway.schema import ChatBody
from baton.gateway.structured import GrammarMaker, wanted
from baton.gateway.tool_choice import ToolUse
from baton.gateway.tool_grammar import can_be_strict, required_calls, strict_calls


async def answer_grammar(
    body: ChatBody, use: ToolUse, grammars: GrammarMaker, frame: AnswerFrame, *, client: str
) -> Grammar | None:
    """Return the grammar of the answer to a chat; None if any answer will do.

    With `tool_choice` = `auto`, content that must have a structure comes before strict functions:
    such an answer has no calls.

    Raises:
        HttpFault: 400, the message names the field and what is wrong with it; 429 or 503, checks of
            other grammars come first
    """
    structure = wanted(body)
    if use.forced and structure is not None:
        raise refuse(
            f"tool_choice and {structure.field} both say what the answer must be; give one of them",
            param=structure.field,
        )
    tools, native, framed = use.callable or (), use.native, frame.thinking.value
    if structure is not None:
        return await grammars.of(
            body, client=client, after=frame.after, around=frame.around_content, framed=framed
        )
    single = use.most_calls == 1
    if native is not None and use.forced:
        text = partial(required_calls, tools, native, added=frame.added, single=single)
    elif native is not None and can_be_strict(tools, native):
        text = partial(strict_calls, tools, native, added=frame.added)
    else:
        return None
    return await grammars.made(
        "tools",
        lambda: frame.around_calls(text()),
        said=("tools", tools, use.forced, single, framed),
        client=client,
        after=frame.after,
    )
