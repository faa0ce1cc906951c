"""The service sleeps with empty pools, and serves again."""

import asyncio

import httpx
import msgspec
import pytest

from baton.core.messages import FinishReason
from baton.gateway.door import LedgerReport

from .fake_door import FakeDoor, view
from .models import ids
from .rig import make_app, request

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
FAR = ("10.0.0.7", 5)


def report(*cleared: tuple[str, ...], missing: tuple[str, ...] = ()) -> LedgerReport:
    views = tuple(
        msgspec.structs.replace(view(f"w{i}", clean=True), cleared=c) for i, c in enumerate(cleared)
    )
    return LedgerReport(views, missing, 0)


CLEAR = report(("full", "slot"), ("full", "slot"))


def door() -> FakeDoor:
    found = FakeDoor()
    found.cleared, found.script = [CLEAR], [ids("x"), FinishReason.STOP]
    return found


def converse(found: FakeDoor, *steps: tuple[str, str]) -> list[httpx.Response]:
    """Requests to one application, one after the other."""

    async def go() -> list[httpx.Response]:
        transport = httpx.ASGITransport(make_app(found), client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            return [
                await http.request(m, p, json=CHAT if p.startswith("/v1") else None)
                for m, p in steps
            ]

    return asyncio.run(go())


def test_asleep_refuses_and_awake_serves_again():
    found = door()
    slept, sleeping, ready, refused, woken, served = converse(
        found,
        ("POST", "/sleep?level=1"),
        ("GET", "/is_sleeping"),
        ("GET", "/ready"),
        ("POST", "/v1/chat/completions"),
        ("POST", "/wake_up"),
        ("POST", "/v1/chat/completions"),
    )
    assert slept.json() == {"cleared": {"w0": ["full", "slot"], "w1": ["full", "slot"]}}
    assert sleeping.json() == {"is_sleeping": True}
    assert ready.status_code == 503
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "asleep")
    assert int(refused.headers["retry-after"]) >= 1
    assert woken.json() == {"is_sleeping": False}
    assert served.status_code == 200


def test_workers_that_still_hold_something_are_asked_again():
    found = door()
    found.cleared = [report(("full",), ()), report(("full",), missing=("w1",)), CLEAR]
    assert converse(found, ("POST", "/sleep"))[0].status_code == 200
    assert found.clears == 3


def test_who_cannot_sleep_stays_awake(monkeypatch):
    monkeypatch.setattr("baton.gateway.sleep.CLEAR_S", 0.1)
    found = door()
    found.cleared = [report((), ("full",))]
    slept, sleeping, served = converse(
        found, ("POST", "/sleep"), ("GET", "/is_sleeping"), ("POST", "/v1/chat/completions")
    )
    assert (slept.status_code, slept.json()["error"]["code"]) == (503, "not_asleep")
    assert "w0" in slept.json()["error"]["message"]
    assert sleeping.json() == {"is_sleeping": False}
    assert served.status_code == 200


@pytest.mark.parametrize("mode", ["wait", "abort"])
def test_open_requests_end_first(mode):
    found = door()
    found.script = [ids("x")]

    async def go() -> tuple[httpx.Response, httpx.Response]:
        transport = httpx.ASGITransport(make_app(found), client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
            asked = asyncio.ensure_future(
                http.post("/v1/chat/completions", json=CHAT | {"stream": True})
            )
            while not found.submitted:
                await asyncio.sleep(0)
            sleeping = asyncio.ensure_future(http.post(f"/sleep?mode={mode}"))
            await asyncio.sleep(0.1)
            if mode == "wait":
                assert found.clears == 0, "cleared under a request that was still open"
                found.finish(found.submitted[0].request)
            return await asked, await sleeping

    answer, slept = asyncio.run(go())
    assert slept.status_code == 200
    assert ("[DONE]" in answer.text, '"asleep"' in answer.text) == (mode == "wait", mode == "abort")


def test_an_unknown_mode_is_refused():
    assert request(door(), "POST", "/sleep?mode=deep").status_code == 400


@pytest.mark.parametrize("path", ["/sleep", "/wake_up", "/reset_prefix_cache", "/drain?worker=d"])
def test_operators_are_local_or_hold_a_key(path):
    fake = door()
    fake.report = LedgerReport((view("d", clean=True),), (), 0)
    assert request(fake, "POST", path, client=FAR).status_code == 403
    keys, header = {"api_keys": ("k",)}, {"authorization": "Bearer k"}
    assert request(fake, "POST", path, settings=keys).status_code == 401
    assert request(fake, "POST", path, client=FAR, settings=keys, headers=header).status_code == 200


def test_prefix_caches_are_emptied_and_who_did_not_say_so_is_named():
    fake = door()
    fake.report = LedgerReport((view("p", clean=False), view("d", clean=True)), (), 0)
    answer = request(fake, "POST", "/reset_prefix_cache")
    assert (answer.status_code, answer.json(), fake.resets) == (
        200,
        {"success": True, "workers": ["p", "d"]},
        1,
    )
    answer = request(fake, "POST", "/reset_prefix_cache?worker=d")
    assert answer.json() == {"success": True, "workers": ["d"]}
    answer = request(fake, "POST", "/reset_prefix_cache?worker=x")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "worker")
    fake.report = LedgerReport((view("p", clean=False),), ("d", "e"), 0)
    answer = request(fake, "POST", "/reset_prefix_cache")
    assert answer.status_code == 503
    assert "d, e" in answer.json()["error"]["message"]


def test_a_worker_is_drained_by_its_name() -> None:
    fake = door()
    fake.report = LedgerReport((view("p", clean=False), view("d", clean=True)), (), 0)
    answer = request(fake, "POST", "/drain?worker=d")
    assert (answer.status_code, answer.json(), fake.drained) == (
        200,
        {"workers": ["d"], "role": None},
        ("d", None),
    )
    answer = request(fake, "POST", "/drain?worker=p&role=decode")
    assert (answer.json(), fake.drained) == ({"workers": ["p"], "role": "decode"}, ("p", "decode"))


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("", "worker"),
        ("?role=decode", "worker"),
        ("?worker=x", "worker"),
        ("?worker=d&role=x", "role"),
    ],
)
def test_what_cannot_be_drained_is_refused(query: str, param: str) -> None:
    fake = door()
    fake.report = LedgerReport((view("d", clean=True),), (), 0)
    answer = request(fake, "POST", f"/drain{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_worker_that_does_not_say_that_it_drains_is_named() -> None:
    fake = door()
    fake.report = LedgerReport((), ("d",), 0)
    answer = request(fake, "POST", "/drain?worker=d")
    assert answer.status_code == 503
    assert "d has not answered" in answer.json()["error"]["message"]
