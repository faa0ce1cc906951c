"""From the fields of a body to the grammar in the request to the core."""

import json
import re
from pathlib import Path

import pytest

from baton.core.messages import FinishReason, Grammar
from baton.gateway.neutral import NEUTRAL

from .fake_door import FakeDoor
from .models import END, ids
from .rig import post

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
BODIES = {
    CHAT: {"messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"prompt": "hi"},
}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TAGS = {
    "type": "structural_tag",
    "structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}],
    "triggers": ["<f"],
}
FORMAT = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<f>",
        "content": {"type": "json_schema", "json_schema": SCHEMA},
        "end": "</f>",
    },
}
# fields that mean the same
SAME = {
    "schema": [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": SCHEMA},
            }
        },
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": json.dumps(SCHEMA)},
    ],
    "object": [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json_object": True}},
        {"guided_json_object": True},
    ],
    "regex": [
        {"structured_outputs": {"regex": "a+"}},
        {"guided_regex": "a+"},
        {"regex": "a+"},
    ],
    "choice": [
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"guided_choice": ["a", "b"]},
    ],
    "grammar": [
        {"structured_outputs": {"grammar": 'root ::= "a"'}},
        {"guided_grammar": 'root ::= "a"'},
        {"ebnf": 'root ::= "a"'},
    ],
    "tags": [
        {"response_format": TAGS},
        {"structured_outputs": {"structural_tag": TAGS}},
        {"structured_outputs": {"structural_tag": json.dumps(TAGS)}},
    ],
    "format of tags": [
        {"response_format": FORMAT},
        {"structured_outputs": {"structural_tag": FORMAT}},
        {"structured_outputs": {"structural_tag": json.dumps(FORMAT)}},
    ],
}


def asked(body: dict, path: str = COMPLETIONS) -> list:
    door = FakeDoor()
    door.script = [ids("x"), FinishReason.STOP]
    answer = post(door, path, BODIES[path] | body)
    assert answer.status_code == 200, answer.text
    return door.submitted


def grammar(body: dict, path: str = COMPLETIONS) -> Grammar | None:
    (submit,) = asked(body, path)
    return submit.grammar


@pytest.mark.parametrize("name", SAME)
def test_all_names_of_a_thing_make_the_same_grammar_at_both_endpoints(name):
    found = {grammar(body, path) for body in SAME[name] for path in BODIES}
    assert len(found) == 1
    (one,) = found
    assert one is not None
    assert one.ends == (END,)
    assert one.after == ()


def test_different_things_make_different_grammars():
    assert len({grammar(bodies[0]) for bodies in SAME.values()}) == len(SAME)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": None},
        {"structured_outputs": None},
        {"guided_json_object": False},
        {"guided_json": None},
    ],
)
def test_a_body_that_says_nothing_has_no_grammar(body):
    assert grammar(body) is None


def test_every_choice_and_every_prompt_has_the_grammar():
    submits = asked({"prompt": ["a", "b"], "n": 2, "guided_regex": "x"})
    assert len(submits) == 4
    assert len({s.grammar for s in submits}) == 1


def test_white_space_can_be_chosen():
    free = grammar({"guided_json": SCHEMA})
    none = grammar({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}})
    own = grammar({"structured_outputs": {"json": SCHEMA, "whitespace_pattern": "_"}})
    assert own == grammar({"guided_json": SCHEMA, "guided_whitespace_pattern": "_"})
    assert len({free, none, own}) == 3


def test_an_answer_with_a_grammar_can_always_end():
    """Were the end tokens left out, a complete answer could not be followed by anything."""
    (free,), (bound,) = asked({"ignore_eos": True}), asked({"ignore_eos": True, "regex": "a+"})
    assert free.limits.eos_token_ids == ()
    assert bound.limits.eos_token_ids == (END,)
    assert bound.limits.min_tokens == bound.limits.max_tokens


def test_the_page_names_every_field():
    page = (
        (Path(__file__).parents[2] / "docs" / "api.md")
        .read_text()
        .split("## Structured output\n")[1]
        .split("\n## ")[0]
    )
    named = set(re.findall(r"`([a-z_]+)`", page))
    used = {field for bodies in SAME.values() for body in bodies for field in body}
    assert used <= named
    assert not used & NEUTRAL.keys()
