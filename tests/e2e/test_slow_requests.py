"""Whoever looks at the live page alone finds out why a request was slow, and `baton trace` says the
same."""

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.browser import CHROMIUM, Tab, tab
from tests.e2e.service import Service
from tests.e2e.slow_requests import (
    OWN_ITEM,
    TINY,
    Sizes,
    Stage,
    ask_in_the_page,
    opened,
    preemption,
    queue,
    wait_for_the_account,
    wire,
)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"
)
Begin = Callable[[Path, Path, Sizes], AbstractContextManager[Stage]]


def words(text: str) -> str:
    """A text whatever its lines."""
    return " ".join(text.split())


async def shown(page: Tab, selector: str) -> str:
    return words(await page.value(f"document.querySelector({json.dumps(selector)}).innerText"))


def traced(service: Service, name: str) -> str:
    """What `baton trace` says."""
    url = f"http://127.0.0.1:{service.port}"
    command = [sys.executable, "-m", "baton.cli.main", "trace", name, "--url", url]
    return words(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def largest(path: list[dict[str, Any]]) -> tuple[set[str], float]:
    """The names of the phases that together took longest, and their share: a sum of this test's
    own."""
    same = {"awaits_turn": "queued", "offloading": "offloaded", "restoring": "offloaded"}
    same |= {"committing": "fetching"}
    spent = Counter[str]()
    for phase in path:
        spent[same.get(phase["name"], phase["name"])] += phase["end_us"] - phase["start_us"]
    ((name, us),) = spent.most_common(1)
    names = {phase["name"] for phase in path if same.get(phase["name"], phase["name"]) == name}
    return names, us / spent.total()


@pytest.mark.parametrize(
    ("begin", "title", "phases", "sentence"),
    [
        pytest.param(
            queue,
            "Queued",
            {"awaits_turn"},
            r"waiting in the queue of prefill worker prefill-0, behind ([89]|1[012]) other prompts\.",
            id="queue",
        ),
        pytest.param(
            wire,
            "KV transfer",
            {"fetching"},
            r"in KV transfer: moving the KV cache of its prompt from prefill-0 to decode-0\.",
            id="wire",
        ),
        pytest.param(
            preemption,
            "Preempted",
            {"offloaded"},
            r"preempted: decode-0 ran out of KV cache memory, and others needed this request's pages\.",
            id="preemption",
        ),
    ],
)
@pytest.mark.timeout(180)
def test_the_page_says_why_it_was_slow(
    tmp_path: Path, tiny: Path, begin: Begin, title: str, phases: set[str], sentence: str
) -> None:
    async def look(stage: Stage) -> None:
        service = stage.service
        async with tab(tmp_path / "profile") as page:
            await opened(page, stage, width=1280, height=900)
            await ask_in_the_page(page, stage)
            await wait_for_the_account(page)
            box, item = (
                await shown(page, ".spent"),
                words(await page.value(f"{OWN_ITEM}.innerText")),
            )
            why = await shown(page, ".spent .why")
            found = re.match(r"([\d.]+) (s|ms): ([\d.]+) (s|ms) \((\d+)%\) (.*)", why)
            assert found, why
            assert int(found[5]) > 50
            assert re.match(sentence, found[6]), why
            assert item.startswith(f"{title} …")
            assert "yours" in item
            assert why in item, "the list says the same as the chat box"
            titles = await page.value(
                "[...document.querySelectorAll('#slow strong')].map((one) => one.innerText)"
            )
            if title == "Queued":  # the slowest had to wait for others, and then asked decode
                assert set(titles) == {title}
            assert f"{title} " in box, "the list of phases names it so, too"
            assert "What helps:" in box
            link = await page.value("document.querySelector('.spent a').href")
            assert link.startswith("https://github.com/baton-llm/baton/")
            assert (Path(__file__).parents[2] / "docs" / "slow-requests.md").exists()
            (id_,) = [
                one["id"]
                for one in service.http.get("/debug/requests").json()["requests"]
                if one["id"].startswith("chatcmpl-")
            ]
            told = service.http.get(f"/debug/requests/{id_}").json()
            names, share = largest(told["path"])
            assert phases <= names
            assert abs(100 * share - int(found[5])) <= 2
            assert words(why) in traced(service, told["room"])
            assert page.complaints == []
            # on a phone nothing is wider than the page
            await page.look(width=360, height=760, dark=True, phone=True)
            assert await page.value("document.documentElement.scrollWidth") <= 360

    with begin(tmp_path, tiny, TINY) as stage:
        asyncio.run(look(stage))
        stage.rest()
        stage.service.wait_clean(10)
