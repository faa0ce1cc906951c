"""Prompts whose tokens the model was never given."""

import asyncio

import pytest
from tests.gateway.rig import make_tokenizer

from baton.gateway.faults import HttpFault
from baton.gateway.prompts import Prompter
from baton.gateway.schema import ChatBody, ChatMessage


@pytest.mark.parametrize("inline_chars", [0, 1000])
def test_a_text_with_a_token_beyond_the_models_vocabulary_is_refused(inline_chars: int) -> None:
    """It would be looked up beyond the model's embeddings, in a step that is also that of
    others."""
    tokenizer = make_tokenizer()
    prompter = Prompter(tokenizer, inline_chars=inline_chars, max_prompts=1)
    body = ChatBody(messages=[ChatMessage(role="user", content="zz")])
    known = asyncio.run(prompter.completion("zz", add_special_tokens=True))[0]
    tokenizer.vocab_size = max(known)
    for asked, param in (
        (prompter.completion("zz", add_special_tokens=True), "prompt"),
        (prompter.chat(body.messages, body, tools=None, parsed=False), "messages"),
    ):
        with pytest.raises(
            HttpFault, match=f"{param} holds token id .*; this model's vocabulary ends at"
        ) as found:
            asyncio.run(asked)
        assert found.value.status == 400
