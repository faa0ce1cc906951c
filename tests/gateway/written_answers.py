"""What models write in each format, and what it means."""

from typing import Any, NamedTuple

CITY = {"type": "string"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": CITY,
                    "days": {"type": "integer"},
                    "parts": {"type": "array"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
Call = tuple[str, dict[str, Any]]
BOTH: tuple[Call, ...] = (("get_weather", {"city": "Genève", "days": 3}), ("now", {}))


class Written(NamedTuple):
    """An answer in the format `parser`, after a prompt that ends with `begun`."""

    parser: str
    text: str
    calls: tuple[Call, ...]
    content: str = ""
    reasoning: str = ""
    reasoning_parser: str = "none"
    begun: str = ""


WRITTEN = [
    Written(
        "hermes",
        '<think>\nAh, <b>\n</think>\n\nI look.\n<tool_call>\n{"name": "get_weather", "arguments": '
        '{"city": "Genève", "days": 3}}\n</tool_call>\n<tool_call>\n{"name": "now", "arguments": '
        "{}}\n</tool_call>",
        BOTH,
        "I look.",
        "Ah, <b>",
        "qwen3",
    ),
    Written(
        "hermes",
        'Ah\n</think>\n\n<tool_call>{"name": "now", "arguments": {}}</tool_call>\n',
        (("now", {}),),
        "",
        "Ah",
        "deepseek_r1",
        "<|im_start|>assistant\n<think>\n",
    ),
    Written(
        "hermes",
        'Hi <tool_call>{"name": "now", "arguments": {}}</tool_call> there',
        (("now", {}),),
        "Hi there",
        "",
        "qwen3",
        "<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ),
    Written(
        "qwen3_coder",
        "Look:\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\n  Genève\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n<parameter=parts>\n[1, {}]\n</parameter>\n</function>"
        "\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        (("get_weather", {"city": "  Genève", "days": 3, "parts": [1, {}]}), ("now", {})),
        "Look:",
    ),
    Written(
        "pythonic",
        "[get_weather(city='Genève', days=3), now()]",
        BOTH,
    ),
    Written(
        "llama4_pythonic",
        '<|python_start|>[get_weather(city="Genève", days=3), now()]<|python_end|>',
        BOTH,
    ),
    Written(
        "olmo3",
        '<think>Ah</think>Look\n<function_calls>\nget_weather(city="Genève", days=3)\nnow()\n'
        "</function_calls>",
        BOTH,
        "Look",
        "Ah",
        "olmo3",
    ),
    Written(
        "lfm2",
        'Look <|tool_call_start|>[get_weather(city="Genève", days=3), now()]<|tool_call_end|>',
        BOTH,
        "Look",
    ),
    Written(
        "seed_oss",
        "<seed:think>Ah</seed:think><seed:tool_call>\n<function=get_weather>\n<parameter=city>"
        "Genève</parameter>\n<parameter=days>3</parameter>\n</function>\n</seed:tool_call>"
        "<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        BOTH,
        "",
        "Ah",
        "seed_oss",
    ),
    Written(
        "minimax_m2",
        'Look\n<minimax:tool_call>\n<invoke name="get_weather">\n<parameter name="city">Genève'
        '</parameter>\n<parameter name="days">3</parameter>\n</invoke>\n<invoke name="now">\n'
        "</invoke>\n</minimax:tool_call>",
        BOTH,
        "Look",
    ),
    Written(
        "glm45",
        "<think>Ah</think>\nLook\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>"
        "Genève</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>\n"
        "<tool_call>now\n</tool_call>",
        BOTH,
        "Look",
        "Ah",
        "glm45",
    ),
    Written(
        "glm47",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Genève</arg_value><arg_key>days"
        "</arg_key><arg_value>3</arg_value></tool_call><tool_call>now</tool_call>",
        BOTH,
    ),
    Written(
        "deepseek_v3",
        "Look\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
        '{"city": "Genève", "days": 3}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function'
        "<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
        "Look",
    ),
    Written(
        "deepseek_v31",
        "Look<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>"
        '{"city": "Genève", "days": 3}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        BOTH,
        "Look",
        "",
        "deepseek_v3",
        "<｜Assistant｜></think>",
    ),
    Written(
        "deepseek_v32",
        'Look\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter '
        'name="city" string="true">Genève</｜DSML｜parameter>\n<｜DSML｜parameter name="days" '
        'string="false">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name="now">\n'
        "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        BOTH,
        "Look",
    ),
    Written(
        "kimi_k2",
        "Look<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        '<|tool_call_argument_begin|>{"city": "Genève", "days": 3}<|tool_call_end|>'
        "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        BOTH,
        "Look",
    ),
    Written(
        "mistral",
        '[THINK]Ah[/THINK]Look[TOOL_CALLS]get_weather[ARGS]{"city": "Genève", "days": 3}'
        "[TOOL_CALLS]now[ARGS]{}",
        BOTH,
        "Look",
        "Ah",
        "mistral",
    ),
    Written(
        "mistral, a list",
        '[TOOL_CALLS] [{"name": "get_weather", "arguments": {"city": "Genève", "days": 3}}, '
        '{"name": "now", "arguments": {}}]',
        BOTH,
    ),
    Written(
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "Genève", "days": 3}}; {"name": "now", '
        '"parameters": {}}',
        BOTH,
        begun="<|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    Written(
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "get_weather", "parameters": '
        '{"city": "; {\\"name\\": \\"x\\""}}',
        (("get_weather", {"city": '; {"name": "x"'}),),
    ),
    Written(
        "openai",
        "<|channel|>analysis<|message|>Ah<|end|><|start|>assistant<|channel|>commentary<|message|>"
        "Look<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Genève", "days": 3}<|call|>',
        BOTH[:1],
        "Look",
        "Ah",
        "openai_gptoss",
        "<|start|>assistant",
    ),
    Written(
        "openai",
        " to=functions.now<|channel|>commentary json<|message|>{}",
        BOTH[1:],
        reasoning_parser="openai_gptoss",
    ),
    Written(
        "openai",
        "<|channel|>analysis<|message|>Ah<|end|><|start|>assistant<|channel|>final<|message|>No.",
        (),
        "No.",
        "Ah",
        "openai_gptoss",
    ),
    Written(
        "gemma4",
        '<|channel>thought\nAh<channel|><|tool_call>call:get_weather{city:<|"|>Genève<|"|>,days:3}'
        "<tool_call|><|tool_call>call:now{}<tool_call|>",
        BOTH,
        "",
        "Ah",
        "gemma4",
    ),
    Written(
        "functiongemma",
        "<start_function_call>call:get_weather{city:<escape>Genève<escape>,days:3}"
        "<end_function_call><start_function_call>call:now{}<end_function_call>",
        BOTH,
    ),
    Written(
        "longcat",
        '<longcat_tool_call>\n{"name": "get_weather", "arguments": {"city": "Genève", "days": 3}}\n'
        '</longcat_tool_call>\n<longcat_tool_call>{"name": "now", "arguments": {}}'
        "</longcat_tool_call>",
        BOTH,
    ),
    Written(
        "internlm",
        'Look<|action_start|><|plugin|>\n{"name": "get_weather", "parameters": {"city": "Genève", '
        '"days": 3}}<|action_end|>\n',
        BOTH[:1],
        "Look",
    ),
    Written(
        "jamba",
        '<tool_calls>[\n{"name": "get_weather", "arguments": {"city": "Genève", "days": 3}},\n'
        '{"name": "now", "arguments": {}}]</tool_calls>',
        BOTH,
    ),
    Written(
        "granite",
        "Here is my thought process: Ah Here is my response: <|tool_call|>"
        '[{"name": "get_weather", "arguments": {"city": "Genève", "days": 3}}, '
        '{"name": "now", "arguments": {}}]',
        BOTH,
        "",
        "Ah",
        "granite",
    ),
]
