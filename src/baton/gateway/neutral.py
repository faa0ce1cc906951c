"""Fields that Baton does not support.

Their neutral value is accepted. Any other value is refused, because ignoring it would silently
change the answer. Fields that no known server has are ignored, with one log line.
"""

import json
from collections.abc import Iterable, Mapping

import structlog

from baton.gateway.faults import is_word, refuse

log = structlog.get_logger("baton.gateway")
SHOWN = 80  # characters of a value in a message

# By field: the values that ask for what Baton does anyway. The names are those of OpenAI, vLLM,
# SGLang, llama.cpp and transformers.
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (None, True),
    "add_special_tokens": (None,),
    "audio": (None,),
    "bad_words_ids": (None, []),
    "best_of": (None, 1),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "container": (None,),
    "continue_final_message": (None, False),
    "custom_logit_processor": (None,),
    "custom_params": (None,),
    "documents": (None, []),
    "dry_multiplier": (None, 0),
    "dynatemp_range": (None, 0),
    "echo": (None, False),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "grammar": (None, ""),
    "image_data": (None,),
    "input_embeds": (None,),
    "input_ids": (None,),
    "kv_transfer_params": (None,),
    "length_penalty": (None, 1),
    "logits_processors": (None, []),
    "lora_path": (None,),
    "lora_request": (None,),
    "max_new_tokens": (None,),
    "mcp_servers": (None, []),
    "min_new_tokens": (None, 0),
    "mirostat": (None, 0),
    "mirostat_mode": (None, 0),
    "mm_processor_kwargs": (None,),
    "modalities": (None, ["text"]),
    "n_predict": (None, -1),
    "no_repeat_ngram_size": (None, 0),
    "no_stop_trim": (None, False),
    "num_beams": (None, 1),
    "penalty_alpha": (None, 0),
    "prediction": (None,),
    "prompt_embeds": (None,),
    "reasoning": (None,),
    "reasoning_effort": (None,),
    "repeat_penalty": (None, 1),
    "response_role": (None, "assistant"),
    "return_hidden_states": (None, False),
    "session_params": (None,),
    "stop_regex": (None, []),
    "suffix": (None, ""),
    "tfs": (None, 1),
    "tfs_z": (None, 1),
    "thinking_token_budget": (None,),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_a": (None, 0),
    "truncation": (None,),
    "typical_p": (None, 1),
    "use_beam_search": (None, False),
    "verbosity": (None,),
    "vllm_xargs": (None, {}),
    "web_search_options": (None,),
    "xtc_probability": (None, 0),
}

# Fields that do not change the answer.
SILENT = frozenset(
    [
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "parallel_tool_calls",
        "request_id",
    ]
)


def judge_extra_fields(extra: Mapping[str, object]) -> None:
    """Refuse fields that would change the answer; log unknown fields.

    Raises:
        HttpFault: 400; the message names the field, its value and what is supported
    """
    unknown = []
    for field, value in extra.items():
        neutral = NEUTRAL.get(field)
        if neutral is not None:
            _require_neutral(field, value, neutral)
        elif field.startswith("guided_"):
            _require_neutral(field, value, (None,))
        elif field not in SILENT:
            unknown.append(field if is_word(field) else "(not a word)")
    if unknown:
        log.info("request.fields_ignored", fields=sorted(unknown)[:16])


def _require_neutral(field: str, value: object, neutral: Iterable[object]) -> None:
    if not is_one_of(value, neutral):
        allowed = " or ".join(["its absence", *(json.dumps(v) for v in neutral if v is not None)])
        raise refuse(
            f"{field[:64]} = {brief(value)} is not supported; supported: {allowed}",
            param=field[:64],
        )


def is_one_of(value: object, values: Iterable[object]) -> bool:
    """Whether a value is among others, as JSON: 1 is not true."""
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in values
    )


def brief(value: object) -> str:
    """Format a value for a message: at most 80
    characters of JSON; a longer text gets its length."""
    text = ""
    try:
        for part in json.JSONEncoder().iterencode(value):  # encodes only as much as is shown
            text += part
            if len(text) > SHOWN:
                break
    except ValueError:
        return "a number of thousands of digits"
    if len(text) <= SHOWN:
        return text
    length = f" ({len(value)} characters)" if isinstance(value, str) else ""
    return f"{text[: SHOWN - 3]}...{length}"
