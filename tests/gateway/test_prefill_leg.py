"""What a proxy of two vLLM engines sends to each, over a scripted door. The bodies are those of
vLLM's example proxy and of llm-d's sidecar."""

import pytest

from baton.core.messages import FinishReason

from .fake_door import FakeDoor
from .models import ids
from .rig import MODEL, events, post

PRODUCE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "model": MODEL},
    "/v1/completions": {"prompt": "zz", "model": MODEL},
}


def door() -> FakeDoor:
    found = FakeDoor()
    found.script = [ids("he"), ids("y"), FinishReason.LENGTH]
    return found


def prefill(body: dict) -> dict:
    return body | {"kv_transfer_params": PRODUCE, "stream": False, "max_tokens": 1}


@pytest.mark.parametrize("path", BODIES)
def test_a_prefill_leg_computes_nothing_and_the_decode_leg_is_a_request(path):
    body = BODIES[path] | {"max_tokens": 7, "seed": 3}
    plain, first, second = door(), door(), door()
    right = post(plain, path, body).json()
    said = post(first, path, prefill(body))
    assert (said.status_code, first.submitted) == (200, [])
    answer = said.json()
    assert answer["object"] == right["object"]
    assert answer["usage"]["prompt_tokens"] == right["usage"]["prompt_tokens"]
    assert answer["usage"]["completion_tokens"] == 0
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "length"
    assert not (choice["text"] if "text" in choice else choice["message"]["content"])
    params = answer["kv_transfer_params"]
    decode = body | {"kv_transfer_params": params, "stream": True}
    *chunks, done = events(post(second, path, decode))
    assert done == "[DONE]"
    assert "kv_transfer_params" not in right
    texts = [c["choices"][0].get("text", c["choices"][0].get("delta", {})) for c in chunks]
    assert "".join(t if isinstance(t, str) else t.get("content", "") for t in texts) == "hey"
    assert second.submitted[0].prompt == plain.submitted[0].prompt
    assert second.submitted[0].limits == plain.submitted[0].limits


def test_a_prefill_leg_is_refused_as_its_request_would_be():
    body = prefill(BODIES["/v1/completions"]) | {"prompt": [1 << 20]}
    assert post(door(), "/v1/completions", body).status_code == 400


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"kv_transfer_params": {"remote_block_ids": [[1, 2]]}}, "kv_transfer_params"),
        ({"kv_transfer_params": {"do_remote_decode": "yes"}}, "kv_transfer_params"),
        ({"kv_transfer_params": [1]}, "kv_transfer_params"),
        ({"kv_transfer_params": PRODUCE, "stream": True}, "stream"),
    ],
)
def test_what_else_it_may_say_is_refused(path, fields, param):
    used = door()
    said = post(used, path, BODIES[path] | fields)
    assert (said.status_code, said.json()["error"]["param"]) == (400, param)
    assert used.submitted == []


@pytest.mark.parametrize("said", [None, {}])
def test_it_may_say_nothing(said):
    used = door()
    body = BODIES["/v1/completions"] | {"kv_transfer_params": said}
    assert post(used, "/v1/completions", body).status_code == 200
    assert len(used.submitted) == 1
