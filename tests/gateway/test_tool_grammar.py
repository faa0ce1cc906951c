"""Grammars of calls: what is drawn from them is read back as right calls, in every format."""

import json
from functools import cache

import jsonschema
import numpy as np
import pytest
from tokenizers import Tokenizer as Vocab

from baton.core.ids import TokenId
from baton.core.matchers import GrammarError
from baton.core.messages import Grammar
from baton.gateway.response_formats import AnswerFormat, Formats, read_table
from baton.gateway.response_reader import Readers
from baton.gateway.tool_calls import Parsed
from baton.gateway.tool_grammar import (
    behind_reasoning,
    behind_text,
    can_be_strict,
    required_calls,
    strict_calls,
    tokens_of,
)
from baton.grammar.check import check
from baton.grammar.matcher import LlguidanceMatcher
from baton.grammar.vocabulary import Vocabulary

from .models import byte_vocabulary

END = TokenId(257)
TABLE = read_table()
NATIVE = [f for f in TABLE.tool_calls if f.native is not None]
IDS = ["/".join(f.names) + ("*" if f is NATIVE[-1] else "") for f in NATIVE]
THINK = next(f for f in TABLE.reasoning if "qwen3" in f.names)
MARKS = [
    "<tool_call>",
    "</tool_call>",
    "<think>",
    "</think>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
]
MARKS += ["<|channel|>", "<|message|>", "<|constrain|>", "[TOOL_CALLS]", "[ARGS]", "<arg_key>"]
MARKS += ["</arg_key>", "<arg_value>", "</arg_value>", "<|tool_call|>", "｜DSML｜", "</parameter>"]
MARKS += ["<|tool_call_begin|>", "<|tool_call_end|>", "<|end|>", "<|start|>"]
MARKS += ['<|"|>', "<|tool_call>", "<tool_call|>", "<escape>", "<|tool_call_start|>"]


def tool(name: str, properties: dict, *required: str, strict: bool = False) -> dict:
    parameters = {"type": "object", "properties": properties, "required": list(required)}
    parameters["additionalProperties"] = False
    return {
        "type": "function",
        "function": {"name": name, "parameters": parameters, "strict": strict},
    }


WEATHER = tool(
    "get_weather",
    {
        "city": {"type": "string", "enum": ["Genève", "Bern"]},
        "days": {"type": "integer", "minimum": 0, "maximum": 9},
        "parts": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        "at": {"$ref": "#/$defs/at"},
    },
    "city",
    "at",
    strict=True,
)
WEATHER["function"]["parameters"]["$defs"] = {
    "at": {"type": "object", "properties": {}, "additionalProperties": False}
}
NOW = {"type": "function", "function": {"name": "now", "strict": True}}
TOOLS = [WEATHER, NOW]
SCHEMAS = {"get_weather": WEATHER["function"]["parameters"], "now": {"maxProperties": 0}}


