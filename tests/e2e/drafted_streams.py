"""Streams of every kind of request, to be compared with and without drafts."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
from tests.e2e.agents import FUNCTIONS
from tests.e2e.constrained import CLOSE_BIAS, SEEDS, compact

from baton.dev.schemas import schema

SEEDED = {"temperature": 0.7, "top_p": 0.95}
NAMED = {"tool_choice": {"type": "function", "function": {"name": "add"}}}
LONGEST = 60  # tokens of most answers
# what a request asks for, by its name; each comes greedy and seeded
KINDS: Mapping[str, Mapping[str, Any]] = {
    "plain": {"ignore_eos": True},
    "repetition": {"ignore_eos": True, "repetition_penalty": 1.1, "frequency_penalty": 0.1},
    "presence": {"ignore_eos": True, "presence_penalty": 0.4, "min_tokens": 30},
    "logprobs": {"ignore_eos": True, "logprobs": 3},
    "stop": {"stop": ["e", "q"], "min_tokens": 12},
    "stop tokens": {"stop_token_ids": [*range(20, 26)], "min_tokens": 8},
    "bias": {"ignore_eos": True, "logit_bias": {"40": 2.0, "300": 1.0}},
    "choices": {"ignore_eos": True, "n": 3, **SEEDED},
    "schema": {},
    "regex": {"structured_outputs": {"regex": "(ab|ba|[0-9]{3}-){4,12}"}},
    "tool": {"tools": FUNCTIONS, "tool_choice": "required", "max_tokens": 2 * LONGEST},
    "named tool": {"tools": FUNCTIONS, **NAMED, "max_tokens": 2 * LONGEST},
}


@dataclass(frozen=True)
class Ask:
    """One request."""

    name: str
    path: str
    body: Mapping[str, Any]


@dataclass
class Choice:
    """What was streamed of one choice."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    calls: list[list[str]] = field(default_factory=list)  # name and arguments of each
    logprobs: list[Any] = field(default_factory=list)
    why: str | None = None


def asks(count: int, *, closing: Sequence[int]) -> list[Ask]:
    """So many requests, of all kinds in turns. Half of the prompts repeat themselves, and some begin
    as others do.

    closing: the tokens that end strings, lists and objects
    """
    made, names = [], [*KINDS]
    same = np.random.default_rng(1).integers(1, 250, 24).tolist()
    for n in range(count):
        chance = np.random.default_rng(100 + n)
        name = names[n % len(names)]
        body: dict[str, Any] = {"model": "m", "stream": True, "return_token_ids": True}
        body |= {"max_tokens": LONGEST, "seed": n, **KINDS[name]}
        if n // len(names) % 2 == 0:
            body |= SEEDED
        elif name != "choices":
            body |= {"temperature": 0}
        if name == "schema":
            _, drawn = schema(SEEDS[n // len(names) % len(SEEDS)])
            body |= {"structured_outputs": compact(drawn)}
            body |= {"logit_bias": {str(token): CLOSE_BIAS for token in closing}}
        if "tools" in body:
            text = f"Add {n} and {n + 1}, and add them again, and say it. " * (1 + n % 2)
            body |= {"messages": [{"role": "user", "content": text}]}
            made.append(Ask(f"{n}, {name}", "/v1/chat/completions", body))
            continue
        own = chance.integers(1, 250, int(chance.integers(5, 12))).tolist()
        own *= 4 if chance.random() < 0.5 else 1
        body |= {"prompt": [*(same if chance.random() < 0.25 else []), *own]}
        made.append(Ask(f"{n}, {name}", "/v1/completions", body))
    return made


class Streams:
    """Requests of one service, so many at once.

    Attributes:
        heard: by request, what has come of its choices
    """

    def __init__(self, url: str, asks: Sequence[Ask]) -> None:
        self._url, self.asks = url, asks
        self.heard: dict[str, dict[int, Choice]] = {ask.name: {} for ask in asks}

    def said(self) -> int:
        """Count the tokens that have come so far."""
        return sum(len(c.ids) for heard in [*self.heard.values()] for c in [*heard.values()])

    def run(self, at_once: int) -> dict[str, dict[int, Choice]]:
        """Ask for all of them, and return all that was said."""
        with ThreadPoolExecutor(at_once) as pool:
            list(pool.map(self._stream, self.asks))
        return self.heard

    def _stream(self, ask: Ask) -> None:
        heard = self.heard[ask.name]
        with httpx.stream("POST", self._url + ask.path, json=ask.body, timeout=150) as stream:
            assert stream.status_code == 200, (ask, stream.read())
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, (ask.name, event)
                    for said in event["choices"]:
                        _take(heard.setdefault(said["index"], Choice()), said)


def _take(choice: Choice, said: Mapping[str, Any]) -> None:
    choice.ids += said.get("token_ids") or []
    delta = said.get("delta", {})
    choice.text += said.get("text") or delta.get("content") or ""
    for call in delta.get("tool_calls") or []:
        if call["index"] == len(choice.calls):
            choice.calls.append([call["function"]["name"], ""])
        choice.calls[call["index"]][1] += call["function"].get("arguments") or ""
    if said.get("logprobs"):
        logprobs = said["logprobs"]
        choice.logprobs += zip(logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True)
    choice.why = said.get("finish_reason") or choice.why
