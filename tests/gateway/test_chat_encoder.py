import json

import pytest

from baton.gateway.chat_encoder import chat_encoder
from baton.gateway.deepseek_v32_chat import DeepseekV32Chat
from baton.gateway.parsers import load_parsers
from baton.gateway.settings import HttpSettings
from baton.gateway.template import ChatTemplate, TemplateRefused
from baton.gateway.tokenizer import Tokenizer

from .models import write_checkpoint

HI = [{"role": "user", "content": "hi"}]
TEMPLATE = ChatTemplate("{{ messages[0]['content'] }}{{ tools | tojson }}", {})


def test_a_model_without_a_row_has_its_template():
    assert chat_encoder("llama", TEMPLATE) is TEMPLATE
    assert chat_encoder("llama", None) is None


def test_deepseek_v32_has_a_template_only_in_its_experimental_release():
    assert isinstance(chat_encoder("deepseek_v32", None), DeepseekV32Chat)
    assert chat_encoder("deepseek_v32", TEMPLATE) is TEMPLATE


def test_kimi_is_shown_tools_in_alphabetical_order():
    tools = [{"type": "function", "function": {"name": "f", "b": [{"d": 1, "c": [2, 1]}], "a": 0}}]
    assert chat_encoder("kimi_k2", TEMPLATE).render(HI, tools=tools) == (
        'hi[{"function": {"a": 0, "b": [{"c": [2, 1], "d": 1}], "name": "f"}, "type": "function"}]'
    )
    assert chat_encoder("kimi_k2", TEMPLATE).render(HI) == "hinull"
    assert chat_encoder("kimi_k2", None) is None


@pytest.mark.parametrize(
    ("model_type", "shown"), [("deepseek_v32", "<｜User｜>hi"), ("llama", None)]
)
def test_the_model_type_of_the_checkpoint_selects_the_encoder(tmp_path, model_type, shown):
    write_checkpoint(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": model_type}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer.load(tmp_path)
    if shown is None:
        with pytest.raises(TemplateRefused):
            tokenizer.templates.choose(tools=False)
    else:
        assert shown in tokenizer.templates.choose(tools=False).render(HI)
        formats = load_parsers(tokenizer, HttpSettings(model="m")).formats
        assert formats.tool_calls.names == ("deepseek_v32",)
        assert "deepseek_v3" in formats.reasoning.names
