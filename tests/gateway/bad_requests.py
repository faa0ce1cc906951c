"""Bad requests as a table, for a gateway in memory and for a service of real processes.

Each row names what a client must be told: the field, what it had there, and where the limit is.
"""

import json
from typing import NamedTuple

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
MEBIBYTE = 1 << 20


class Bad(NamedTuple):
    """One request: its body, and what comes back. `param` is the field, `words` are in the
    message."""

    path: str
    body: bytes
    status: int
    param: str | None
    words: tuple[str, ...]


def bad_requests(*, model: str, vocabulary: int, room: int, what: str) -> dict[str, Bad]:
    """Every kind there is.

    Args:
        room: tokens that a request may have at most, and
        what: what bounds them, as the service says it
    """

    def completion(
        field: str | None, value: object, *words: str, status: int = 400, **others: object
    ) -> Bad:
        fields = (
            {"prompt": "zz", "max_tokens": 1} | others | ({} if field is None else {field: value})
        )
        return Bad(COMPLETIONS, json.dumps(fields).encode(), status, field, words)

    def chat(raw: str, param: str | None, *words: str) -> Bad:
        return Bad(CHAT, raw.encode(), 400, param, words)

    hi = '"messages": [{"role": "user", "content": "hi"}]'
    last = f"{vocabulary - 1}"
    return {
        "empty prompt": completion("prompt", [], "empty", "at least one"),
        "empty list of ids among several": completion("prompt", [[5], []], "empty", "at least one"),
        "no message": chat('{"messages": []}', "messages", "[]", "at least 1"),
        "prompt longer than the context": completion("prompt", [5] * room, f"{room} tokens", what),
        "messages longer than the context": chat(
            json.dumps({"messages": [{"role": "user", "content": "z" * 40 * room}]}),
            "messages",
            f"{room} tokens",
            what,
        ),
        "max_tokens over the room left": completion(
            "max_tokens", room, f"max_tokens = {room}", f"{room} tokens", what
        ),
        "max_completion_tokens over the room left": completion(
            "max_completion_tokens", room, f"max_completion_tokens = {room}", f"{room} tokens", what
        ),
        "min_tokens over max_tokens": completion("min_tokens", 9, "9", "8 tokens", max_tokens=8),
        "negative temperature": completion("temperature", -0.5, "-0.5", "0"),
        "temperature that is no number": chat(
            f'{{{hi}, "temperature": NaN}}', "temperature", "NaN", "finite"
        ),
        "infinite temperature": chat(
            f'{{{hi}, "temperature": 1e999}}', "temperature", "Infinity", "finite"
        ),
        "top_p 0": completion("top_p", 0, "= 0", "greater than 0"),
        "top_p over 1": completion("top_p", 1.5, "1.5", "less than or equal to 1"),
        "min_p over 1": completion("min_p", 2, "= 2", "less than or equal to 1"),
        "top_k below -1": completion("top_k", -2, "-2", "-1"),
        "penalty over 2": completion("presence_penalty", 2.5, "2.5", "equal to 2"),
        "repetition_penalty 0": completion("repetition_penalty", 0, "= 0", "0.01"),
        "unknown model": completion("model", "gpt-9", "gpt-9", model, status=404),
        "malformed JSON": chat("{", None, "not JSON", "line 1 column 1"),
        "no body": chat("", None, "not JSON"),
        "no object": chat("[]", None, "[]", "object"),
        "wrong type: text for a number": completion("max_tokens", "5", '"5"', "integer"),
        "wrong type: truth for a number": completion("n", True, "true", "integer"),
        "wrong type: number for a text": chat(
            '{"messages": [{"role": "user", "content": 3}]}', "messages", "content", "3", "string"
        ),
        "wrong type: text for truth": completion("stream", "yes", '"yes"', "boolean"),
        "no prompt": chat("{}", "messages", "missing"),
        "body over 8 MB": Bad(
            COMPLETIONS,
            json.dumps({"prompt": "z" * 8 * MEBIBYTE}).encode(),
            413,
            None,
            (str(8 * MEBIBYTE + 14), str(8 * MEBIBYTE)),
        ),
        "token id beyond the vocabulary": completion(
            "prompt", [5, vocabulary], str(vocabulary), last
        ),
        "negative token id": completion("prompt", [5, -1], "-1", "0"),
        "stop token beyond the vocabulary": completion(
            "stop_token_ids", [vocabulary], str(vocabulary), last
        ),
        "logit_bias beyond the vocabulary": completion(
            "logit_bias", {str(vocabulary): 1}, str(vocabulary), f"0 to {last}"
        ),
        "logit_bias for a word": completion("logit_bias", {"the": 1}, '"the"', f"0 to {last}"),
        "logit_bias over 100": completion("logit_bias", {"5": 101}, "[5] = 101", "100"),
        "logit_bias as a list": completion("logit_bias", [[5, 1]], "[[5, 1]]", "object"),
        "allowed token beyond the vocabulary": completion(
            "allowed_token_ids", [5, vocabulary], str(vocabulary), last
        ),
        "no allowed token": completion("allowed_token_ids", [], "[]", "at least 1"),
        "too many allowed tokens": completion("allowed_token_ids", [5] * 4097, "4097", "4096"),
        "only end tokens before min_tokens": completion(
            "allowed_token_ids", [11], "no token", "min_tokens", min_tokens=1, stop_token_ids=[11]
        ),
        "bad word of nothing": completion("bad_words", ["  "], "bad_words[0]", "leave it out"),
        "empty bad word": completion("bad_words", ["a", ""], "bad_words[1]", "at least 1"),
        "too many bad words": completion("bad_words", ["x"] * 257, "257", "256"),
        "bad word too long": completion("bad_words", ["x" * 129], "129", "128"),
        "n=0": completion("n", 0, "= 0", "greater than or equal to 1"),
        "too many choices": completion("n", 129, "129", "128"),
        "too many stop strings": completion("stop", ["x"] * 65, "65", "64"),
        "stop string too long": completion("stop", "x" * 513, "513", "512"),
        "stop string too long among several": completion(
            "stop", ["a", "x" * 513], "stop[1]", "513", "512"
        ),
        "empty stop string": completion("stop", "", '""', "at least 1"),
        "lone surrogate in a message": chat(
            '{"messages": [{"role": "user", "content": "\\ud800"}]}', "messages", "surrogate"
        ),
        "lone surrogate in a stop string": chat(
            f'{{{hi}, "stop": "\\udfff."}}', "stop", "surrogate"
        ),
        "lone surrogate in a prompt": Bad(
            COMPLETIONS, b'{"prompt": ["a", "b\\ud83d c"]}', 400, "prompt", ("surrogate",)
        ),
        "nested without end": chat(f'{{{hi}, "x": {"[" * 10_000}', None, "not JSON"),
        # what other servers follow, and would change the answer
        "guided_json": completion("guided_json", {"type": "objekt"}, "objekt"),
        "best_of": completion("best_of", 2, "= 2", "absence or 1"),
        "beam search": completion("use_beam_search", True, "true", "absence or false"),
        "beams": completion("num_beams", 4, "= 4", "absence or 1"),
        "no prompt token left": completion("truncate_prompt_tokens", 0, "= 0", "-1", "1"),
        "echo of a chat": chat(f'{{{hi}, "echo": true}}', "echo", "true", "absence or false"),
        "suffix": completion("suffix", "end", '"end"', "not supported"),
        "response_format": completion(
            "response_format", {"type": "yaml"}, '"yaml"', "json_object, json_schema"
        ),
        "tools": chat(
            f'{{{hi}, "tools": [{{"type": "function"}}]}}', "tools", "tools[0].function is missing"
        ),
        "tool_choice": completion("tool_choice", "required", '"required"', '"none"'),
        "adapter": completion("lora_path", "x", '"x"', "not supported"),
        "image": chat(
            '{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}',
            "messages",
            "image_url",
            "text",
        ),
        "role": chat(
            '{"messages": [{"role": "poet", "content": "x"}]}', "messages", '"poet"', "developer"
        ),
    }
