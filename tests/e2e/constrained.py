"""Constrained requests for tests of whole services: a model that reasons, requests drawn from seeds,
and streams that a test can look at while they run."""

import json
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.e2e.service import Service
from tests.grammar.walk import wrong
from tests.tiny import CHAT_TEMPLATE, VOCABULARY, make_tiny
from tokenizers import Tokenizer

from baton.dev.schemas import schema

THINK, THINK_END = VOCABULARY, VOCABULARY + 1
MOST = 100  # tokens of an answer
# of baton.dev.schemas: twenty whose answers are long enough to be cut in two
SEEDS = (3, 5, 6, 9, 10, 11, 13, 16, 19, 23, 25, 28, 32, 33, 34, 35, 39, 40, 43, 49)
CLOSE_BIAS = 3.0  # of what closes strings, lists and objects, so that answers end


def make_thinker(path: Path) -> Path:
    """A random model whose prompts open reasoning, and whose vocabulary has the token that ends
    it."""
    make_tiny(path, "llama", vocab_size=VOCABULARY + 2)
    file = str(path / "tokenizer.json")
    tokenizer = Tokenizer.from_file(file)
    tokenizer.add_special_tokens(["<think>", "</think>"])
    assert tokenizer.token_to_id("</think>") == THINK_END
    tokenizer.save(file)
    settings = json.loads((path / "tokenizer_config.json").read_text())
    begun = "<|im_start|>assistant\n"
    settings["chat_template"] = CHAT_TEMPLATE.replace(begun, begun + "<think>\n")
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


@dataclass(frozen=True)
class Case:
    """One request, by its name."""

    name: str
    path: str
    body: dict[str, Any]
    schema: Any
    reasons: bool = False


@dataclass(frozen=True)
class Answer:
    """What was said to a case."""

    ids: list[int]
    text: str
    why: str


def compact(schema: Any) -> dict[str, Any]:
    """A random model would write white space most of the time."""
    return {"json": schema, "disable_any_whitespace": True}


def drawn_schema(seed: int, *, closing: Sequence[int]) -> tuple[Case, Case]:
    """Requests with the schema of a seed: a greedy one and a sampled one. Prompts differ, so that
    nothing is shared."""
    _, drawn = schema(seed)
    common = {
        "model": "m",
        "prompt": [(7 * seed + i) % 200 + 1 for i in range(40)],
        "max_tokens": MOST,
        "structured_outputs": compact(drawn),
        "logit_bias": {str(token): CLOSE_BIAS for token in closing},
        "return_token_ids": True,
    }
    path = "/v1/completions"
    return (
        Case(f"{seed} greedy", path, common | {"temperature": 0}, drawn),
        Case(f"{seed} sampled", path, common | {"temperature": 1.0, "seed": seed}, drawn),
    )


def reasoning(seed: int, schema: Any, *, bias: float) -> Case:
    """A chat whose answer has a structure behind reasoning, which ends the sooner the larger the
    bias of the token that ends it."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": f"Question {seed}"}],
        "max_tokens": MOST,
        "structured_outputs": compact(schema),
        "logit_bias": {str(THINK_END): bias},
        "temperature": 1.0,
        "seed": seed,
        "return_token_ids": True,
    }
    return Case(f"reasoning {seed}", "/v1/chat/completions", body, schema, reasons=True)


def ask(service: Service, case: Case) -> Answer:
    """The answer to a case, which is not streamed."""
    said = service.http.post(case.path, json=case.body)
    assert said.status_code == 200, (case.name, said.text)
    choice = said.json()["choices"][0]
    text = choice["message"]["content"] if case.reasons else choice["text"]
    return Answer(choice["token_ids"], text, choice["finish_reason"])


def ask_all(service: Service, cases: Sequence[Case], *, at_once: int) -> list[Answer]:
    """The answers to cases, so many at once."""
    with ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(lambda case: ask(service, case), cases))


def assert_right(case: Case, answer: Answer) -> None:
    """An answer that has ended follows its schema."""
    if answer.why == "stop":
        assert wrong(case.schema, answer.text) is None, (case.name, answer.text)


def inside(case: Case, ids: Sequence[int]) -> int:
    """How many of an answer's tokens its grammar has drawn."""
    if not case.reasons:
        return len(ids)
    return len(ids) - ids.index(THINK_END) - 1 if THINK_END in ids else 0


@dataclass
class Stream:
    """A streamed answer: its tokens until now, and all of them."""

    case: Case
    ids: list[int] = field(default_factory=list)
    all: Future[list[int]] = field(default_factory=Future)

    def read(self, url: str) -> None:
        """Read it to its end."""
        body = self.case.body | {"stream": True}
        try:
            with httpx.stream("POST", url + self.case.path, json=body, timeout=60) as stream:
                for line in stream.iter_lines():
                    if line.startswith("data: {"):
                        event = json.loads(line[6:])
                        assert "error" not in event, (self.case.name, event)
                        self.ids += event["choices"][0].get("token_ids") or []
            self.all.set_result(self.ids)
        except (AssertionError, httpx.HTTPError) as error:
            self.all.set_exception(error)


@contextmanager
def streams(service: Service, cases: Sequence[Case]) -> Iterator[list[Stream]]:
    """Streams that have begun, all at once; they have ended when the context has."""
    made = [Stream(case) for case in cases]
    url = f"http://127.0.0.1:{service.port}"
    threads = [threading.Thread(target=stream.read, args=(url,)) for stream in made]
    for thread in threads:
        thread.start()
    try:
        yield made
    finally:
        for thread in threads:
            thread.join(90)
