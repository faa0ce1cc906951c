"""Answers divided into reasoning, content and calls, however they are cut into pieces."""

import json
import re
from collections.abc import Sequence
from functools import cache
from itertools import count, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.gateway.response_formats import Formats, own_formats, read_table
from baton.gateway.response_reader import Readers, ResponseReader
from baton.gateway.tool_calls import Parsed, ToolCall

from .written_answers import BOTH, TOOLS, WRITTEN, Written

TABLE = read_table()


def formats_of(parser: str, reasoning_parser: str) -> Formats:
    name, _, variant = parser.partition(", ")
    tool_formats = [f for f in TABLE.tool_calls if name in f.names]
    reasoning = [f for f in TABLE.reasoning if reasoning_parser in f.names]
    return Formats(tool_formats[bool(variant)], next(iter(reasoning), None))


@cache
def readers_of(parser: str, reasoning_parser: str) -> Readers:
    return Readers(formats_of(parser, reasoning_parser))


def reader_of(
    readers: Readers,
    *,
    begun: str = "",
    text: str = "",
    most_calls: int | None = None,
    streams: bool = False,
) -> ResponseReader:
    return readers.make(
        text=text,
        begun=begun,
        tools=TOOLS,
        next_seed=count().__next__,
        most_calls=most_calls,
        streams=streams,
    )


def read(reader: ResponseReader, pieces: Sequence[str]) -> Parsed:
    found = [*map(reader.read, pieces), reader.finish()]
    return Parsed(
        "".join(p.content for p in found),
        "".join(p.reasoning for p in found),
        tuple(c for p in found for c in p.calls),
    )


def put_together(pieces: Sequence[ToolCall]) -> list[ToolCall]:
    """Calls of their pieces, as a client does it: by their index."""
    found: list[ToolCall] = []
    for piece in pieces:
        if piece.begins:
            assert piece.index == len(found)
            found.append(piece)
        else:
            last = found[piece.index]
            assert not last.ends
            assert piece.index == len(found) - 1
            found[piece.index] = ToolCall(
                piece.index, last.id, last.name, last.arguments + piece.arguments, ends=piece.ends
            )
    return found


def streamed(written: Written, pieces: Sequence[str], **limits: int) -> Parsed:
    readers = readers_of(written.parser, written.reasoning_parser)
    return read(reader_of(readers, begun=written.begun, streams=True, **limits), pieces)


def calls_of(parsed: Parsed) -> tuple:
    return tuple((c.name, json.loads(c.arguments)) for c in parsed.calls)


def read_written(written: Written, pieces: Sequence[str]) -> Parsed:
    return read(
        reader_of(readers_of(written.parser, written.reasoning_parser), begun=written.begun), pieces
    )


@pytest.mark.parametrize("written", WRITTEN, ids=lambda w: w.parser)
def test_every_format_is_read_whole(written: Written):
    parsed = read_written(written, [written.text])
    assert calls_of(parsed) == written.calls
    assert (parsed.content, parsed.reasoning) == (written.content, written.reasoning)
    assert [c.index for c in parsed.calls] == list(range(len(parsed.calls)))
    assert len({c.id for c in parsed.calls}) == len(parsed.calls)


def test_every_format_has_an_example():
    """Formats with several names have one for one of them."""
    assert all(any(w.parser in f.names for w in WRITTEN) for f in TABLE.tool_calls)
    assert all(any(w.reasoning_parser in f.names for w in WRITTEN) for f in TABLE.reasoning)


@pytest.mark.parametrize("written", WRITTEN, ids=lambda w: w.parser)
def test_every_cut_reads_as_the_whole(written: Written):
    """Ids are drawn in the order of the calls, so they are the same too."""
    whole = read_written(written, [written.text])
    for cut in range(1, len(written.text)):
        assert read_written(written, [written.text[:cut], written.text[cut:]]) == whole
    assert read_written(written, list(written.text)) == whole


@given(st.sampled_from(WRITTEN), st.lists(st.floats(0, 1), max_size=12))
def test_any_cuts_read_as_the_whole(written: Written, places: list[float]):
    cuts = sorted(round(p * len(written.text)) for p in places)
    pieces = [written.text[a:b] for a, b in pairwise([0, *cuts, len(written.text)])]
    assert read_written(written, pieces) == read_written(written, [written.text])