class Model:
    """A vocabulary of bytes; with `marks`, the marks of the formats are tokens of their own."""

    def __init__(self, *, marks: bool) -> None:
        self.vocab: Vocab = byte_vocabulary()
        if marks:
            self.vocab.add_special_tokens(MARKS[: len(MARKS) // 2])
            self.vocab.add_tokens(MARKS[len(MARKS) // 2 :])
        added = self.vocab.get_added_tokens_decoder().items()
        self.added = {t.content: TokenId(i) for i, t in added}
        self.vocabulary = Vocabulary(self.vocab.to_str, size=300)

    def matcher(self, text: str) -> LlguidanceMatcher:
        grammar = Grammar(text, (), (END,))
        check(grammar, self.vocabulary)
        return LlguidanceMatcher(grammar, self.vocabulary)

    def takes(self, text: str, answer: str) -> bool:
        found = self.matcher(text)
        try:
            found.accept(
                [TokenId(i) for i in self.vocab.encode(answer, add_special_tokens=False).ids]
            )
            return bool(found.allowed()[END])
        except GrammarError:
            return False

    def drawn(self, text: str, seed: int, *, most: int = 2000) -> str:
        """An answer drawn at random, which ends as soon as it may."""
        found, rng, answer = self.matcher(text), np.random.default_rng(seed), []
        while not (allowed := found.allowed())[END]:
            answer.append(int(rng.choice(np.flatnonzero(allowed))))
            assert len(answer) < most
            found.accept([TokenId(answer[-1])])
        return self.vocab.decode(answer, skip_special_tokens=False)


@cache
def model(marks: bool) -> Model:
    return Model(marks=marks)


@cache
def readers(index: int) -> Readers:
    return Readers(Formats(NATIVE[index], THINK))


def read(form: AnswerFormat, text: str, begun: str = "") -> Parsed:
    reader = readers(NATIVE.index(form)).make(
        text="", begun=begun, tools=TOOLS, next_seed=lambda: 0, most_calls=None, streams=False
    )
    first, rest = reader.read(text), reader.finish()
    return Parsed(
        first.content + rest.content, first.reasoning + rest.reasoning, first.calls + rest.calls
    )


def judge(parsed: Parsed) -> None:
    for call in parsed.calls:
        jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])


@pytest.mark.parametrize("marks", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("form", NATIVE, ids=IDS)
def test_what_must_be_a_call_is_read_back_as_a_right_one(form: AnswerFormat, marks: bool):
    made = required_calls(TOOLS, form.native, added=model(marks).added, single=False)
    names = set()
    for seed in range(8):
        answer = model(marks).drawn(made, seed)
        parsed = read(form, answer)
        assert parsed.calls, answer
        assert parsed.content == "", answer
        judge(parsed)
        names |= {call.name for call in parsed.calls}
    assert names == {"get_weather", "now"}
    assert not model(marks).takes(made, "")
    assert not model(marks).takes(made, "No.")


@pytest.mark.parametrize("marks", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("form", NATIVE, ids=IDS)
def test_several_calls_follow_each_other_unless_one_is_wanted(form: AnswerFormat, marks: bool):
    """The second call is the first one's text again, behind what stands between two."""
    native, target = form.native, model(marks)
    one = target.drawn(required_calls([NOW], native, added=target.added, single=True), 0)
    call = one.removeprefix(native.begin).removesuffix(native.end)
    two = f"{native.begin}{call}{native.between}{call}{native.end}"
    several, single = (
        required_calls([NOW], native, added=target.added, single=s) for s in (False, True)
    )
    assert target.takes(several, two) is (native.between is not None)
    assert not target.takes(single, two)
    if native.between is not None:
        assert [c.name for c in read(form, two).calls] == ["now", "now"]


def test_a_named_function_is_the_only_one():
    form = next(f for f in NATIVE if "hermes" in f.names)
    made = required_calls([NOW], form.native, added={}, single=True)
    answer = model(False).drawn(made, 0)
    assert [c.name for c in read(form, answer).calls] == ["now"]
    assert not model(False).takes(made, answer.replace("now", "get_weather"))


def test_texts_between_tags_are_free():
    form = next(f for f in NATIVE if "qwen3_coder" in f.names)
    f = tool("f", {"a": {"type": "string"}, "b": {"type": ["string", "null"]}, "c": {}}, "a")
    text = '<tool_call>\n<function=f>\n<parameter=a>\n  "x" < y\n\n</parameter>\n</function>\n</tool_call>'
    for marks in (False, True):
        made = required_calls([f], form.native, added=model(marks).added, single=True)
        assert model(marks).takes(made, text)
        assert not model(marks).takes(made, text.replace("=a", "=b")), "a is required"
        both = text.replace("</function>", "<parameter=c>\n{\n</parameter>\n</function>")
        assert model(marks).takes(made, both)
    (call,) = read(form, text).calls
    assert json.loads(call.arguments) == {"a": '  "x" < y\n'}


def test_a_key_that_a_tag_cannot_hold_is_refused():
    form = next(f for f in NATIVE if "qwen3_coder" in f.names)
    with pytest.raises(GrammarError, match="'a>b'"):
        required_calls([tool("f", {"a>b": {}})], form.native, added={}, single=True)


# ---- formats with bare keys ---------------------------------------------------------------------

BARE = [f for f in NATIVE if f.native.quote]
RICH = tool(
    "get_weather",
    {
        "note": {"type": ["string", "null"], "maxLength": 3},
        "days": {"type": "integer", "minimum": 3, "maximum": 12},
        "at": {"$ref": "#/$defs/place"},
        "tags": {"type": "array", "items": {"enum": ["a b", 1, None, True]}, "minItems": 1},
        "pair": {"type": "array", "items": {"const": 2.5}, "minItems": 2, "maxItems": 2},
        "any": {},
        "options": {
            "anyOf": [
                {"type": "object", "properties": {"x": {"type": "number"}, "y": {}}},
                {"type": "array", "items": {"type": "array", "maxItems": 0}, "maxItems": 3},
            ]
        },
        "free": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "days",
    "pair",
)
RICH["function"]["parameters"]["$defs"] = {
    "place": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "within": {"$ref": "#/$defs/place"}},
        "required": ["city"],
        "additionalProperties": False,
    }
}


@pytest.mark.parametrize("form", BARE, ids=lambda f: f.names[0])
def test_arguments_of_every_kind_are_read_back_valid(form: AnswerFormat):
    target = model(True)
    made = required_calls([RICH, NOW], form.native, added=target.added, single=True)
    seen: set[str] = set()
    for seed in range(30):
        answer = target.drawn(made, seed, most=60_000)
        parsed = read(form, answer)
        assert (parsed.content, len(parsed.calls)) == ("", 1), answer
        (call,) = parsed.calls
        if call.name == "now":
            continue
        arguments = json.loads(call.arguments)
        jsonschema.validate(arguments, RICH["function"]["parameters"])
        seen |= set(arguments)
    assert seen == set(RICH["function"]["parameters"]["properties"])


@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
def test_texts_and_commas_of_a_dialect(name: str):
    form = next(f for f in NATIVE if name in f.names)
    q = form.native.quote
    f = tool("f", {"a": {"type": "string"}, "b": {"type": "integer"}, "c": {"type": "null"}}, "b")
    begin, end = form.native.before.replace("NAME", "f"), form.native.after
    for marks in (False, True):
        made = required_calls([f], form.native, added=model(marks).added, single=True)
        for right in ("b:5", f"a:{q}{{x,y:'\"{q},b:5", "b:5,c:null", f"a:{q}{q},b:-1,c:null"):
            assert model(marks).takes(made, begin + right + end), right
            (call,) = read(form, begin + right + end).calls
            assert json.loads(call.arguments)["b"] in (5, -1)
        for wrong in ("", f"a:{q}x{q}", "b:5,", ",b:5", "c:null,b:5", "b:x", 'a:"x",b:5', "b: 5"):
            assert not model(marks).takes(made, begin + wrong + end), wrong


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"a-b": {}}, "'a-b'"),
        ({"a": {"type": "object", "properties": {"b c": {}}}}, "'b c'"),
        ({"a": {"allOf": [{"type": "string"}]}}, "allOf"),
        ({"a": {"enum": ['<|"|>']}}, "cannot be written"),
        ({"a": {"type": "uuid"}}, "no type 'uuid'"),
        ({"a": {"$ref": "#/$defs/none"}}, "no such schema"),
        ({"a": {"enum": []}}, "allows nothing"),
        ({"a": False}, "allows nothing"),
    ],
)
def test_what_a_dialect_cannot_say_is_refused(properties: dict, why: str):
    form = next(f for f in NATIVE if "gemma4" in f.names)
    with pytest.raises(GrammarError, match=why):
        required_calls([tool("f", properties)], form.native, added={}, single=True)


