"""Sampling defaults: what the model's file says, what the operator puts over it, and that a request
wins over both."""

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from baton.core.errors import ConfigError
from baton.core.messages import FinishReason
from baton.gateway.generation_config import Defaults, GenerationConfig, load
from baton.gateway.tokenizer import Tokenizer

from .fake_door import FakeDoor
from .models import END, ids, write_checkpoint
from .rig import post

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}
ALL = {
    "temperature": 0.25,
    "top_p": 0.5,
    "top_k": 7,
    "min_p": 0.125,
    "repetition_penalty": 1.5,
    "presence_penalty": -1.0,
    "frequency_penalty": 2.0,
}


def written(directory: Path, **fields) -> Path:
    directory.mkdir(exist_ok=True)
    (directory / "generation_config.json").write_text(json.dumps(fields))
    return directory


def loaded(model: Path, source: object = "auto", override: object = None) -> GenerationConfig:
    return load(
        model, source=str(source), override=None if override is None else json.dumps(override)
    )


# ---- where they come from -----------------------------------------------------------------------


def test_auto_is_what_the_models_file_says(tmp_path):
    assert loaded(written(tmp_path, **ALL)).defaults == Defaults(**ALL)


def test_without_a_file_or_with_null_they_are_neutral(tmp_path):
    assert loaded(tmp_path) == GenerationConfig(Defaults(), None)
    assert (
        loaded(written(tmp_path, temperature=None, do_sample=False, pad_token_id=2)).defaults
        == Defaults()
    )


def test_vllm_leaves_the_models_file_out(tmp_path):
    model = written(tmp_path, **ALL)
    assert loaded(model, "vllm").defaults == Defaults()
    assert loaded(model, "vllm", {"top_k": 3}).defaults == Defaults(top_k=3)


def test_a_folder_is_read_in_place_of_the_model(tmp_path):
    model, other = (
        written(tmp_path / "model", temperature=0.9, top_k=50),
        written(tmp_path / "other", temperature=0.1),
    )
    assert loaded(model, other).defaults == Defaults(temperature=0.1)


def test_an_override_wins_field_by_field(tmp_path):
    found = loaded(
        written(tmp_path, temperature=0.9, top_p=0.5), override={"temperature": 0.0, "top_k": None}
    )
    assert found.defaults == Defaults(temperature=0.0, top_p=0.5)


def test_a_length_is_a_default_in_the_models_file_and_a_limit_where_the_operator_chose_it(tmp_path):
    model, folder = (
        written(tmp_path / "model", max_new_tokens=9),
        written(tmp_path / "folder", max_new_tokens=8),
    )
    assert loaded(model).defaults == Defaults(max_tokens=9)
    assert loaded(model, folder).defaults == Defaults(max_tokens=8, most_tokens=8)
    assert loaded(model, override={"max_new_tokens": 7}).defaults == Defaults(
        max_tokens=7, most_tokens=7
    )
    assert loaded(model, "vllm", {"max_new_tokens": 7}).defaults == Defaults(
        max_tokens=7, most_tokens=7
    )


def test_end_tokens_are_the_operators_only_where_the_operator_states_them(tmp_path):
    model, folder = (
        written(tmp_path / "model", eos_token_id=9),
        written(tmp_path / "folder", eos_token_id=[5, 6]),
    )
    assert loaded(model).eos_ids is loaded(model, "vllm").eos_ids is None, (
        "the tokenizer reads those of the model"
    )
    assert loaded(model, folder).eos_ids == (5, 6)
    assert loaded(model, folder, {"eos_token_id": 4}).eos_ids == (4,)


def test_end_tokens_of_the_operator_stand_in_place_of_the_models(tmp_path):
    checkpoint = write_checkpoint(tmp_path)
    (checkpoint / "generation_config.json").write_text(json.dumps({"eos_token_id": 9}))
    assert Tokenizer.load(checkpoint, eos_ids=(4,)).eos_ids == (4, END), (
        "the tokenizer's own end token stays"
    )
    with pytest.raises(ConfigError, match=r"eos_token_id 300.*ends at 299"):
        Tokenizer.load(checkpoint, eos_ids=(4, 300))


# ---- what cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("temperature=1", ("'temperature=1' is not JSON", '{"temperature": 0.2}')),
        ("[1]", ("[1]", "must be an object")),
        ('{"temprature": 1}', ('"temprature"', "did you mean temperature?")),
        ('{"max_tokens": 1}', ('"max_tokens"', "did you mean max_new_tokens?")),
        ('{"do_sample": true}', ('"do_sample"', "there are temperature, top_p")),
        ('{"temperature": -1}', ("temperature = -1", "greater than or equal to 0")),
        ('{"temperature": "0"}', ('temperature = "0"', "valid number")),
        ('{"temperature": NaN}', ("--override-generation-config",)),
        ('{"top_p": 0}', ("top_p = 0", "greater than 0")),
        ('{"top_k": -2}', ("top_k = -2", "greater than or equal to -1")),
        ('{"repetition_penalty": true}', ("repetition_penalty = true", "valid number")),
        ('{"max_new_tokens": 0}', ("max_new_tokens = 0", "greater than or equal to 1")),
        ('{"eos_token_id": ["</s>"]}', ("eos_token_id", '"</s>"')),
    ],
)
def test_an_override_that_cannot_be_names_flag_value_and_limit(tmp_path, override, words):
    with pytest.raises(ConfigError) as refused:
        load(tmp_path, source="auto", override=override)
    said = str(refused.value)
    assert said.startswith("--override-generation-config")
    assert [word for word in words if word not in said] == [], said


