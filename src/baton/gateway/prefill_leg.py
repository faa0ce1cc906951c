"""`kv_transfer_params`: what proxies in front of two vLLM engines ask of each.

    proxy ──do_remote_decode──▶ gateway     the prefill leg: nothing is computed, the answer is empty
      └───do_remote_prefill───▶ gateway     the decode leg: the request, served as any other

Such a proxy asks a prefill engine first, then a decode engine with what the first one said. Both
are this gateway, which has both workers begin at once when the second leg comes. So nothing is held
between the legs, and a body names no memory.
"""

from typing import Any

from baton.gateway.ask import Ask
from baton.gateway.faults import refuse
from baton.gateway.forms import (
    ChatAnswer,
    ChatChoice,
    ChatMessageOut,
    CompletionAnswer,
    CompletionChoice,
    ForDecode,
    Heading,
    Usage,
    counted,
)
from baton.gateway.schema import GenerationBody

FIELD = "kv_transfer_params"
LENGTH = "length"  # why it ends


def is_prefill_leg(body: GenerationBody) -> bool:
    """Whether a request asks for a prompt alone, which another request will go on from.

    Raises:
        HttpFault: 400, `kv_transfer_params` says something else, or the answer is to be streamed
    """
    said: dict[str, Any] | None = body.kv_transfer_params
    if not said:
        return False
    prefill = said.get("do_remote_decode") is True
    if not prefill and said.get("do_remote_prefill") is not True:
        raise refuse(
            f"{FIELD} must have do_remote_decode or do_remote_prefill = true, as proxies of two "
            "engines send; leave it out otherwise",
            param=FIELD,
        )
    if prefill and body.stream:
        raise refuse(
            f"{FIELD} with do_remote_decode asks for a prompt alone, so stream must be false",
            param="stream",
        )
    return prefill


def prefilled_chat(heading: Heading, ask: Ask) -> ChatAnswer:
    """Answer the prefill leg of a chat that would be served."""
    nothing = ChatMessageOut("assistant", "")
    return ChatAnswer(
        heading.id,
        "chat.completion",
        heading.created,
        heading.model,
        (ChatChoice(0, nothing, None, LENGTH, None),),
        _usage(ask),
        kv_transfer_params=ForDecode(),
    )


def prefilled_completion(heading: Heading, ask: Ask) -> CompletionAnswer:
    """Answer the prefill leg of a completion that would be served."""
    return CompletionAnswer(
        heading.id,
        "text_completion",
        heading.created,
        heading.model,
        (CompletionChoice(0, "", finish_reason=LENGTH, stop_reason=None),),
        _usage(ask),
        kv_transfer_params=ForDecode(),
    )


def _usage(ask: Ask) -> Usage:
    return counted(sum(len(order.prompt) for order in ask.orders if order.choice == 0), 0, 0)