@pytest.mark.parametrize("name", ["from", "1st", "a-b"])
def test_names_that_python_does_not_have_are_refused(name: str):
    native = next(f.native for f in NATIVE if "pythonic" in f.names)
    for f in (tool("f", {name: {}}), tool(name, {})):
        with pytest.raises(GrammarError, match=name):
            required_calls([f], native, added={}, single=True)


# ---- strict functions under auto ----------------------------------------------------------------

STRICT = [f for f in NATIVE if can_be_strict(TOOLS, f.native)]
LOOSE = {"type": "function", "function": {"name": "loose"}}


def test_which_formats_can_be_strict():
    assert {n for f in NATIVE if f not in STRICT for n in f.names} == {
        *("llama3_json", "llama4_json"),
        *("pythonic", "llama4_pythonic"),
    }
    hermes, qwen = (
        next(f.native for f in NATIVE if n in f.names) for n in ("hermes", "qwen3_coder")
    )
    assert can_be_strict([WEATHER, LOOSE], hermes)
    assert not can_be_strict([LOOSE], hermes)
    assert not can_be_strict([WEATHER, LOOSE], qwen)
    assert not can_be_strict(TOOLS, None)


@pytest.mark.parametrize("marks", [False, True], ids=["text", "tokens"])
@pytest.mark.parametrize("form", STRICT, ids=lambda f: f.names[0])
def test_strict_functions_are_called_rightly_in_free_text(form: AnswerFormat, marks: bool):
    target = model(marks)
    made = strict_calls(TOOLS, form.native, added=target.added)
    call = target.drawn(required_calls([WEATHER], form.native, added=target.added, single=True), 1)
    for answer in ("", "No, <b>.", call, f"Look: {call}", f"{call}\nand\n{call}", f"{call} Done."):
        assert target.takes(made, answer), answer
    for wrong in ("Bernn", "Basel"):
        broken = call.replace("Genève", wrong).replace("Bern", wrong)
        assert broken != call
        assert not target.takes(made, broken)
    assert not target.takes(made, call.replace("get_weather", "other"))


