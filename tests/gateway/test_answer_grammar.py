"""The grammar that a chat's request to the core carries: of its calls or content, behind its
reasoning."""

import pytest

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.gateway.tokenizer import Tokenizer
from baton.grammar.matcher import LlguidanceMatcher
from baton.grammar.vocabulary import Vocabulary

from .fake_door import FakeDoor
from .rig import post
from .templates import CHATML, talker
from .test_tool_calls import VOCABULARY, asked, ids, writing
from .written_answers import TOOLS

CHAT = "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]
NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
WEATHER = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "parts": []}}\n</tool_call>'
)
NAMED = {"type": "function", "function": {"name": "now"}}
INTEGER = {
    "type": "json_schema",
    "json_schema": {"name": "n", "schema": {"type": "integer"}},
}
THINKS = CHATML + "{%- if add_generation_prompt %}{{- '<think>\\n' }}{%- endif %}"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> Tokenizer:
    return talker(tmp_path_factory.mktemp("talker"))


def grammar_of(tokenizer: Tokenizer, **body) -> Grammar | None:
    """The grammar in the request to the core; the answer does not follow it."""
    door = writing(NOW)
    response = post(door, CHAT, {"messages": HI} | body, tokenizer=tokenizer)
    assert response.status_code == 200, response.text
    return door.submitted[0].grammar


def takes(tokenizer: Tokenizer, grammar: Grammar, answer: str) -> bool:
    vocabulary = Vocabulary(tokenizer.to_json, size=tokenizer.vocab_size)
    matcher = LlguidanceMatcher(grammar, vocabulary)
    try:
        matcher.accept([TokenId(i) for i in ids(answer)])
        return bool(matcher.allowed()[grammar.ends[0]])
    except GrammarError:
        return False


def test_without_a_wish_there_is_no_grammar(tokenizer):
    for body in ({}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "none"}):
        assert grammar_of(tokenizer, **body) is None


def test_required_calls(tokenizer):
    grammar = grammar_of(tokenizer, tools=TOOLS, tool_choice="required")
    thought = f"<think>\nAh\n</think>\n\n{NOW}"
    for right in (NOW, WEATHER, f"{NOW}\n{WEATHER}", thought):
        assert takes(tokenizer, grammar, right), right
    for wrong in ("", "No.", f"I look. {NOW}", NOW.replace("now", "then"), "<think>Ah</think>"):
        assert not takes(tokenizer, grammar, wrong), wrong


def test_one_required_call(tokenizer):
    body = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False}
    grammar = grammar_of(tokenizer, **body)
    assert takes(tokenizer, grammar, NOW)
    assert not takes(tokenizer, grammar, f"{NOW}\n{NOW}")


def test_a_named_call(tokenizer):
    grammar = grammar_of(tokenizer, tools=TOOLS, tool_choice=NAMED)
    assert takes(tokenizer, grammar, NOW)
    for wrong in (WEATHER, f"{NOW}\n{NOW}", "No."):
        assert not takes(tokenizer, grammar, wrong)
    (choice,) = asked(writing(NOW), tokenizer, tools=TOOLS, tool_choice=NAMED).choices
    assert choice.finish_reason == "stop", "as OpenAI and vLLM say it"
    assert choice.message.tool_calls[0].function.name == "now"


def test_strict_functions(tokenizer):
    strict = [{**t, "function": t["function"] | {"strict": True}} for t in TOOLS]
    grammar = grammar_of(tokenizer, tools=strict)
    for right in ("No.", NOW, f"I look.\n{WEATHER} Done.", f"<think>Ah</think>{NOW}"):
        assert takes(tokenizer, grammar, right), right
    assert not takes(tokenizer, grammar, WEATHER.replace("[]", '"no list"'))


def test_reasoning_that_the_prompt_opens_ends_before_the_grammar_begins(tmp_path):
    thinks = talker(tmp_path, THINKS)
    end = (VOCABULARY.token_to_id("</think>"),)
    for body, right in (
        ({"tools": TOOLS, "tool_choice": "required"}, NOW),
        ({"response_format": INTEGER}, "5"),
    ):
        grammar = grammar_of(thinks, **body)
        assert grammar.after == end
        assert takes(thinks, grammar, right)
        assert not takes(thinks, grammar, f"Ah</think>{right}")


def test_structured_output_may_follow_reasoning(tokenizer):
    grammar = grammar_of(tokenizer, response_format=INTEGER)
    assert grammar.after == ()
    assert takes(tokenizer, grammar, "5")
    assert takes(tokenizer, grammar, "<think>\nAh\n</think>\n\n5")
    assert not takes(tokenizer, grammar, "<think>Ah</think>x")
    body = {"chat_template_kwargs": {"enable_thinking": False}}
    grammar = grammar_of(tokenizer, response_format=INTEGER, **body)
    assert takes(tokenizer, grammar, "5")
    assert not takes(tokenizer, grammar, "<think>Ah</think>5"), "the prompt has ended it"


@pytest.mark.parametrize(
    ("body", "param", "word"),
    [
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", '"f"'),
        ({"tool_choice": "required", "response_format": INTEGER}, "response_format", "tool_choice"),
        (
            {
                "tool_choice": "required",
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "f", "parameters": {"not": {"type": "string"}}},
                    }
                ],
            },
            "tools",
            "not",
        ),
    ],
)
def test_what_cannot_be_forced_is_refused(tokenizer, body, param, word):
    response = post(FakeDoor(), CHAT, {"messages": HI, "tools": TOOLS} | body, tokenizer=tokenizer)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert word in error["message"]


def test_a_format_without_grammar_names_what_is_left(tmp_path):
    """A model's own response template says how to read calls, not how they are written."""
    calls = {
        "open": "<call>",
        "close": "</call>",
        "content": "json",
        "repeats": True,
        "transform": {"function": "{content}"},
    }
    own = {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {"tool_calls": calls, "content": {"content": "text"}},
    }
    tokenizer = talker(tmp_path, CHATML.replace("<tool_call>", "<call>"), response_template=own)
    body = {"messages": HI, "tools": TOOLS, "tool_choice": "required"}
    error = post(writing(NOW), CHAT, body, tokenizer=tokenizer).json()["error"]
    assert 'tool_choice = "required"' in error["message"]
    assert "auto, none" in error["message"]
