"""A real service behind OpenAI's own client: what a user of it types on the first day."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import openai
import pytest
from openai import OpenAI
from tests.e2e.service import Service, split, unified, wait_for
from tests.tiny import END, VOCABULARY

ROOT = Path(__file__).parents[2]
TALK = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Service]:
    with split(
        tmp_path_factory.mktemp("client"),
        tiny,
        prefill=("--kv-pages", "200"),
        decode=("--kv-pages", "200"),
        gateway=("--tool-call-parser", "hermes"),
    ) as s:
        yield s


@pytest.fixture(scope="module")
def client(service: Service) -> OpenAI:
    return OpenAI(
        base_url=f"http://127.0.0.1:{service.port}/v1", api_key="none", max_retries=0, timeout=60
    )


def greedy(client: OpenAI, prompt: object, **fields: object) -> openai.types.Completion:
    return client.completions.create(model="m", prompt=prompt, temperature=0, **fields)


def test_models(client: OpenAI) -> None:
    assert [m.id for m in client.models.list()] == ["m"]
    with pytest.raises(openai.NotFoundError, match=r"'n'.*serves 'm'"):
        client.completions.create(model="n", prompt="a")


def test_a_required_call_is_a_right_one_streamed_and_whole(client: OpenAI) -> None:
    """The model's weights are random, so that it does not write one by itself."""
    days = {"type": "integer", "enum": [1, 2, 3]}
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Bern", "Genève"]}, "days": days},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    asked = {
        "model": "m",
        "messages": TALK,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": parameters}}],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "seed": 1,
    }
    (choice,) = client.chat.completions.create(**asked).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    found = json.loads(call.function.arguments)
    assert (call.function.name, set(found)) == ("f", {"city", "days"})
    assert found["city"] in ("Bern", "Genève")
    with client.chat.completions.stream(**asked) as stream:
        (streamed,) = stream.get_final_completion().choices
    assert streamed.finish_reason == "tool_calls"
    assert streamed.message.tool_calls[0].function.arguments == call.function.arguments


def test_a_chat_is_the_same_streamed_and_whole(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="m", messages=TALK, temperature=0, max_tokens=20)
    stream = client.chat.completions.create(
        model="m",
        messages=TALK,
        temperature=0,
        max_tokens=20,
        stream=True,
        stream_options={"include_usage": True},
    )
    *chunks, last = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage == whole.usage
    assert whole.usage.completion_tokens == 20


def test_logprobs_of_every_token_the_first_included(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="m", messages=TALK, temperature=0, max_tokens=6, logprobs=True, top_logprobs=3
    )
    scored = answer.choices[0].logprobs.content
    assert len(scored) == 6
    assert all(
        len(s.top_logprobs) == 3 and s.top_logprobs[0].logprob == s.logprob <= 0 for s in scored
    )
    plain = greedy(client, "The first runner", max_tokens=6, logprobs=2).choices[0]
    assert len(plain.logprobs.tokens) == len(plain.logprobs.token_logprobs) == 6
    assert all(
        token in plain.text for token in plain.logprobs.tokens if not token.startswith("bytes:")
    )


def test_a_stop_string_ends_the_text_before_it(client: OpenAI) -> None:
    text = greedy(client, "A baton is", max_tokens=24).choices[0].text
    stop = text[8:11]
    stopped = greedy(client, "A baton is", max_tokens=24, stop=[stop]).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.text == text[: text.index(stop)]


def test_choices_of_one_prompt_differ_and_come_again(client: OpenAI) -> None:
    def ask(n: int) -> list[str]:
        answer = client.completions.create(
            model="m", prompt="Write", temperature=1.0, seed=7, n=n, max_tokens=12
        )
        assert [c.index for c in answer.choices] == list(range(n))
        assert answer.usage.completion_tokens == 12 * n
        return [c.text for c in answer.choices]

    two = ask(2)
    assert two[0] != two[1]
    assert ask(2) == two
    assert ask(1) == two[:1]


def test_a_bias_and_a_penalty_reach_the_first_token_and_all_behind_it(
    client: OpenAI, service: Service
) -> None:
    """Prefill draws the first token, decode the others: both must see the bias, and what was drawn
    before."""
    wanted = 65
    fields = {"logit_bias": {str(wanted): 100}, "max_tokens": 8}
    assert service.ids("The first", **fields) == [wanted] * 8
    punished = service.ids("The first", repetition_penalty=100.0, **fields)
    assert punished[0] == wanted
    assert wanted not in punished[1:]
    in_the_prompt = service.ids([70, wanted, 71], repetition_penalty=100.0, **fields)
    assert wanted not in in_the_prompt


