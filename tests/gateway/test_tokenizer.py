import json

import pytest

from baton.core.errors import ConfigError
from baton.gateway.template import TemplateRefused
from baton.gateway.tokenizer import Tokenizer

from .models import BOS, END, fallback_vocabulary, ids, write_checkpoint


def rendered(tokenizer: Tokenizer, messages: list) -> str:
    return tokenizer.templates.choose(tools=False).render(messages)


@pytest.fixture
def checkpoint(tmp_path):
    return write_checkpoint(tmp_path)


def test_plain_prompts_get_the_beginning_token_and_chats_name_it_themselves(checkpoint):
    tokenizer = Tokenizer.load(checkpoint)
    assert tokenizer.encode("zz")[0] == BOS
    text = rendered(tokenizer, [{"role": "user", "content": "zz"}])
    assert text == "<s>user:zz</s><s>assistant:"
    assert list(tokenizer.encode_chat(text)) == [BOS, *ids("user:zz"), END, BOS, *ids("assistant:")]


def test_end_tokens_are_what_generation_config_states_and_the_tokenizers_own(checkpoint):
    assert Tokenizer.load(checkpoint).eos_ids == (END,)
    (checkpoint / "generation_config.json").write_text("{}")
    assert Tokenizer.load(checkpoint).eos_ids == (7, END)
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    (checkpoint / "tokenizer_config.json").write_text("{}")
    assert Tokenizer.load(checkpoint).eos_ids == (9,)


def test_an_end_token_that_the_model_cannot_draw_ends_nothing(checkpoint):
    """Barred from being drawn before `min_tokens` it would be looked for in logits that end before
    it."""
    (checkpoint / "generation_config.json").write_text(
        json.dumps({"eos_token_id": [9, 299, 300, -1, 128_009]})
    )
    assert set(Tokenizer.load(checkpoint).eos_ids) == {9, 299, END}


def test_the_models_vocabulary_counts_not_the_tokenizers(checkpoint):
    assert Tokenizer.load(checkpoint).vocab_size == 300


def test_truncation_of_the_file_is_switched_off(checkpoint):
    file = json.loads((checkpoint / "tokenizer.json").read_text())
    file["truncation"] = {
        "direction": "Right",
        "max_length": 3,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (checkpoint / "tokenizer.json").write_text(json.dumps(file))
    assert len(Tokenizer.load(checkpoint).encode("z" * 50)) == 51


def test_a_template_file_comes_before_the_one_in_the_settings(checkpoint):
    (checkpoint / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    assert rendered(Tokenizer.load(checkpoint), [{"role": "user", "content": "hi"}]) == "hi"


def test_of_several_templates_the_default_counts(checkpoint):
    several = [{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}]
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    assert rendered(Tokenizer.load(checkpoint), [{"role": "user", "content": "hi"}]) == "yes"


def test_requests_with_tools_have_a_template_of_their_own_if_there_is_one(checkpoint):
    several = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "yes"}]
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"chat_template": several}))
    templates = Tokenizer.load(checkpoint).templates
    assert [templates.choose(tools=tools).render([]) for tools in (False, True)] == ["yes", "tools"]
    folder = checkpoint / "additional_chat_templates"
    folder.mkdir()
    (folder / "tool_use.jinja").write_text("more")
    (checkpoint / "chat_template.jinja").write_text("file")
    templates = Tokenizer.load(checkpoint).templates
    assert [templates.choose(tools=tools).render([]) for tools in (False, True)] == ["file", "more"]


def test_the_operators_template_replaces_all_others(checkpoint):
    (checkpoint / "chat_template.jinja").write_text("the model's")
    chosen = checkpoint / "mine"
    chosen.write_text("mine")
    assert rendered(Tokenizer.load(checkpoint, chat_template=chosen), []) == "mine"
    with pytest.raises(ConfigError, match=r"--chat-template .*missing"):
        Tokenizer.load(checkpoint, chat_template=checkpoint / "missing")


def test_without_a_template_chats_are_refused(checkpoint):
    (checkpoint / "tokenizer_config.json").write_text("{}")
    with pytest.raises(TemplateRefused, match="/v1/completions"):
        rendered(Tokenizer.load(checkpoint), [{"role": "user", "content": "hi"}])


def test_a_directory_without_tokenizer_is_the_operators_error(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        Tokenizer.load(tmp_path)


def test_where_a_decoder_looks_at_more_than_bytes_no_token_has_a_text_of_its_own(checkpoint):
    file = json.loads((checkpoint / "tokenizer.json").read_text())
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    for decoder in (file["decoder"], {"type": "Sequence", "decoders": [file["decoder"], strip]}):
        (checkpoint / "tokenizer.json").write_text(json.dumps(file | {"decoder": decoder}))
        detokenizer = Tokenizer.load(checkpoint).detokenizer((ord("a"),))
        assert [detokenizer.push(ord(c)) for c in " b"] == [" ", "b"]


def test_tokens_are_spelled_with_their_bytes(checkpoint):
    tokenizer = Tokenizer.load(checkpoint)
    assert (tokenizer.spell(ord("a")).text, tokenizer.spell(ord("a")).raw) == ("a", b"a")
    assert tokenizer.spell(ord(" ")).text == " "
    assert (tokenizer.spell(0xF0).text, tokenizer.spell(0xF0).raw) == ("bytes:\\xf0", b"\xf0")
    assert tokenizer.spell(END).text == "</s>"
    assert tokenizer.spell(299).raw == b""  # the model's vocabulary is padded


def test_tokens_of_byte_fallback_vocabularies_are_spelled_too():
    tokenizer = Tokenizer(fallback_vocabulary(), eos_ids=[], vocab_size=261)
    assert tokenizer.spell(258).text == " x"
    assert tokenizer.spell(0xC3 + 1).raw == b"\xc3"
    assert tokenizer.spell(260).text == "é"


@pytest.mark.parametrize(
    ("file", "raw", "why"),
    [
        ("tokenizer_config.json", b'{"chat_template": [0]}', "objects? with"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": 1, "template": ""}]}', "object"),
        ("tokenizer_config.json", b'{"eos_token": "\\ud800"}', "not JSON"),
        ("tokenizer_config.json", b"[" * 100_000, "not JSON"),
        ("chat_template.jinja", b"\xff", "cannot be read"),
        (
            "tokenizer.json",
            b'{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, '
            b'"merges": [["a", "b"]], "continuing_subword_prefix": "xx"}}',
            "damaged",
        ),
        ("config.json", b'{"vocab_size": "many"}', "vocab_size is many"),
        ("config.json", b'{"vocab_size": 1e400}', "vocab_size is inf"),
        ("config.json", b'{"vocab_size": -1}', "vocab_size is -1"),
        ("generation_config.json", b'{"eos_token_id": ["x"]}', "eos_token_id is"),
        ("generation_config.json", b'{"eos_token_id": [[1]]}', "eos_token_id is"),
    ],
)
def test_a_damaged_file_is_named(checkpoint, file, raw, why):
    """Found by damaging files at random: each was an error that named no file."""
    (checkpoint / file).write_bytes(raw)
    with pytest.raises(ConfigError, match=why):
        Tokenizer.load(checkpoint)
