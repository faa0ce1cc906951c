"""Turns a request body into prompt ids: templates, tokenizing, and checks of the result."""

import asyncio
from collections.abc import Callable, Sequence

from baton.core.ids import TokenId
from baton.gateway.faults import refuse
from baton.gateway.neutral import brief
from baton.gateway.schema import ChatMessage
from baton.gateway.template import TemplateRefused
from baton.gateway.tokenizer import Tokenizer

ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}

Prompt = tuple[TokenId, ...]


class Prompter:
    """Makes prompts for one model. Long texts are tokenized on a thread, so that other requests'
    tokens keep flowing."""

    def __init__(self, tokenizer: Tokenizer, *, inline_chars: int, max_prompts: int) -> None:
        self._tokenizer = tokenizer
        self._inline_chars = inline_chars
        self._max_prompts = max_prompts

    async def chat(self, messages: Sequence[ChatMessage]) -> Prompt:
        """Return the token ids of a conversation. Raises HttpFault."""
        plain = [_plain(i, m) for i, m in enumerate(messages)]
        try:
            text = self._tokenizer.render(plain)
        except TemplateRefused as e:
            raise refuse(
                f"the chat template does not take these messages: {e}", param="messages"
            ) from e
        return _require_some(
            await self._encode(self._tokenizer.encode_chat, text, param="messages"), "messages"
        )

    async def completion(
        self, prompt: str | list[int] | list[str] | list[list[int]]
    ) -> tuple[Prompt, ...]:
        """Return the token ids of every prompt of a completions request. Raises HttpFault."""
        each = split_batch(prompt)
        if len(each) > self._max_prompts:
            raise refuse(
                f"{len(each)} prompts in one request; at most {self._max_prompts} are served",
                param="prompt",
            )
        found = []
        for one in each:
            ids = (
                await self._encode(self._tokenizer.encode, one, param="prompt")
                if isinstance(one, str)
                else self._known(one)
            )
            found.append(_require_some(ids, "prompt"))
        return tuple(found)

    async def _encode(self, encode: Callable[[str], Prompt], text: str, *, param: str) -> Prompt:
        _require_unicode(text, param)
        ids = (
            encode(text)
            if len(text) <= self._inline_chars
            else await asyncio.to_thread(encode, text)
        )
        self._require_known(ids, param)  # a tokenizer may have tokens beyond the model's vocabulary
        return ids

    def _known(self, tokens: list[int]) -> Prompt:
        self._require_known(tokens, "prompt")
        return tuple(map(TokenId, tokens))

    def _require_known(self, tokens: Sequence[int], param: str) -> None:
        top = max(tokens, default=0)
        if top >= self._tokenizer.vocab_size:
            raise refuse(
                f"{param} holds token id {top}; this model's vocabulary ends at "
                f"{self._tokenizer.vocab_size - 1}",
                param=param,
            )


def split_batch(
    prompt: str | list[int] | list[str] | list[list[int]],
) -> list[str] | list[list[int]]:
    """Return one entry for each prompt; a flat list of ids is one prompt.

    Raises:
        HttpFault: 400, the list is empty
    """
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise refuse(
            "prompt is an empty list; it needs at least one token or one text", param="prompt"
        )
    if isinstance(prompt[0], int):
        return [prompt]
    return prompt


def _plain(index: int, message: ChatMessage) -> dict[str, str]:
    where = f"messages[{index}]"
    role = ROLES.get(message.role)
    if role is None:
        raise refuse(
            f"{where}.role = {brief(message.role)} is not supported; supported: {', '.join(ROLES)}",
            param="messages",
        )
    for field in ("tool_calls", "function_call", "audio"):
        if (message.model_extra or {}).get(field):
            raise refuse(
                f"{where}.{field} is not supported; messages have text content only",
                param="messages",
            )
    plain = {"role": role, "content": _text(where, message)}
    return plain if message.name is None else plain | {"name": message.name}


def _text(where: str, message: ChatMessage) -> str:
    if message.content is None:
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


def _require_unicode(text: str, param: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        raise refuse(
            f"{param} holds a lone surrogate at character {e.start}; text must be valid Unicode",
            param=param,
        ) from e


def _require_some(ids: Prompt, param: str) -> Prompt:
    if not ids:
        raise refuse("the prompt is empty; it needs at least one token", param=param)
    return ids
