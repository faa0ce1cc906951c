"""What `baton trace` draws."""

import io
from typing import Any

import httpx
import pytest
from rich.console import Console

from baton.cli import trace
from baton.cli.trace import BAR, bar, picture_of, table_of


def phase(where: str, name: str, start: int, end: int) -> dict[str, Any]:
    return {"where": where, "epoch": 1, "name": name, "start_us": start, "end_us": end}


TIMELINE = {
    "id": "cmpl-1",
    "room": "ab" * 16,
    "arrived": 0.0,
    "prompt_tokens": 812,
    "cached_tokens": 512,
    "generated_tokens": 64,
    "first_us": 50_000,
    "total_us": 100_000,
    "path": [
        phase("prefill-0", "computing", 0, 50_000),
        phase("decode-0", "running", 50_000, 100_000),
    ],
    "workers": [phase("prefill-0", "offered", 50_000, 60_000)],
    "end": "length",
    "verdict": {
        "says": "100 ms: 50 ms (50%) spent on its prompt.",
        "advice": "A shorter prompt helps.",
        "more": "https://example.com/slow#prompt",
    },
}


def drawn(what: Any, width: int = 80) -> list[str]:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return [line.rstrip() for line in console.export_text().splitlines()]


def test_a_picture_fits_a_narrow_terminal_and_says_where_the_time_went() -> None:
    lines = drawn(picture_of(TIMELINE))
    assert "812 prompt tokens, 512 of them cached; 64 generated; end: length" in lines
    assert "first token after 50.0 ms, whole after 100.0 ms" in lines
    (computing,) = (line for line in lines if "computing" in line)
    (running,) = (line for line in lines if "running" in line)
    (first,) = (line for line in lines if "first token " in line and "▼" in line)
    assert computing.count("█") == running.count("█") == BAR // 2
    assert running.index("█") == computing.rindex("█") + 1 == first.index("▼")
    assert computing.startswith("prefill-0")
    assert max(map(len, lines)) <= 80


def test_it_says_what_took_most_of_the_time_and_what_helps() -> None:
    lines = drawn(picture_of(TIMELINE))
    assert "100 ms: 50 ms (50%) spent on its prompt." in lines
    assert "A shorter prompt helps." in lines
    assert "https://example.com/slow#prompt" in lines


@pytest.mark.parametrize("verdict", [{}, {"verdict": None}])
def test_a_gateway_of_before_and_a_request_of_no_time_have_none(verdict: dict[str, None]) -> None:
    old = {name: value for name, value in TIMELINE.items() if name != "verdict"} | verdict
    assert not any("helps" in line for line in drawn(picture_of(old)))


def test_a_request_without_an_answer() -> None:
    lines = drawn(picture_of(TIMELINE | {"first_us": None, "id": "", "path": [], "workers": []}))
    assert "first token after -, whole after 100.0 ms" in lines


@pytest.mark.parametrize(
    ("start", "end", "whole", "eighths"),
    [(0, 100, BAR, 0), (0, 0, 0, 1), (100, 100, 0, 1), (50, 51, 0, 3), (25, 75, BAR // 2, 0)],
)
def test_a_bar_is_as_long_as_its_share(start: int, end: int, whole: int, eighths: int) -> None:
    drawn = bar(start, end, 100)
    assert len(drawn) <= BAR
    assert drawn.count("█") == whole
    assert (drawn[-1] == "█") == (not eighths)


def test_the_last_requests_as_a_table() -> None:
    lines = drawn(table_of([TIMELINE, TIMELINE | {"id": "", "first_us": None}]), 120)
    assert sum("100.0 ms" in line for line in lines) == 2
    assert sum("cmpl-1" in line for line in lines) == 1


def test_a_gateway_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    asked = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        alone = request.url.path == "/debug/requests"
        return httpx.Response(200, json={"requests": [TIMELINE]} if alone else TIMELINE)

    client = httpx.Client
    monkeypatch.setattr(
        httpx, "Client", lambda **named: client(transport=httpx.MockTransport(answer), **named)
    )
    trace.trace(None, "http://g")
    trace.trace("cmpl-1", "http://g")
    assert asked == ["/debug/requests", "/debug/requests/cmpl-1"]
    assert "computing" in capsys.readouterr().out