def test_a_value_of_the_models_file_that_cannot_be_names_the_file_and_the_way_round_it(tmp_path):
    model = written(tmp_path, temperature=-1)
    with pytest.raises(
        ConfigError,
        match=r"generation_config.json: temperature = -1: .* 0; " r".*--generation-config vllm",
    ):
        loaded(model)
    assert loaded(model, "vllm").defaults == Defaults()


@pytest.mark.parametrize(("text", "words"), [("{", "is not JSON"), ("[]", "holds a list")])
def test_a_damaged_file_is_named(tmp_path, text, words):
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(ConfigError, match=f"generation_config.json {words}"):
        loaded(tmp_path)


def test_a_folder_without_the_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=f"{tmp_path}: there is auto, vllm, or a folder"):
        loaded(tmp_path, tmp_path)


def test_what_the_file_asks_for_and_is_not_served_is_logged_once_and_neutral_values_are_not(
    tmp_path,
):
    with capture_logs() as logs:
        loaded(
            written(
                tmp_path, typical_p=0.9, no_repeat_ngram_size=0, num_beams=1, suppress_tokens=[4]
            )
        )
    assert [(log["event"], log["fields"]) for log in logs] == [
        ("generation_config_left_out", ["suppress_tokens", "typical_p"])
    ]


# ---- what requests come to ----------------------------------------------------------------------


def asked(path: str, body: dict, **defaults):
    """What the core is asked for one request that is served."""
    door = FakeDoor()
    door.script = [ids("x"), FinishReason.STOP]
    assert post(door, path, body, defaults=Defaults(**defaults)).status_code == 200
    (submitted,) = door.submitted
    return submitted


def drawn(path: str, body: dict, **defaults) -> dict:
    sampling = asked(path, body, **defaults).sampling
    shaping = sampling.shaping
    penalties = ("repetition_penalty", "presence_penalty", "frequency_penalty")
    return {
        name: getattr(sampling, name) for name in ("temperature", "top_p", "top_k", "min_p")
    } | {name: None if shaping is None else getattr(shaping, name) for name in penalties}


@pytest.mark.parametrize(("path", "body"), [(CHAT, HI), (COMPLETIONS, {"prompt": "zz"})])
def test_a_request_gets_the_defaults_for_what_it_does_not_name(path, body):
    assert drawn(path, body, **ALL) == ALL
    assert drawn(path, body | dict.fromkeys(ALL), **ALL) == ALL, "null is absent"


@pytest.mark.parametrize("field", ALL)
def test_what_a_request_says_wins_even_if_it_is_the_neutral_value(field):
    neutral = getattr(Defaults(), field)
    assert drawn(CHAT, HI | {field: neutral}, **ALL) == ALL | {field: neutral}


def test_neutral_values_of_a_request_undo_all_penalties():
    neutral = {name: getattr(Defaults(), name) for name in ALL}
    assert asked(CHAT, HI | neutral, **ALL).sampling.shaping is None


def test_all_tokens_can_be_said_in_the_defaults_as_in_a_request():
    assert drawn(CHAT, HI, top_k=-1)["top_k"] == 0
    assert drawn(CHAT, HI, temperature=1e-9)["temperature"] == 0.0


def test_a_default_length_gives_way_to_the_request_and_to_the_context():
    assert asked(CHAT, HI, max_tokens=5).limits.max_tokens == 5
    assert asked(CHAT, HI | {"max_tokens": 6}, max_tokens=5).limits.max_tokens == 6
    assert asked(COMPLETIONS, {"prompt": "zz"}, max_tokens=5).limits.max_tokens == 16, (
        "completions have one of their own"
    )
    assert (
        asked(COMPLETIONS, {"prompt": "zz", "max_tokens": None}, max_tokens=5).limits.max_tokens
        == 5
    )
    context = 128  # the scripted door's
    assert asked(CHAT, HI, max_tokens=10 * context).limits.max_tokens < context


def test_a_limit_holds_whatever_a_request_asks_for():
    assert asked(CHAT, HI | {"max_tokens": 6}, max_tokens=5, most_tokens=5).limits.max_tokens == 5
    assert asked(CHAT, HI | {"max_tokens": 4}, max_tokens=5, most_tokens=5).limits.max_tokens == 4
    assert asked(COMPLETIONS, {"prompt": "zz"}, most_tokens=5).limits.max_tokens == 5