def test_min_tokens_holds_the_end_back(client: OpenAI, service: Service) -> None:
    fields = {"logit_bias": {str(END): 100}, "max_tokens": 6}
    assert len(service.ids("The first", **fields)) == 1
    held = service.ids("The first", min_tokens=4, **fields)
    assert len(held) == 5
    assert held[-1] == END
    assert END not in held[:-1]


def test_thirty_two_at_once_say_what_each_says_alone(client: OpenAI) -> None:
    prompts = [f"Request number {i} goes to the next runner" for i in range(32)]
    with ThreadPoolExecutor(32) as pool:
        together = list(
            pool.map(lambda p: greedy(client, p, max_tokens=10).choices[0].text, prompts)
        )
    assert together[::8] == [greedy(client, p, max_tokens=10).choices[0].text for p in prompts[::8]]
    assert len(set(together)) > 16


def test_a_client_that_leaves_or_loses_patience_leaves_nothing(
    client: OpenAI, service: Service
) -> None:
    # greedy: this model never ends by itself then
    stream = greedy(client, "Write a story", max_tokens=2000, stream=True)
    next(iter(stream))
    stream.close()
    with pytest.raises(openai.APITimeoutError):
        greedy(client.with_options(timeout=0.3), "Write a story", max_tokens=2500)
    service.wait_clean(5.0)
    assert greedy(client, "Then", max_tokens=3).usage.completion_tokens == 3


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"max_tokens": 100_000}, "max_tokens = 100000"),
        ({"prompt": [VOCABULARY]}, "320"),
        ({"extra_body": {"guided_json": "{"}}, "guided_json"),
    ],
)
def test_what_cannot_be_served_is_a_typed_error_and_the_next_request_is_served(
    client: OpenAI, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=said):
        client.completions.create(model="m", **({"prompt": "a"} | fields))
    assert greedy(client, "Then", max_tokens=3).usage.completion_tokens == 3


def test_langchain_by_its_openai_path(service: Service, client: OpenAI) -> None:
    library = pytest.importorskip(
        "langchain_openai", reason="LangChain is not installed: pip install 'baton-llm[clients]'"
    )
    url = f"http://127.0.0.1:{service.port}/v1"
    model = library.ChatOpenAI(
        model="m",
        base_url=url,
        api_key="none",
        temperature=0,
        max_tokens=16,
        max_retries=0,
        timeout=60,
    )
    talk = [("system", "Answer in one word."), ("human", "What is the capital of France?")]
    whole = model.invoke(talk)
    plain = [{"role": "system", "content": talk[0][1]}, {"role": "user", "content": talk[1][1]}]
    same = client.chat.completions.create(model="m", messages=plain, temperature=0, max_tokens=16)
    assert whole.content == same.choices[0].message.content
    assert whole.response_metadata["finish_reason"] == "length"
    assert (whole.usage_metadata["input_tokens"], whole.usage_metadata["output_tokens"]) == (
        same.usage.prompt_tokens,
        16,
    )
    chunks = list(model.stream(talk))
    assert len(chunks) > 2
    assert "".join(c.content for c in chunks) == whole.content
    assert [a.content for a in model.batch([talk, talk])] == [whole.content] * 2
    scored = model.bind(logprobs=True, top_logprobs=2).invoke(talk)
    assert len(scored.response_metadata["logprobs"]["content"]) == 16
    with pytest.raises(openai.BadRequestError, match="100000"):
        model.bind(max_tokens=100_000).invoke(talk)


