"""Web pages of other origins, and a proxy in front."""

import pytest

from baton.core.messages import FinishReason
from baton.shell.gateway_settings import CorsSettings

from .fake_door import FakeDoor
from .models import ids
from .rig import request

PAGE = "https://page.example"
OPEN = CorsSettings(allowed_origins=(PAGE,))
CHAT = {"messages": [{"role": "user", "content": "hi"}]}


def door() -> FakeDoor:
    found = FakeDoor()
    found.script = [ids("x"), FinishReason.STOP]
    return found


def preflight(path="/v1/chat/completions", *, origin=PAGE, method="POST", **settings):
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type",
    }
    return request(door(), "OPTIONS", path, headers=headers, settings=settings)


def test_without_the_flag_no_page_is_told_that_it_may():
    assert "access-control-allow-origin" not in preflight().headers
    answer = request(door(), "GET", "/health", headers={"origin": PAGE})
    assert "access-control-allow-origin" not in answer.headers


def test_a_preflight_needs_no_key():
    answer = preflight(cors=OPEN, api_keys=("k",))
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    ("cors", "asked"),
    [
        (OPEN, {"origin": "https://other.example"}),
        (CorsSettings(allowed_origins=("*",), allowed_methods=("GET",)), {}),
        (CorsSettings(allowed_origins=("*",), allowed_headers=("x-none",)), {}),
    ],
)
def test_what_is_not_allowed(cors, asked):
    assert preflight(cors=cors, **asked).status_code == 400


@pytest.mark.parametrize("stream", [False, True])
def test_answers_and_streams_carry_the_header(stream):
    answer = request(
        door(),
        "POST",
        "/v1/chat/completions",
        json=CHAT | {"stream": stream},
        headers={"origin": PAGE},
        settings={"cors": CorsSettings(allowed_origins=(PAGE,), allow_credentials=True)},
    )
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert answer.headers["access-control-allow-credentials"] == "true"


@pytest.mark.parametrize(("body", "status"), [(CHAT, 401), ({}, 401)])
def test_a_page_can_read_why_it_was_refused(body, status):
    settings = {"cors": OPEN, "api_keys": ("k",)}
    answer = request(
        door(),
        "POST",
        "/v1/chat/completions",
        json=body,
        headers={"origin": PAGE},
        settings=settings,
    )
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, PAGE)


@pytest.mark.parametrize("path", ["/api/v1/chat/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(("key", "status"), [("k", 200), ("x", 401)])
def test_below_a_root_path_a_key_is_needed_all_the_same(path, key, status):
    """Whether the proxy hands the root path on or not."""
    answer = request(
        door(),
        "POST",
        path,
        json=CHAT,
        headers={"authorization": f"Bearer {key}"},
        settings={"root_path": "/api", "api_keys": ("k",)},
    )
    assert answer.status_code == status


def test_the_document_names_the_root_path_and_can_be_left_out():
    shown = request(door(), "GET", "/api/openapi.json", settings={"root_path": "/api"})
    assert shown.json()["servers"] == [{"url": "/api"}]
    hidden = request(door(), "GET", "/openapi.json", settings={"describes_itself": False})
    assert hidden.status_code == 404
