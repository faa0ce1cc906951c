from datetime import datetime

import pytest

from baton.core.errors import ConfigError
from baton.gateway.template import ChatTemplate, TemplateRefused

HI = [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("{% if true %}\n    {{- 'x' }}\n{% endif %}\n", "x\n"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "hi"}]'),
        ("{{ '<é>' | tojson }}", '"<é>"'),
        ("{% for m in messages %}{% break %}{% endfor %}y", "y"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "hi"),
        ("{{ strftime_now('%d %b %Y') }}", "02 Jan 2025"),
        ("{{ bos_token }}{{ eos_token is defined }}", "<s>False"),
        (
            "{% if tools %}t{% endif %}{% set ns = namespace(a=1) %}{% set ns.a = 2 %}{{ ns.a }}",
            "2",
        ),
    ],
)
def test_renders_as_hugging_face_does(source, shown):
    template = ChatTemplate(source, {"bos_token": "<s>"}, today=lambda: datetime(2025, 1, 2))
    assert template.render(HI) == shown


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0]['content'] + 1 }}",
        "{{ 1 // 0 }}",
        "{{ missing.field }}",
    ],
)
def test_what_goes_wrong_while_rendering_is_a_refusal(source):
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, {}).render(HI)


def test_a_template_that_does_not_compile_is_the_operators_error():
    with pytest.raises(ConfigError, match="does not compile"):
        ChatTemplate("{% if %}", {})


def test_messages_are_not_changed_by_a_template():
    messages = [dict(HI[0])]
    with pytest.raises(TemplateRefused):
        ChatTemplate("{{ messages[0].update({'content': 'no'}) }}", {}).render(messages)
    assert messages == HI


def test_equal_to_transformers():
    from transformers.utils.chat_template_utils import render_jinja_template

    source = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\n"
        "    {{- '<|im_start|>system\\nYou are é<|im_end|>\\n' }}\n{% endif %}\n"
        "{{'<|im_start|>' + message['role'] + '\\n' + message['content'] | trim + "
        "'<|im_end|>' + '\\n'}}\n"
        "{%- if loop.last %}{{ messages | tojson(indent=2) }}{% continue %}{% endif %}\n"
        "  {% generation %} x {% endgeneration %}\n{% endfor %}\n"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}\n\n"
    )
    chat = [
        {"role": "user", "content": " <a> "},
        {"role": "assistant", "content": "é\n"},
        {"role": "user", "content": ""},
    ]
    (theirs,), _ = render_jinja_template(
        [chat], chat_template=source, add_generation_prompt=True, bos_token="<s>"
    )
    assert ChatTemplate(source, {"bos_token": "<s>"}).render(chat) == theirs
