"""A streamed message and an undivided one have the same blocks, however the answer is divided."""

import itertools
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from baton.core.door import Emit, RequestId
from baton.core.ids import TokenIndex
from baton.core.messages import FinishReason
from baton.gateway.exchange import Exchange, Streamed, Style, Undivided
from baton.gateway.forms import Heading
from baton.gateway.messages_form import MessageForm
from baton.gateway.parsers import load_parsers
from baton.gateway.prompts import ChatPrompt
from baton.gateway.settings import HttpSettings
from baton.gateway.stream import TextStream
from baton.gateway.tokenizer import Tokenizer
from baton.gateway.tool_choice import ToolUse

from .fake_door import drawn
from .messages_client import ANSWER, FUNCTIONS, NOW, ids
from .templates import talker


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return talker(tmp_path_factory.mktemp("talker"))


# What models write, in any order of its kinds.
WRITTEN = [
    ANSWER,
    "plain text, é",
    "",
    "  \n ",
    f"Hi {NOW} there, {NOW}\n{NOW} and <think>hm</think> then",
    "<think>a</think>b<think>c</think>d",
    f"<think>a</think>{NOW}",
    f"<tool_call>{{</tool_call>b{NOW}",
    '<think>a</think>b<tool_call>{"name": "now", "arg',
    "<think>no end",
]


class Written:
    """The answers to one prompt, as the exchange of a request makes them of tokens."""

    def __init__(self, tokenizer: Tokenizer, *, parsed: bool = True, reasoning: bool = True):
        self._tokenizer, self._reasoning = tokenizer, reasoning
        parser = "auto" if parsed else "none"
        settings = HttpSettings(model="tiny", tool_call_parser=parser, reasoning_parser=parser)
        self._parsers = load_parsers(tokenizer, settings)

    def answer(self, style: type[Style], pieces: Sequence[Sequence[int]]) -> bytes:
        use = ToolUse(shown=tuple(FUNCTIONS), callable=tuple(FUNCTIONS))
        reading = self._parsers.reading(
            ChatPrompt((), "", ""),
            use,
            next_seed=itertools.count().__next__,
            streams=style is Streamed,
        )
        stream = TextStream(
            index=0,
            choice=0,
            prompt=(),
            detokenizer=self._tokenizer.detokenizer((), kept=reading.kept),
            stops=(),
            include_stop=False,
            min_tokens=0,
            stop_token_ids=frozenset(),
            quiet=frozenset(self._tokenizer.eos_ids),
            scored=False,
            reader=None if reading.make is None else reading.make(),
        )
        heading = Heading(
            id="msg_1",
            created=0,
            model="tiny",
            usage=False,
            running_usage=False,
            token_ids=False,
            logprobs=None,
            prompt_logprobs=None,
            temperature=1.0,
            top_p=1.0,
            reasoning=self._reasoning,
        )
        exchange = Exchange(
            style(MessageForm(heading, self._tokenizer)), [stream], id="", max_pending_bytes=1 << 20
        )
        for piece in pieces:
            tokens = tuple(map(drawn, piece))
            exchange.emit(stream, Emit(RequestId(1), TokenIndex(stream.count), tokens, 0))
        exchange.finish(stream, FinishReason.STOP)
        return exchange.take()

    def whole(self, pieces: Sequence[Sequence[int]]) -> dict[str, Any]:
        return json.loads(self.answer(Undivided, pieces))

    def joined(self, pieces: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The message that the events of a stream add up to."""
        return joined(self.answer(Streamed, pieces).decode())


def joined(text: str) -> dict[str, Any]:
    message: dict[str, Any] = {}
    opened = False
    for part in text.split("\n\n")[:-1]:
        event = json.loads(part.split("data: ", 1)[1])
        content = message.get("content")
        match event:
            case {"type": "message_start", "message": message}:
                pass
            case {"type": "content_block_start", "index": index, "content_block": block}:
                assert not opened
                assert index == len(content)
                content.append(block | ({"input": ""} if "input" in block else {}))
                opened = True
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                assert opened
                assert index == len(content) - 1
                kind = delta.pop("type").removesuffix("_delta")
                ((_, added),) = delta.items()
                assert added or kind == "signature"
                content[-1]["input" if kind == "input_json" else kind] += added
            case {"type": "content_block_stop", "index": index}:
                assert opened
                assert index == len(content) - 1
                if "input" in content[-1]:
                    content[-1]["input"] = json.loads(content[-1]["input"])
                opened = False
            case {"type": "message_delta", "delta": stop, "usage": usage}:
                message |= stop | {"usage": usage}
            case {"type": "message_stop"}:
                assert not opened
            case other:
                raise AssertionError(other)
    return message


@pytest.mark.parametrize("text", WRITTEN)
@pytest.mark.parametrize("parsed", [True, False])
def test_deltas_add_up_to_the_document_wherever_the_answer_is_cut(tokenizer, text, parsed):
    tokens = ids(text + "<|im_end|>")
    written = Written(tokenizer, parsed=parsed)
    expected = written.whole([tokens])
    every = [[t] for t in tokens]
    assert written.whole(every) == expected
    assert written.joined(every) == expected
    for i in range(1, len(tokens)):
        assert written.joined([tokens[:i], tokens[i:]]) == expected


def test_arguments_come_as_the_model_writes_them(tokenizer):
    text = Written(tokenizer).answer(Streamed, [[t] for t in ids(ANSWER)]).decode()
    added = re.findall(r'"partial_json":"((?:\\.|[^"])*)"', text)
    assert len(added) > 10
    assert "" not in added


def test_blocks_come_in_the_order_in_which_the_model_wrote_them(tokenizer):
    blocks = Written(tokenizer).whole([ids(WRITTEN[4])])["content"]
    assert [b["type"] for b in blocks] == ["text", "tool_use"] * 2 + [
        "tool_use",
        "text",
        "thinking",
        "text",
    ]


@pytest.mark.parametrize("style", ["whole", "joined"])
def test_thinking_that_is_not_shown_leaves_one_block_of_text(tokenizer, style):
    written = Written(tokenizer, reasoning=False)
    for tokens in ([ids("a<think>b</think>c")], [[t] for t in ids("a<think>b</think>c")]):
        message = getattr(written, style)(tokens)
        assert message["content"] == [{"type": "text", "text": "ac"}]
