"""Agents with two tools and three turns, by the clients that people use.

With a random model what is said in calls is held together by the grammar alone; with a scripted one
the model itself decides what it says, in the formats of real models.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.agents import AGENTS, Ask, Turn
from tests.e2e.service import Service, wait_for
from tests.tiny import END, START
from tokenizers import Tokenizer

POOLS = ("--kv-pages", "300")
TEMPLATE = """{% if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}
<tool_call>
{{ call.function | tojson }}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
CLIENTS = [*AGENTS]
pytestmark = pytest.mark.timeout(180)


def talk(client: str, url: str, asks: tuple[Ask, ...], *, stream: bool) -> list[Turn]:
    """What the model says in so many turns."""
    if client == "langchain":
        pytest.importorskip("langchain_openai")
    return AGENTS[client](url, asks, stream)


def gateway_of(directory: Path, tiny: Path, *, parser: str) -> Service:
    """A service whose gateway has started."""
    (directory / "tools.jinja").write_text(TEMPLATE)
    service = Service(directory, tiny)
    template = ("--chat-template", str(directory / "tools.jinja"))
    service.start_gateway(*template, "--tool-call-parser", parser)
    return service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Service]:
    service = gateway_of(tmp_path_factory.mktemp("agents"), tiny, parser="hermes")
    try:
        service.start_worker("prefill", *POOLS)
        service.start_worker("decode", *POOLS)
        service.wait_ready()
        yield service
        wait_for(lambda: service.ledger()["clean"], seconds=5, why="ledger clean")
    finally:
        service.close()


FORCED = (Ask("required"), Ask("add"), Ask("none", max_tokens=10))


@pytest.mark.parametrize("client", CLIENTS)
def test_forced_calls_of_a_random_model(service: Service, client: str) -> None:
    """A call of any tool, a call of a named one, and an answer."""
    url = f"http://127.0.0.1:{service.port}"
    whole, streamed = (talk(client, url, FORCED, stream=stream) for stream in (False, True))
    assert len(whole[0].calls) == 1
    assert [name for name, _ in whole[1].calls] == ["add"]
    assert not whole[2].calls
    assert whole[2].text
    assert streamed == whole


AUTO = (Ask("auto", max_tokens=400, parallel=True),) * 3
SAID = [
    Turn("", [("weather", {"city": "Rome"})]),
    Turn("", [("weather", {"city": "Oslo"}), ("add", {"a": 1, "b": 2})]),
    Turn("It rains in Rome, <b>and</b> 1 + 2 = 3."),
]
# of a format: what a model writes in the first two turns, and the text before its calls
WRITTEN = {
    "hermes": (
        'I look.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
        '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
    ),
    "qwen3_coder": (
        "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nRome\n</parameter>\n"
        "</function>\n</tool_call>",
        "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n"
        "</tool_call>\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n"
        "<parameter=b>\n2\n</parameter>\n</function>\n</tool_call>",
    ),
    "pythonic": ("[weather(city='Rome')]", '[weather(city="Oslo"), add(a=1, b=2)]'),
    "lfm2": (
        "I look. <|tool_call_start|>[weather(city='Rome')]<|tool_call_end|>",
        '<|tool_call_start|>[weather(city="Oslo"), add(a=1, b=2)]<|tool_call_end|>',
    ),
}


class ScriptedService:
    """A gateway with a worker that says what a model of a format would.

    A prompt has one mark for each message: of the tools, the question, an answer, the results of
    its calls, and the one for the answer to come.
    """

    def __init__(self, directory: Path, tiny: Path, parser: str) -> None:
        self._vocabulary = Tokenizer.from_file(str(tiny / "tokenizer.json"))
        self._prompts = directory / "prompts"
        self._prompts.touch()
        texts = zip((3, 5, 8), (*WRITTEN[parser], SAID[2].text), strict=True)
        said = {marks: [*self._vocabulary.encode(text).ids, END] for marks, text in texts}
        script = {"mark": START, "answers": said, "prompts": str(self._prompts)}
        (directory / "answers.json").write_text(json.dumps(script))
        self.service = gateway_of(directory, tiny, parser=parser)
        flags = ["--interval-ms", "0.5", "--settle-ms", "0"]
        flags += ["--answers", str(directory / "answers.json")]
        self.service.start_other("script", ["-m", "scripted_worker", self.service.control, *flags])
        self.service.wait_ready()

    def prompts(self) -> list[str]:
        """The prompts since the last time."""
        found = [json.loads(line) for line in self._prompts.read_text().splitlines()]
        self._prompts.write_text("")
        return [self._vocabulary.decode(ids, skip_special_tokens=False) for ids in found]


@pytest.fixture(scope="module", params=WRITTEN)
def scripted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, tiny: Path
) -> Iterator[tuple[str, ScriptedService]]:
    made = ScriptedService(tmp_path_factory.mktemp("scripted"), tiny, request.param)
    yield request.param, made
    made.service.close()


@pytest.mark.parametrize("client", CLIENTS)
def test_a_model_calls_what_it_chooses(scripted: tuple[str, ScriptedService], client: str) -> None:
    """Whole and streamed; and every client's history becomes the prompts that the first one's
    becomes."""
    parser, script = scripted
    url = f"http://127.0.0.1:{script.service.port}"
    before = "" if parser == "pythonic" else "I look."
    expected = [Turn(before, SAID[0].calls), *SAID[1:]]
    script.prompts()
    assert talk("openai chat", url, AUTO, stream=False) == expected
    prompts = script.prompts()
    assert len(prompts) == 3
    assert "It rains in Rome." in prompts[1], "the result of the first call"
    assert '"city": "Oslo"' in prompts[2], "a call of the second turn"
    for stream in (False, True):
        assert talk(client, url, AUTO, stream=stream) == expected
        assert script.prompts() == prompts