@pytest.mark.parametrize("written", WRITTEN, ids=lambda w: w.parser)
def test_an_answer_that_is_cut_off_has_no_call_that_was_not_finished(written: Written):
    """A call without some of its arguments would be carried out."""
    whole = read_written(written, [written.text])
    for cut in range(len(written.text)):
        parsed = read_written(written, [written.text[:cut]])
        assert parsed.calls == whole.calls[: len(parsed.calls)], written.text[:cut]


# ---- streamed arguments -------------------------------------------------------------------------

# formats in which arguments are not the JSON that clients get
IN_ONE_PIECE = {
    "deepseek_v32",
    "qwen3_coder",
    "seed_oss",
    "minimax_m2",
    "glm45",
    "glm47",
    "gemma4",
    "functiongemma",
    "pythonic",
    "llama4_pythonic",
    "olmo3",
    "lfm2",
}


@pytest.mark.parametrize("written", WRITTEN, ids=lambda w: w.parser)
def test_every_cut_of_a_stream_is_put_together_to_the_whole(written: Written):
    whole = read_written(written, [written.text])
    cuts = [[written.text[:at], written.text[at:]] for at in range(len(written.text))]
    for pieces in (*cuts, list(written.text)):
        parsed = streamed(written, pieces)
        assert tuple(put_together(parsed.calls)) == whole.calls
        assert (parsed.content, parsed.reasoning) == (whole.content, whole.reasoning)


@pytest.mark.parametrize("written", WRITTEN, ids=lambda w: w.parser)
def test_arguments_come_with_the_characters_that_the_model_writes(written: Written):
    """Each one with its own character: nothing waits for the end of the call."""
    readers = readers_of(written.parser, written.reasoning_parser)
    reader = reader_of(readers, begun=written.begun, streams=True)
    pieces = [call for c in written.text for call in reader.read(c).calls]
    at_once = written.parser.partition(",")[0] in IN_ONE_PIECE
    for call in put_together([*pieces, *reader.finish().calls]):
        mine = [p for p in pieces if p.index == call.index]
        if at_once:
            assert [p.arguments for p in mine] == [call.arguments][: len(mine)]
        else:
            assert max(len(p.arguments) for p in mine) <= 2  # a look-ahead of one is allowed
            assert len(mine) >= len(call.arguments) / 2


@pytest.mark.parametrize("written", WRITTEN, ids=lambda w: w.parser)
def test_a_stream_that_is_cut_off_has_beginnings_of_the_calls(written: Written):
    whole = read_written(written, [written.text])
    for cut in range(len(written.text)):
        calls = put_together(streamed(written, list(written.text[:cut])).calls)
        for ours, true in zip(calls, whole.calls, strict=False):
            assert (ours.id, ours.name) == (true.id, true.name)
            assert true.arguments.startswith(ours.arguments)
        assert all(call.ends for call in calls[:-1])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ('<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>', '{"a": NaN}'),
        ('<tool_call>{"name": "now", "arguments": {"a": 1}, 5}</tool_call>', '{"a": 1}'),
        ('<tool_call>{"name": "now", "arguments": {"a" 1</tool_call>', '{"a" 1'),
        ('<tool_call>{"name": "now", "arguments": {}, "arguments": {"b": 1}}</tool_call>', "{}"),
    ],
)
def test_a_streamed_call_that_turns_out_malformed_stays_as_the_model_wrote_it(text, arguments):
    parsed = streamed(HERMES, [text + "I look."])
    (call,) = put_together(parsed.calls)
    assert (call.name, call.arguments, call.ends) == ("now", arguments, True)
    assert parsed.content == "I look."


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"arguments": {"a": 1}, "name": "now"}</tool_call>',
        '<tool_call>{"function": {"name": "now", "arguments": {"a": 1}}}</tool_call>',
    ],
)
def test_a_call_that_has_no_name_before_its_arguments_comes_whole(text):
    parsed = streamed(HERMES, list(text))
    assert [(c.name, json.loads(c.arguments)) for c in parsed.calls] == [("now", {"a": 1})]


def test_arguments_have_the_models_own_form():
    text = '<tool_call>{"name": "now", "arguments": { "a":1.0,\n"b" : "\\u00e9}" }}</tool_call>'
    own = '{ "a":1.0,\n"b" : "\\u00e9}" }'
    assert [c.arguments for c in streamed(HERMES, list(text)).calls if c.begins] == ["{"]
    assert put_together(streamed(HERMES, list(text)).calls)[0].arguments == own
    for pieces in ([text], list(text), [text[:60], text[60:]]):
        assert read_written(HERMES, pieces).calls[0].arguments == own


