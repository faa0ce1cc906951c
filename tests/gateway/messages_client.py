"""Anthropic's client, and models that write what a script says."""

import asyncio

import anthropic
import httpx2

from baton.core.messages import FinishReason
from baton.gateway.door import Capacity
from baton.gateway.tokenizer import Tokenizer

from .fake_door import FakeDoor
from .rig import make_app
from .templates import vocabulary_with_marks
from .written_answers import TOOLS as FUNCTIONS

MESSAGES = "/v1/messages"
HI = {"role": "user", "content": "hi"}
ASKED = {"model": "tiny", "max_tokens": 900, "messages": [HI]}
TOOLS = [
    {
        "name": f["function"]["name"],
        "input_schema": f["function"].get("parameters", {"type": "object"}),
    }
    for f in FUNCTIONS
]
ANSWER = (
    '<think>\nAh, é\n</think>\n\nI look.\n<tool_call>\n{"name": "get_weather", "arguments": '
    '{"city": "Genève", "days": 3}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": {}}\n'
    "</tool_call>"
)
NOW = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
VOCABULARY = vocabulary_with_marks()


def ids(text: str) -> list[int]:
    return VOCABULARY.encode(text, add_special_tokens=False).ids


def script(text: str, *, each: int = 1, reason: FinishReason = FinishReason.STOP) -> list[object]:
    """A text, so many tokens at a time; <|im_end|> is the end token."""
    tokens = ids(text + "<|im_end|>")
    return [tokens[i : i + each] for i in range(0, len(tokens), each)] + [reason]


def writing(text: str, **how) -> FakeDoor:
    door = FakeDoor()
    door.limits = Capacity(max_model_len=4096, pool_tokens=8192)
    door.script = script(text, **how)
    return door


class ScriptedModel(FakeDoor):
    """Answers each request with the next of some texts."""

    def __init__(self, *texts: str) -> None:
        super().__init__()
        self.limits = Capacity(max_model_len=4096, pool_tokens=8192)
        self._texts = list(texts)

    def submit(self, submit, hear):
        self.script = script(self._texts.pop(0))
        super().submit(submit, hear)


def client(app) -> anthropic.AsyncAnthropic:
    web = httpx2.AsyncClient(transport=httpx2.ASGITransport(app))
    return anthropic.AsyncAnthropic(
        base_url="http://gateway", api_key="none", max_retries=0, http_client=web
    )


def asked(door: FakeDoor, tokenizer: Tokenizer, **body):
    """One answer, or the events of a stream."""

    async def go():
        async with client(make_app(door, tokenizer=tokenizer)) as http:
            answer = await http.messages.create(**ASKED | body)
            return [event async for event in answer] if body.get("stream") else answer

    return asyncio.run(go())


def accumulated(door: FakeDoor, tokenizer: Tokenizer, **body):
    """What the client's own accumulator makes of a stream."""

    async def go():
        async with (
            client(make_app(door, tokenizer=tokenizer)) as http,
            http.messages.stream(**ASKED | body) as stream,
        ):
            return await stream.get_final_message()

    return asyncio.run(go())