def test_responses_say_what_chats_say(service: Service, client: OpenAI) -> None:
    chat = client.chat.completions.create(model="m", messages=TALK, temperature=0, max_tokens=16)
    asked = {"model": "m", "input": TALK, "temperature": 0, "max_output_tokens": 16}
    whole = client.responses.create(**asked)
    assert whole.output_text == chat.choices[0].message.content
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert whole.usage.input_tokens == chat.usage.prompt_tokens
    events = list(client.responses.create(**asked, stream=True))
    deltas = [e.delta for e in events if e.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text == events[-1].response.output_text
    assert len(deltas) > 2


def test_langchain_by_the_responses_api(service: Service) -> None:
    library = pytest.importorskip(
        "langchain_openai", reason="LangChain is not installed: pip install 'baton-llm[clients]'"
    )
    model = library.ChatOpenAI(
        model="m",
        base_url=f"http://127.0.0.1:{service.port}/v1",
        api_key="none",
        temperature=0,
        max_tokens=16,
        max_retries=0,
        timeout=60,
        use_responses_api=True,
    )
    talk = [("system", "Answer in one word."), ("human", "What is the capital of France?")]
    whole = model.invoke(talk)
    assert whole.text
    assert whole.usage_metadata["output_tokens"] == 16
    assert "".join(chunk.text for chunk in model.stream(talk)) == whole.text
    with pytest.raises(openai.BadRequestError, match="top_p = 2"):
        model.bind(top_p=2).invoke(talk)


def test_everything_that_shapes_a_draw_at_once_is_the_same_split_and_unified(
    service: Service, tmp_path: Path, tiny: Path
) -> None:
    """Prefill draws the first token and decode the others: both must see all of it, and what the
    other has drawn."""
    shaped = {
        "temperature": 0.9,
        "top_p": 0.95,
        "top_k": 60,
        "min_p": 0.2,
        "repetition_penalty": 1.3,
        "presence_penalty": 0.4,
        "frequency_penalty": 0.3,
        "logit_bias": {"65": 3.0, "66": -100.0, str(END): 6.0},
        "min_tokens": 6,
        "max_tokens": 24,
    }
    prompts = [[65 + n, 70, 65 + n, *range(100, 100 + 9 * n)] for n in range(8)]

    def all_of(asked: Service, **fields: object) -> list[list[int]]:
        with ThreadPoolExecutor(8) as pool:
            return list(
                pool.map(lambda n: asked.ids(prompts[n], seed=n, **(shaped | fields)), range(8))
            )

    with unified(tmp_path, tiny, "--kv-pages", "400") as together:
        assert all_of(together) == all_of(service)
    apart = all_of(service)
    assert all(len(ids) >= 6 and END not in ids[:5] and 66 not in ids for ids in apart)
    plain = {
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": None,
        "min_tokens": 0,
    }
    assert all_of(service, **plain) != apart


def test_a_proxy_of_two_vllm_engines_can_stay_in_front(service: Service) -> None:
    """It asks a prefill engine for one token, and a decode engine with what that said; both are the
    gateway."""
    url = f"http://127.0.0.1:{service.port}/v1/completions"
    body = {"model": "m", "prompt": list(range(1, 60)), "max_tokens": 12, "temperature": 0}
    body |= {"return_token_ids": True, "ignore_eos": True}
    right = service.ids(body["prompt"], max_tokens=12, ignore_eos=True)
    asks = {"do_remote_decode": True, "do_remote_prefill": False, "remote_block_ids": None}
    for _ in range(2):
        leg = body | {"kv_transfer_params": asks, "stream": False, "max_tokens": 1}
        first = httpx.post(url, json=leg, timeout=60).raise_for_status().json()
        second = body | {"kv_transfer_params": first["kv_transfer_params"], "stream": True}
        found: list[int] = []
        with httpx.stream("POST", url, json=second, timeout=60) as stream:
            for line in stream.iter_lines():
                if line.startswith("data: {"):
                    found += json.loads(line[6:])["choices"][0]["token_ids"]
        assert found == right
    service.wait_clean()


def test_the_curl_examples_of_the_readme_answer(service: Service) -> None:
    examples = re.findall(r"^(curl .*?[^\\])$", (ROOT / "README.md").read_text(), flags=re.M | re.S)
    assert examples
    for example in examples:
        typed = example.replace("127.0.0.1:8000", f"127.0.0.1:{service.port}").replace(
            '"smollm2"', '"m"'
        )
        done = subprocess.run(
            [*shlex.split(typed.replace("\\\n", " ")), "-sS"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert done.stdout.startswith("data: {")
        assert done.stdout.endswith("data: [DONE]\n\n")
        assert '"error"' not in done.stdout
    wait_for(lambda: service.ledger()["clean"], seconds=5, why="ledger clean")
