"""A flood of hostile grammars from one client, over HTTP, while another client asks as usual."""

import asyncio
from collections import Counter

import httpx
import pytest

from baton.core.messages import FinishReason

from .fake_door import FakeDoor
from .models import ids
from .rig import make_app, until

WIDE = {"type": "object", "properties": {f"k{i}": {"type": "null"} for i in range(1500)}}
GOOD = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
OVERLOADS = (429, 503)


def hostile(count: int) -> list[dict]:
    """Schemas of which each takes work, and is refused: unknown keyword, combinations, recursion,
    and more ways on than are served."""
    kinds = (
        lambda i: {**WIDE, "title": f"{i}"},
        lambda i: {"not": {"const": i}},
        lambda i: {
            "allOf": [{"type": "object", "additionalProperties": WIDE}, WIDE],
            "title": f"{i}",
        },
        lambda i: {"$ref": "#", "title": f"{i}"},
    )
    return [kinds[i % len(kinds)](i) for i in range(count)]


def body(schema: dict) -> dict:
    return {"prompt": "hi", "structured_outputs": {"json": schema}}


@pytest.mark.parametrize("keyed", [False, True], ids=["by address", "by key"])
def test_another_client_is_served_while_one_floods(keyed):
    door = FakeDoor()
    door.script = [ids("x"), FinishReason.STOP]
    app = make_app(door, api_keys=("bad", "good") if keyed else (), grammar_deadline_s=600.0)

    def client(name: str, host: str) -> httpx.AsyncClient:
        transport = httpx.ASGITransport(app, client=(host, 5))
        headers = {"authorization": f"Bearer {name}"} if keyed else {}
        return httpx.AsyncClient(transport=transport, base_url="http://gateway", headers=headers)

    async def go() -> tuple[list[httpx.Response], list[httpx.Response]]:
        bad = client("bad", "10.0.0.1")
        good = client("good", "10.0.0.1" if keyed else "10.0.0.2")
        async with bad, good:
            flood = [
                asyncio.ensure_future(bad.post("/v1/completions", json=body(schema)))
                for schema in hostile(80)
            ]
            await until(lambda: any(f.done() for f in flood))
            served = [
                await good.post("/v1/completions", json=body({**GOOD, "title": f"{i}"}))
                for i in range(3)
            ]
            still = sum(not f.done() for f in flood)
            assert still, "the flood was over before the others were served"
            return list(await asyncio.gather(*flood)), served

    refused, served = asyncio.run(go())
    assert [r.status_code for r in served] == [200] * 3
    counts = Counter(r.status_code for r in refused)
    assert set(counts) <= {400, *OVERLOADS}, counts
    assert counts[400] > 1
    assert counts[429], "the flood is longer than the queue"
    for r in refused:
        error = r.json()["error"]
        if r.status_code == 400:
            assert error["param"] == "structured_outputs"
        else:
            assert int(r.headers["retry-after"]) > 0
    assert len(door.submitted) == 3
