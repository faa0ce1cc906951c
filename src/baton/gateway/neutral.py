"""Fields that Baton does not serve: harmless with a neutral value, refused with any other, because ignoring them would change
the answer in silence. Fields that nobody knows are ignored with one log line.
"""

import json
from collections.abc import Iterable, Mapping

import structlog

from baton.gateway.faults import refuse

log = structlog.get_logger("baton.gateway")

# field -> the values that mean what Baton does anyway
NEUTRAL: dict[str, tuple[object, ...]] = {
    "add_generation_prompt": (None, True),
    "add_special_tokens": (None,),
    "allowed_token_ids": (None,),
    "audio": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "chat_template": (None,),
    "chat_template_kwargs": (None, {}),
    "continue_final_message": (None, False),
    "documents": (None, []),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none", "auto"),
    "functions": (None, []),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "include_stop_str_in_output": (None, False),
    "kv_transfer_params": (None,),
    "length_penalty": (None, 1),
    "logit_bias": (None, {}),
    "logits_processors": (None, []),
    "min_p": (None, 0),
    "min_tokens": (None, 0),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "prompt_embeds": (None,),
    "prompt_logprobs": (None,),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "skip_special_tokens": (None, True),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
    "web_search_options": (None,),
}

# without influence on the answer
SILENT = frozenset(
    ["user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls", "request_id"]
)


def judge_extra_fields(extra: Mapping[str, object]) -> None:
    """Refuse fields that would change the answer, log the unknown ones.

    Raises:
        HttpFault: names the field, its value and what is supported
    """
    unknown = []
    for field, value in extra.items():
        neutral = NEUTRAL.get(field)
        if neutral is not None:
            _require_neutral(field, value, neutral)
        elif field.startswith("guided_"):
            _require_neutral(field, value, (None,))
        elif field not in SILENT:
            unknown.append(field[:64])
    if unknown:
        log.info("request.fields_ignored", fields=sorted(unknown)[:16])


def _require_neutral(field: str, value: object, neutral: Iterable[object]) -> None:
    if not any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in neutral):
        allowed = " or ".join(["its absence", *(json.dumps(v) for v in neutral if v is not None)])
        raise refuse(f"{field} = {brief(value)} is not supported; supported: {allowed}", param=field)


def brief(value: object) -> str:
    """A value as it may appear in a message: JSON, at most 80 characters."""
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."
