import json

import pytest
from tokenizers import Tokenizer, models

from baton.core.errors import ConfigError
from baton.vocabulary.load import vocabulary_of

from .files import write_kimi, write_tekken


def test_a_tokenizer_json_comes_first_then_tiktoken_then_tekken(tmp_path):
    write_tekken(tmp_path)
    assert vocabulary_of(tmp_path).token_to_id("[INST]") == 3
    write_kimi(tmp_path)
    assert vocabulary_of(tmp_path).token_to_id("<|im_end|>") == 258
    Tokenizer(models.BPE({"x": 0}, [])).save(str(tmp_path / "tokenizer.json"))
    assert vocabulary_of(tmp_path).get_vocab() == {"x": 0}


def test_a_vocabulary_is_read_again_from_its_own_text(tmp_path):
    for write in (write_kimi, write_tekken):
        (tmp_path / write.__name__).mkdir()
        vocabulary = vocabulary_of(write(tmp_path / write.__name__))
        again = Tokenizer.from_str(vocabulary.to_str())
        assert json.loads(again.to_str()) == json.loads(vocabulary.to_str())
        assert (
            again.encode("hi 中<|im_end|>[INST]").ids
            == vocabulary.encode("hi 中<|im_end|>[INST]").ids
        )


def test_a_directory_without_a_vocabulary_is_the_operators_error(tmp_path):
    with pytest.raises(ConfigError, match=r"tokenizer\.json.*tiktoken\.model.*tekken\.json"):
        vocabulary_of(tmp_path)


def test_a_sentencepiece_model_alone_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"tokenizer\.model alone.*Copy the tokenizer\.json"):
        vocabulary_of(tmp_path)