def test_later_calls_of_a_stream_are_dropped_where_one_is_allowed():
    text = WRITTEN[0].text
    assert len(put_together(streamed(WRITTEN[0], list(text)).calls)) == 2
    assert len(put_together(streamed(WRITTEN[0], list(text), most_calls=1).calls)) == 1


PYTHONIC, LFM2 = Written("pythonic", "", ()), Written("lfm2", "", ())
HERMES, QWEN = (
    Written("hermes", "", (), reasoning_parser="qwen3"),
    Written("qwen3_coder", "", (), reasoning_parser="qwen3"),
)
MALFORMED = [
    (HERMES, '<tool_call>{"name": "now", "arguments": {}</tool_call>'),
    (HERMES, '<tool_call>{"name": "now", "arguments": []}</tool_call>'),
    (HERMES, '<tool_call>{"name": "now", "arguments": {"a": NaN}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "now", "arguments": {"a": 1e999}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "now"}</tool_call>'),
    (HERMES, '<tool_call>{"name": 5, "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"name": "\\ud800", "arguments": {}}</tool_call>'),
    (HERMES, '<tool_call>{"arguments": {}}</tool_call>'),
    (HERMES, "<tool_call>5</tool_call>"),
    (HERMES, "<tool_call>[]</tool_call>"),
    (HERMES, "<tool_call></tool_call>"),
    (HERMES, "<tool_call>now()"),
    (HERMES, '<tool_call>{"function": 5}</tool_call>'),
    (HERMES, "</tool_call>"),
    (PYTHONIC, "[now(1)]"),
    (PYTHONIC, "[now()] and more"),
    (PYTHONIC, "[now(a=b)]"),
    (PYTHONIC, "[now(a=1, a=2)]"),
    (PYTHONIC, "[now(**{'a': 1})]"),
    (PYTHONIC, "[now(a=f'{1}')]"),
    (PYTHONIC, "[now(a=b'')]"),
    (PYTHONIC, "[now(a=1j)]"),
    (PYTHONIC, "[now(a=...)]"),
    (PYTHONIC, "[now(a={1: 2})]"),
    (PYTHONIC, "[now(a={**{}})]"),
    (PYTHONIC, "[now(), 5]"),
    (PYTHONIC, "[now(from=1)]"),
    (PYTHONIC, "[now()(), now()]"),
    (PYTHONIC, "[now(a=" + "[" * 500 + "]" * 500 + ")]"),
    (PYTHONIC, "[now(a=1"),
    (LFM2, "<|tool_call_start|>import os<|tool_call_end|>"),
    (LFM2, "<|tool_call_start|><|tool_call_end|>"),
    (QWEN, "<tool_call>\n<function=now>what</function>"),
    (QWEN, "<tool_call>\n<function=now>\n<parameter=a>\n1\n</function>"),
    (QWEN, "<tool_call>\n<function=now>\n<parameter=a>\n1\n</parameter>\n"),
    (QWEN, "<tool_call>\n<function>\n</function>"),
    (Written("kimi_k2", "", ()), "<|tool_call_begin|>now<|tool_call_argument_begin|>{}"),
    (Written("jamba", "", ()), '<tool_calls>[{"name": "now", "arguments": {}}, 5]</tool_calls>'),
    (Written("llama3_json", "", ()), '{"name": "Alice", "age": 5}'),
    (Written("llama3_json", "", ()), 'Write {"name": "now", "parameters": {}}'),
    (Written("mistral", "", ()), "[TOOL_CALLS]now[ARGS]{"),
    (Written("deepseek_v31", "", ()), "<｜tool▁call▁begin｜>now<｜tool▁sep｜>{<｜tool▁call▁end｜>"),
]


