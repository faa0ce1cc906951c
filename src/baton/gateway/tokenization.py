"""The answers of /tokenize and /detokenize, as vLLM has them."""

import msgspec

from baton.core.ids import TokenId
from baton.gateway.faults import refuse
from baton.gateway.schema import TokenizeBody


class Tokenized(msgspec.Struct, frozen=True):
    """POST /tokenize. `max_model_len` is null until a worker has registered."""

    count: int
    max_model_len: int | None
    tokens: tuple[TokenId, ...]
    # the tokens as the tokenizer's vocabulary writes them (with "Ġ" for a space, say), if wanted
    token_strs: tuple[str, ...] | None


class Detokenized(msgspec.Struct, frozen=True):
    """POST /detokenize: the text, with special tokens."""

    prompt: str


def require_one_prompt(body: TokenizeBody) -> None:
    """Check that there is either a prompt or messages, and no field that fits only the other.

    Raises:
        HttpFault: 400
    """
    if (body.prompt is None) == (body.messages is None):
        raise refuse(
            "prompt and messages are both missing; one of them is needed"
            if body.prompt is None
            else "prompt and messages are both given; only one of them can be tokenized",
            param="prompt",
        )
    if body.messages is not None and body.add_special_tokens:
        raise refuse(
            "add_special_tokens = true is not supported with messages: the chat template writes "
            "their special tokens",
            param="add_special_tokens",
        )
