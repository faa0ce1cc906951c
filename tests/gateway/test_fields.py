"""What single fields come to: what the core is asked, and what the client reads."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from baton.core.messages import FinishReason, Shaping
from baton.core.mixing import mix64
from baton.gateway.ask import NO_SHAPING
from baton.gateway.door import Capacity
from baton.gateway.neutral import NEUTRAL, SILENT

from .fake_door import FakeDoor
from .models import ids
from .rig import events, post

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
W_AFTER_SPACE = 264  # the last merge of the vocabulary
HI = {"messages": [{"role": "user", "content": "hi"}]}


def scripted(*steps) -> FakeDoor:
    door = FakeDoor()
    door.script = list(steps)
    return door


def asked(path: str, body: dict) -> list:
    """What the core is asked for one request that is served."""
    door = scripted(ids("x"), FinishReason.STOP)
    assert post(door, path, body).status_code == 200
    return door.submitted


def seeds(**fields) -> list[int]:
    return [s.sampling.seed for s in asked(COMPLETIONS, {"prompt": "zz"} | fields)]


# ---- n and seed ---------------------------------------------------------------------------------


def test_choice_i_draws_from_seed_i_whatever_n_is():
    assert seeds(seed=7) == [mix64(7, 0)]
    assert seeds(seed=7, n=3) == [mix64(7, i) for i in range(3)]
    assert seeds(seed=-1) == seeds(seed=(1 << 64) - 1), "seeds are 64 bits, with or without a sign"
    chat = asked(CHAT, HI | {"seed": 7, "n": 2})
    assert [s.sampling.seed for s in chat] == seeds(seed=7, n=2)


def test_each_of_several_prompts_draws_as_it_would_alone():
    assert seeds(prompt=["a", "b"], seed=7, n=2) == seeds(seed=7, n=2) * 2


def test_neighbouring_seeds_share_no_choice():
    """Were choice i of seed s drawn with s + i, it would be choice i - 1 of seed s + 1."""
    found = [set(seeds(seed=seed, n=8)) for seed in range(8)]
    assert len(set.union(*found)) == 64


def test_without_a_seed_every_choice_has_one_of_its_own():
    assert len(set(seeds(n=4))) == 4


@pytest.mark.parametrize("stream", [False, True])
def test_choices_are_told_apart_and_the_prompt_counts_once(stream):
    door = scripted(ids("ab"), FinishReason.STOP)
    body = {"prompt": [5, 6, 7], "n": 3, "stream": stream} | (
        {"stream_options": {"include_usage": True}} if stream else {}
    )
    response = post(door, COMPLETIONS, body)
    answers = events(response)[:-1] if stream else [response.json()]
    texts = {}
    for choice in (c for a in answers for c in a["choices"]):
        texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert texts == {0: "ab", 1: "ab", 2: "ab"}
    usage = answers[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 6, 9)


@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (COMPLETIONS, {"prompt": [5, 6, 7]})])
@pytest.mark.parametrize("stream", [False, True])
def test_cached_tokens_are_told(path, body, stream):
    door = scripted(ids("a"), ids("bc"), FinishReason.STOP)
    door.cached = [2]
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    answer = post(door, path, body | options)
    usage = events(answer)[-2]["usage"] if stream else answer.json()["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}


def test_cached_is_what_none_of_the_choices_of_a_prompt_computed():
    door = scripted(ids("a"), FinishReason.STOP)
    door.cached = [0, 4, 4, 2, 3, 3]
    usage = post(door, COMPLETIONS, {"prompt": [[5] * 9, [6] * 8], "n": 3}).json()["usage"]
    assert (usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]) == (17, 0 + 2)


@pytest.mark.parametrize("salt", [None, "tenant 7"])
def test_the_cache_salt_goes_into_the_ticket(salt):
    (submit,) = asked(CHAT, HI | {"cache_salt": salt})
    assert submit.cache_salt == (salt or "")


def test_running_usage_counts_in_every_chunk():
    options = {"include_usage": True, "continuous_usage_stats": True}
    door = scripted(ids("a"), ids("bc"), FinishReason.LENGTH)
    door.cached = [1]
    *chunks, _ = events(
        post(door, COMPLETIONS, {"prompt": [5, 6], "stream": True, "stream_options": options})
    )
    assert [c["usage"]["completion_tokens"] for c in chunks] == [1, 3, 3, 3]
    assert [c["usage"]["prompt_tokens_details"]["cached_tokens"] for c in chunks] == [1, 1, 1, 1]
    assert {c["usage"]["prompt_tokens"] for c in chunks} == {2}


# ---- limits -------------------------------------------------------------------------------------


def test_how_many_tokens_when_nothing_is_said():
    """As vLLM does it: 16 for a completion, what is left of the context for a chat."""
    (completion,), (chat,) = asked(COMPLETIONS, {"prompt": [5] * 3}), asked(CHAT, HI)
    assert completion.limits.max_tokens == 16
    assert chat.limits.max_tokens == 128 - len(chat.prompt)


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_max_completion_tokens_wins(path):
    (submit,) = asked(path, HI | {"prompt": "zz", "max_tokens": 9, "max_completion_tokens": 4})
    assert submit.limits.max_tokens == 4


def test_the_last_token_that_fits_the_smallest_pool():
    door = scripted(ids("x"), FinishReason.STOP)
    door.limits = Capacity(max_model_len=128, pool_tokens=64)
    assert post(door, COMPLETIONS, {"prompt": [5] * 60, "max_tokens": 4}).status_code == 200
    assert post(door, COMPLETIONS, {"prompt": [5] * 60, "max_tokens": 5}).status_code == 400


def test_min_tokens_holds_stop_strings_and_end_tokens_back():
    fields = {"min_tokens": 4, "stop": "b", "stop_token_ids": [9]}
    door = scripted(ids("ab"), ids("ab"), ids("xb"), FinishReason.LENGTH)
    answer = post(door, COMPLETIONS, {"prompt": "zz"} | fields).json()
    choice = answer["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (
        "ababx",
        "stop",
        "b",
    )
    limits = door.submitted[0].limits
    assert (limits.min_tokens, limits.stop_token_ids) == (4, (9,)), (
        "the engine bars these ids until then"
    )
    assert answer["usage"]["completion_tokens"] == 6


def test_a_stop_string_that_begins_before_min_tokens_does_not_count():
    door = scripted(ids("ab"), ids("c"), ids("abc"), FinishReason.LENGTH)
    choice = post(door, COMPLETIONS, {"prompt": "zz", "min_tokens": 2, "stop": "bc"}).json()[
        "choices"
    ][0]
    assert choice["text"] == "abca"


# ---- shaping ------------------------------------------------------------------------------------


def test_biases_and_penalties_reach_the_core_as_they_are():
    given = {
        "logit_bias": {"5": -100, "299": 1.5},
        "presence_penalty": 0.5,
        "frequency_penalty": -2,
        "repetition_penalty": 1.1,
    }
    (submit,) = asked(CHAT, HI | given | {"min_p": 0.25})
    assert submit.sampling.shaping == Shaping(1.1, 0.5, -2.0, ((5, -100.0), (299, 1.5)))
    assert submit.sampling.min_p == 0.25


def test_neutral_shaping_is_none():
    (submit,) = asked(CHAT, HI | {"logit_bias": {}, "presence_penalty": 0, "repetition_penalty": 1})
    assert submit.sampling.shaping is None


# ---- masks --------------------------------------------------------------------------------------


def test_allowed_tokens_reach_the_core_once_each():
    (submit,) = asked(COMPLETIONS, {"prompt": "zz", "allowed_token_ids": [9, 5, 9]})
    assert submit.sampling.shaping == replace(NO_SHAPING, allowed_token_ids=(9, 5))


@pytest.mark.parametrize(
    ("words", "tokens"),
    [
        (["x"], [ids("x")]),  # after a space it is two tokens, the first of them the space
        (["w"], [ids("w"), [W_AFTER_SPACE]]),
        (["  w"], [ids("w"), [W_AFTER_SPACE]]),
        (["wx", "wx"], [ids("wx"), [W_AFTER_SPACE, *ids("x")]]),
        (["x w"], [[*ids("x"), W_AFTER_SPACE]]),
        ([], None),
    ],
)
def test_bad_words_are_barred_at_the_beginning_and_after_a_space(words, tokens):
    (submit,) = asked(CHAT, HI | {"bad_words": words})
    shaping = submit.sampling.shaping
    assert (shaping and shaping.bad_words) == (tokens and tuple(map(tuple, tokens)))


def test_what_leaves_a_token_is_served():
    body = {"prompt": "zz", "allowed_token_ids": [257, 9], "min_tokens": 2, "bad_words": ["x"]}
    assert asked(COMPLETIONS, body)[0].limits.min_tokens == 2
    assert asked(COMPLETIONS, {"prompt": "zz", "allowed_token_ids": [257]})


# ---- messages and the rest ----------------------------------------------------------------------


@pytest.mark.parametrize("priority", [None, 0, -5, 7])
def test_priority_is_recorded(priority):
    (submit,) = asked(CHAT, HI | {"priority": priority})
    assert submit.priority == (priority or 0)


@pytest.mark.parametrize(
    "content", ["a\nb", [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]]
)
@pytest.mark.parametrize("role", ["developer", "system"])
def test_developers_are_the_system_and_parts_are_lines(role, content):
    (submit,) = asked(
        CHAT, {"messages": [{"role": role, "content": content}, {"role": "user", "content": "hi"}]}
    )
    assert bytes(t for t in submit.prompt if t < 256) == b"system:a\nbuser:hiassistant:".replace(
        b"hi", bytes(ids("hi"))
    )


def test_unknown_fields_are_ignored_with_one_line(capture_log):
    many = {f"unheard_of_{i}": i for i in range(40)}
    asked(CHAT, HI | {"user": "me", "metadata": {"a": 1}, "echo": False, "tools": []} | many)
    (line,) = [e for e in capture_log if e["event"] == "request.fields_ignored"]
    assert len(line["fields"]) == 16, "bounded, whatever a client sends"
    assert set(line["fields"]) <= set(many)


@pytest.fixture
def capture_log():
    import structlog

    with structlog.testing.capture_logs() as lines:
        yield lines


def test_the_page_of_fields_tells_the_truth():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    silent, refused = (
        page.split(head)[1].split("\n## ")[0]
        for head in ("## Without influence\n", "## Refused by name\n")
    )
    names = set(re.findall(r"`([a-z_*]+)`", refused)) - {"null"}
    assert names - NEUTRAL.keys() == {"guided_*"}
    assert len(names) > len(NEUTRAL) // 2
    assert set(re.findall(r"`([a-z_]+)`", silent)) == SILENT