@pytest.mark.parametrize(("written", "text"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_call_is_content(written: Written, text: str):
    for pieces in ([text], list(text), ["Hi\n", text]):
        parsed = read_written(written, pieces)
        assert parsed == Parsed("".join(pieces))


def test_what_follows_a_malformed_call_is_read():
    text = '<tool_call>{</tool_call>\n<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    parsed = read_written(HERMES, list(text))
    assert parsed.content == "<tool_call>{</tool_call>"
    assert calls_of(parsed) == (("now", {}),)


@pytest.mark.parametrize(
    "body", ["[" * 100_000, '{"name": "now", "arguments": {"a": ' + "9" * 5000 + "}}"]
)
def test_what_the_parser_cannot_take_is_content(body: str):
    """Python refuses such nesting and such numbers with errors of their own."""
    for cut in (3, 20, 200):
        text = f"<tool_call>{body}</tool_call> and more"
        parsed = read_written(HERMES, [text[:cut], text[cut:-5], text[-5:]])
        assert parsed.calls == ()
        assert body in parsed.content
        assert parsed.content.endswith("</tool_call> and more")


def test_arguments_come_out_as_json_that_clients_can_read():
    text = '<tool_call>{"name": "f", "arguments": {"a": "\\ud800 é", "b": 1.50}}</tool_call>'
    (call,) = read_written(HERMES, [text]).calls
    assert json.loads(call.arguments) == {"a": "\ud800 é", "b": 1.5}
    call.arguments.encode()


def test_a_name_in_openais_form_is_found():
    inner = '{"name": "now", "arguments": {}}'
    text = f'<tool_call>{{"type": "function", "function": {inner}}}</tool_call>'
    assert calls_of(read_written(HERMES, [text])) == (("now", {}),)


def test_later_calls_are_dropped_where_one_is_allowed():
    written = WRITTEN[0]
    reader = reader_of(
        readers_of(written.parser, written.reasoning_parser), begun=written.begun, most_calls=1
    )
    parsed = read(reader, list(written.text))
    assert calls_of(parsed) == BOTH[:1]
    assert parsed.content == written.content


def test_ids_are_the_models_own_or_in_the_form_that_its_template_takes():
    ids = {w.parser: [c.id for c in read_written(w, [w.text]).calls] for w in WRITTEN}
    assert ids["kimi_k2"] == ["functions.get_weather:0", "functions.now:1"]
    assert [len(i) for i in ids["mistral"]] == [9, 9]
    assert all(i.startswith("call_") and len(i) == 29 for i in ids["hermes"])


@pytest.mark.parametrize("text", ["  ", "\n\nHi\n", "Hi <", "Hi\n\n"])
def test_an_answer_without_calls_keeps_its_spaces(text: str):
    assert read_written(HERMES, list(text)) == Parsed(text)


@pytest.mark.parametrize(
    ("begun", "text", "reasoning", "content"),
    [
        ("<a>\n<think>\n", "Ah\n</think>\n\nHi", "Ah", "Hi"),
        ("<a>\n<think>\n\n</think>\n\n", "Hi", "", "Hi"),
        ("<a>\n", "<think>Ah</think>Hi", "Ah", "Hi"),
        ("<a>\n", "Hi", "", "Hi"),
        ("<a>\n<think>\n", "Ah", "Ah", ""),
        ("Of <think>old</think> and <think>new", " ideas</think>", " ideas", ""),
    ],
)
def test_reasoning_that_the_prompt_opens_goes_on_in_the_answer(begun, text, reasoning, content):
    readers = readers_of("hermes", "qwen3")
    assert read(reader_of(readers, begun=begun), list(text)) == Parsed(content, reasoning)


OWN = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<a>",
    "fields": {
        "thinking": {"open": "<t>", "close": "</t>", "content": "text"},
        "tool_calls": {
            "open": "<c>",
            "close": "</c>",
            "content": "json",
            "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close": ["<end>"], "content": "text"},
    },
}


def test_the_response_template_of_the_models_files_is_taken():
    """It says itself where in the prompt the answer begins."""
    prompt = "<a>Hi<t>old</t><b>You<a><t>"
    text = 'Ah</t>Look<c>{"name": "now", "arguments": {}}</c><end><c>{</c>'
    parsed = read(reader_of(Readers(own_formats(OWN)), text=prompt), list(text))
    assert (parsed.content, parsed.reasoning) == ("Look{</c>", "Ah")
    assert calls_of(parsed) == (("now", {}),)


def test_the_page_of_the_api_names_every_format():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text()
    for flag, formats in (
        ("--tool-call-parser", TABLE.tool_calls),
        ("--reasoning-parser", TABLE.reasoning),
    ):
        (row,) = re.findall(rf"^\| `{flag}` \| (.*) \|$", page, re.MULTILINE)
        assert sorted(set(row.strip("`").split("`, `"))) == sorted(
            {n for f in formats for n in f.names}
        )
