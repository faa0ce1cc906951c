"""Turns a request body into prompt ids: templates, tokenizing, and checks of the result."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from baton.core.ids import TokenId
from baton.gateway.conversation import continues_last, plain_messages, template_options
from baton.gateway.faults import refuse
from baton.gateway.schema import ChatMessage, TemplateBody
from baton.gateway.template import TemplateRefused
from baton.gateway.tokenizer import Tokenizer

Prompt = tuple[TokenId, ...]


class ChatPrompt(msgspec.Struct, frozen=True):
    """The prompt of a chat.

    Attributes:
        tokens: what the model gets
        text: the same as text
        begun: the part of `text` that belongs to the answer: what the template writes after the
            last message, or the message that is continued; empty if nobody asked for it
    """

    tokens: Prompt
    text: str
    begun: str


class Prompter:
    """Makes prompts for one model. Long texts are tokenized on a thread, so that other requests'
    tokens keep flowing."""

    def __init__(self, tokenizer: Tokenizer, *, inline_chars: int, max_prompts: int) -> None:
        self._tokenizer = tokenizer
        self._inline_chars = inline_chars
        self._max_prompts = max_prompts

    async def chat(
        self,
        messages: Sequence[ChatMessage],
        body: TemplateBody,
        *,
        tools: Sequence[Mapping[str, Any]] | None,
        parsed: bool,
    ) -> ChatPrompt:
        """Return the prompt of a conversation. Raises HttpFault.

        Args:
            messages: of the request
            body: what else it says to the template
            tools: those that the template hears of; None = of none
            parsed: whether `begun` is needed
        """
        param = body.called("messages")
        plain, options = plain_messages(messages), template_options(body)
        to_continue = continues_last(body, messages[-1])
        adds_prompt = body.add_generation_prompt is not False
        try:
            template = self._tokenizer.templates.choose(tools=tools is not None)
            render = partial(template.render, plain, tools=tools, **options)
            if to_continue:
                text = render(add_generation_prompt=False, continue_final_message=True)
                begun = plain[-1]["content"]
            else:
                text = render(add_generation_prompt=adds_prompt)
                without = text
                if parsed and adds_prompt:
                    without = render(add_generation_prompt=False)
                begun = _behind_common(text, without)
        except TemplateRefused as e:
            raise refuse(f"the chat template does not take these messages: {e}", param=param) from e
        tokens = await self._encode(self._tokenizer.encode_chat, text, param=param)
        return ChatPrompt(_require_some(tokens, param), text, begun)

    async def completion(
        self, prompt: str | list[int] | list[str] | list[list[int]], *, add_special_tokens: bool
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
                await self.tokens(one, add_special_tokens=add_special_tokens)
                if isinstance(one, str)
                else self._known(one)
            )
            found.append(_require_some(ids, "prompt"))
        return tuple(found)

    async def tokens(self, text: str, *, add_special_tokens: bool) -> Prompt:
        """Return the token ids of a text, which may be empty. Raises HttpFault."""
        encode = self._tokenizer.encode if add_special_tokens else self._tokenizer.encode_chat
        return await self._encode(encode, text, param="prompt")

    async def text(self, tokens: Sequence[int]) -> str:
        """Return the text of token ids, with special tokens. Raises HttpFault."""
        self._require_known(tokens, "tokens")
        decode = partial(self._tokenizer.decode, skip_special_tokens=False)
        if len(tokens) <= self._inline_chars:
            return decode(tokens)
        return await asyncio.to_thread(decode, tokens)

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


def _behind_common(text: str, other: str) -> str:
    """Return what is left of `text` behind its longest common beginning with `other`."""
    if text.startswith(other):
        return text[len(other) :]
    common = next(i for i, (a, b) in enumerate(zip(text, other, strict=False)) if a != b)
    return text[common:]


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