def test_functions_that_are_not_strict_take_any_arguments():
    native = next(f.native for f in NATIVE if "hermes" in f.names)
    made = strict_calls([WEATHER, LOOSE], native, added={})
    call = '<tool_call>\n{"name": "loose", "arguments": {"x": [1, {}]}}\n</tool_call>'
    assert model(False).takes(made, call)
    assert not model(False).takes(made, call.replace("loose", "get_weather"))


# ---- reasoning before it ------------------------------------------------------------------------


@pytest.mark.parametrize("marks", [False, True], ids=["text", "tokens"])
def test_reasoning_may_come_first(marks: bool):
    target = model(marks)
    hermes = next(f.native for f in NATIVE if "hermes" in f.names)
    calls = required_calls([NOW], hermes, added=target.added, single=True)
    call = target.drawn(calls, 0)
    maybe, opened = (
        behind_reasoning(calls, THINK.native, added=target.added, opened=o) for o in (False, True)
    )
    thought = f"<think>\nAh <b> {{\n</think>\n\n{call}"
    assert target.takes(maybe, call)
    assert target.takes(maybe, thought)
    assert not target.takes(maybe, thought.replace(call, "No."))
    assert not target.takes(maybe, "<think>Ah")
    assert target.takes(opened, thought.removeprefix("<think>"))
    assert not target.takes(opened, call)


def test_other_grammars_can_stand_behind_reasoning_too():
    from baton.grammar import request as make

    target = model(True)
    for text, right, wrong in (
        (make.json_schema({"type": "integer"}), "5", "x"),
        (make.regex("a+"), "aa", "b"),
        (make.choice(["a", "b"]), "b", "c"),
        (
            make.structural_tag(
                [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}], ["<f"]
            ),
            "x<f>5</f>",
            "x<f>y</f>",
        ),
    ):
        behind = behind_reasoning(text, THINK.native, added=target.added, opened=False)
        for grammar, before in (
            (behind, ""),
            (behind, "<think>Ah</think>\n"),
            (
                behind_text(text, "<|channel|>final<|message|>", added=target.added),
                "<|channel|>final<|message|>",
            ),
            (behind_text(behind, "[", added=target.added), "[<think></think>"),
        ):
            assert target.takes(grammar, before + right)
            assert not target.takes(grammar, before + wrong)


def test_the_tokens_of_a_text():
    added = {"</think>": TokenId(5), "<|end|>": TokenId(6), "<|start|>": TokenId(7)}
    assert tokens_of("</think>", added) == (5,)
    assert tokens_of("<|end|><|start|>", added) == (6, 7)
    assert tokens_of("<|end|><|start|>assistant", added) is None
    assert tokens_of("</think>", {}) is None
