"""The live page in a browser, over a real service: a request is asked for in the chat box, and is
seen to pass through the service."""

import asyncio
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.e2e.browser import CHROMIUM, Tab, tab
from tests.e2e.service import Service, split, wait_for

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="chromium is not installed (apt-get install chromium)"
)
ENTER, TAB = ("Enter", 13), ("Tab", 9)
SEEN = "Number(document.body.dataset.snapshots || 0)"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Iterator[Service]:
    # A token of two layers takes a millisecond, so that only a long answer is seen: without chance,
    # none of its tokens ends it.
    with split(
        tmp_path_factory.mktemp("live"),
        tiny,
        gateway=("--override-generation-config", '{"temperature": 0}'),
        prefill=("--kv-pages", "400"),
        decode=("--kv-pages", "400"),
    ) as found:
        yield found


def url(service: Service) -> str:
    return f"http://127.0.0.1:{service.port}"


async def opened(page: Tab, service: Service, *, dark: bool = False, width: int = 1440) -> None:
    await page.look(width=width, height=900, dark=dark, phone=width < 720)
    await page.open(f"{url(service)}/")
    await page.until(f"{SEEN} >= 2", why="two snapshots have come")


async def text(page: Tab, selector: str) -> str:
    return str(await page.value(f"document.querySelector({json.dumps(selector)}).innerText"))


def only_ours(page: Tab, service: Service) -> None:
    assert page.complaints == []
    assert {asked for asked in page.asked if not asked.startswith(url(service))} == set()


def test_a_question_is_answered_and_its_request_is_seen_on_its_way(service, tmp_path):
    async def scenario():
        async with tab(tmp_path) as page:
            await opened(page, service)
            assert await text(page, "#ready") == "Ready"
            assert await text(page, "#model") == "m"
            await page.value("document.getElementById('chat-tokens').value = '4000'")
            await page.value("document.getElementById('chat-text').focus()")
            await page.type("hello there")
            await page.press(*ENTER)
            lane = "document.querySelector('#lanes .lane')"
            await page.until(f"{lane} !== null", why="a lane")
            await page.until(
                f"{lane} && {lane}.innerText.includes('prefill → decode')", why="its workers"
            )
            await page.until(f"{lane}.innerText.includes('Running')", why="it runs")
            await page.until(f"!{lane}.querySelector('.yours').hidden", why="it is known as ours")
            await page.until(
                "[...document.querySelectorAll('#maps p')]"
                ".some((p) => p.innerText.includes('running'))",
                why="its pages",
            )
            await page.until(
                "document.querySelector('.spent .quiet')", why="where the time went", seconds=60
            )
            spent = await text(page, ".spent")
            assert "First token after" in spent
            assert "tokens per second" in spent
            assert "Running" in spent
            await page.until(f"{lane}.innerText.includes('Ended')", why="it has ended")
            assert await text(page, "#announcer") == "The answer is complete."
            only_ours(page, service)

    asyncio.run(scenario())
    service.wait_clean()


def test_workers_and_pairs_are_listed_and_a_worker_that_hangs_is_named(service, tmp_path):
    async def scenario():
        async with tab(tmp_path) as page:
            await opened(page, service)
            workers = await text(page, "#workers")
            assert "prefill" in workers
            assert workers.count("Serves") == 2
            assert "shm" in await text(page, "#pairs")
            assert await page.value("document.querySelectorAll('#workers button').length") == 0
            pid = service.processes["decode"].pid
            os.kill(pid, signal.SIGSTOP)
            try:
                await page.until(
                    "document.getElementById('workers').innerText.includes('Does not answer')",
                    why="the worker is missed",
                )
                assert "decode does not answer" in await text(page, "#announcer")
            finally:
                os.kill(pid, signal.SIGCONT)
            await page.until(
                "!document.getElementById('workers').innerText.includes('Does not')", why="back"
            )
            only_ours(page, service)

    asyncio.run(scenario())


def test_a_phone_has_no_page_wider_than_itself(service, tmp_path):
    async def scenario():
        async with tab(tmp_path) as page:
            await opened(page, service, dark=True, width=360)
            assert await page.value("document.documentElement.scrollWidth") <= 360
            ground = "getComputedStyle(document.body).backgroundColor"
            assert await page.value(ground) == "rgb(14, 17, 21)"
            only_ours(page, service)

    asyncio.run(scenario())


def test_it_can_be_used_by_keyboard_and_every_control_has_a_name(service, tmp_path):
    async def scenario():
        async with tab(tmp_path) as page:
            await opened(page, service)
            reached = []
            await page.press(*TAB)
            while await page.value("document.activeElement !== document.body"):
                reached.append(
                    await page.value(
                        "document.activeElement.id || document.activeElement.className"
                    )
                )
                ring = await page.value(
                    "getComputedStyle(document.activeElement).outlineStyle !== 'none'"
                )
                assert ring, f"the focus on {reached[-1]} is not seen"
                assert len(reached) < 40, "the focus is caught"
                await page.press(*TAB)
            order = [
                name for name in reached if name in ("skip", "pause", "chat-text", "chat-send")
            ]
            assert order[:4] == ["skip", "pause", "chat-text", "chat-send"]
            unnamed = """
              [...document.querySelectorAll('button, input, textarea, [tabindex="0"], canvas[role]')]
                .filter((e) => !(e.innerText || e.getAttribute('aria-label') || e.labels?.length
                                 || e.getAttribute('aria-labelledby')))
                .map((e) => e.outerHTML)"""
            assert await page.value(unnamed) == []
            assert await page.value("document.querySelectorAll('main, header, footer').length") == 3

    asyncio.run(scenario())


def test_nothing_is_computed_while_the_page_is_paused(service, tmp_path):
    async def scenario():
        async with tab(tmp_path) as page:
            await opened(page, service)
            await page.value("document.getElementById('pause').click()")
            await asyncio.sleep(0.3)
            seen = await page.value(SEEN)
            await asyncio.sleep(1.2)
            assert await page.value(SEEN) == seen
            await page.value("document.getElementById('pause').click()")
            await page.until(f"{SEEN} > {seen}", why="it goes on")

    asyncio.run(scenario())


def test_a_service_with_keys_asks_for_one_and_keeps_it_in_the_tab(tmp_path, tiny):
    """The page is on the same machine, which may watch without a key; only a question needs one."""

    async def scenario(service: Service):
        async with tab(tmp_path / "profile") as page:
            await opened(page, service)
            await page.value("document.getElementById('chat-text').focus()")
            await page.type("hello")
            await page.press(*ENTER)
            await page.until(
                "document.querySelector('.turn.failed')?.innerText.includes('API key')", why="401"
            )
            page.complaints.clear()  # the browser's own line about the status
            await page.value(
                "document.getElementById('key').value = 'k3y';"
                "document.getElementById('key').dispatchEvent(new Event('change'))"
            )
            assert await page.value("sessionStorage.getItem('baton-api-key')") == "k3y"
            assert await page.value("localStorage.length + document.cookie.length") == 0
            await page.value("document.getElementById('chat-tokens').value = '8'")
            await page.type("hello")
            await page.press(*ENTER)
            await page.until("document.querySelector('.spent')", why="an answer")
            only_ours(page, service)

    (tmp_path / "service").mkdir()
    with split(tmp_path / "service", tiny, gateway=("--api-key", "k3y")) as service:
        asyncio.run(scenario(service))


@contextmanager
def demo(directory: Path, tiny: Path) -> Iterator[Service]:
    """A whole `baton serve --demo`."""
    service = Service(directory, tiny)
    flags = ["--port", str(service.port), "--served-model-name", "m", "--demo"]
    flags += ["--kv-pages", "400", "--skip-server-warmup", "--threads", "1"]
    flags += ["--override-generation-config", '{"temperature": 0}']
    try:
        service.start_other("serve", ["-m", "baton.cli.main", "serve", str(tiny), *flags])
        service.wait_ready()
        yield service
    finally:
        service.close()


def pid_of(service: Service, name: str) -> int:
    (worker,) = [w for w in service.ledger()["workers"] if w["name"] == name]
    return int(worker["ranks"][0]["pid"])


def test_the_buttons_of_the_demo_kill_and_freeze_a_worker(tmp_path, tiny):
    """Its supervisor starts the killed worker again."""

    async def scenario(service: Service):
        async with tab(tmp_path / "profile") as page:
            await opened(page, service)
            pid, boot = (
                pid_of(service, "decode-0"),
                await text(page, "#workers tr:first-child code"),
            )
            assert (
                await text(page, "#workers tr:first-child td:last-child")
                == "Kill\nCut the wire\nFlip bits"
            )
            await page.value("document.querySelector('#workers tr:first-child button').click()")
            await asyncio.to_thread(
                wait_for, lambda: not psutil.pid_exists(pid), seconds=10, why="it is killed"
            )
            await page.until(
                f"""[...document.querySelectorAll('#workers tr')].some((row) =>
                  row.innerText.includes('decode-0') && row.innerText.includes('Serves')
                  && !row.innerText.includes({json.dumps(boot)}))""",
                why="it is back, as another process",
                seconds=60,
            )
            assert pid_of(service, "decode-0") != pid
            frozen = pid_of(service, "prefill-0")
            await page.value("document.querySelector('#workers tr:last-child button').click()")
            began = time.monotonic()
            await page.until(
                "document.getElementById('workers').innerText.includes('Does not answer')",
                why="it stands still",
            )
            await page.until(
                """[...document.querySelectorAll('#workers tr')].some((row) =>
                  row.innerText.includes('prefill-0') && row.innerText.includes('Serves'))""",
                why="it goes on",
            )
            assert time.monotonic() - began < 20
            assert pid_of(service, "prefill-0") == frozen, "the same process"

    with demo(tmp_path, tiny) as service:
        asyncio.run(scenario(service))


def answered(service: Service, text: str) -> str:
    """What the model says to a question of the chat box."""
    body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 3000}
    answer = service.http.post("/v1/chat/completions", json=body | {"cache_salt": "another"})
    return str(answer.json()["choices"][0]["message"]["content"])


def wires(service: Service, name: str) -> set[tuple[str, int]]:
    """The near ends of a worker's connections."""
    found = psutil.Process(pid_of(service, name)).net_connections("tcp")
    return {tuple(c.laddr) for c in found if c.status == psutil.CONN_ESTABLISHED}


def counted(service: Service, counter: str) -> int:
    """The sum of the counters that a pattern finds."""
    page = service.http.get("/metrics").text
    found = re.findall(rf"^{counter} ([0-9.e+]+)$", page, re.M)
    return sum(int(float(n)) for n in found)


def begun_again(service: Service) -> int:
    """How many attempts there were beside the first one of each request."""
    return counted(service, r'baton:gateway_events_total{.*event="new_epoch".*}')


@pytest.mark.parametrize("worker", ["decode-0", "prefill-0"])
def test_a_stream_goes_on_when_the_demo_cuts_a_wire(tmp_path, tiny, worker):
    """In the middle of an answer; the connection is made anew, and nothing is begun again."""

    async def scenario(service: Service):
        due = answered(service, "hello there")
        async with tab(tmp_path / "profile") as page:
            await opened(page, service)
            before = wires(service, worker)
            await page.value("document.getElementById('chat-tokens').value = '3000'")
            await page.value("document.getElementById('chat-text').focus()")
            await page.type("hello there")
            await page.press(*ENTER)
            said = "document.querySelector('.turn.answered .text').textContent"
            await page.until(f"{said}.length > 20", why="it has begun")
            button = f"""[...document.querySelectorAll('#workers button')].find((one) =>
              one.ariaLabel.startsWith('Cut the wire {worker}'))"""
            await page.value(f"{button}.click()")
            length = await page.value(f"{said}.length")
            await page.until(
                "document.getElementById('announcer').innerText === 'The answer is complete.'",
                why="its end",
                seconds=60,
            )
            assert length < len(due) / 2, "it was cut in the middle"
            assert await page.value(said) == due
            assert await page.value("document.querySelector('.turn.failed')") is None
            after = await asyncio.to_thread(
                wait_for,
                lambda: len(now := wires(service, worker)) == len(before) and now,
                seconds=10,
                why="its connections are whole",
            )
            assert len(after - before) >= 1, "one is another"
            assert begun_again(service) == 0
            only_ours(page, service)

    with demo(tmp_path, tiny) as service:
        asyncio.run(scenario(service))
        service.wait_clean()


def damaged(service: Service) -> int:
    """How many cached pages were found to have changed."""
    return counted(service, r"baton:prefix_cache_damaged_pages_total{.*}")


@pytest.mark.parametrize("worker", ["decode-0", "prefill-0"])
def test_bits_that_the_demo_flips_are_found_and_change_no_answer(tmp_path, tiny, worker):
    """They flip in what is cached of a question, which is asked again. While a request has pages
    there, they do not."""

    async def asked(page) -> str:
        await page.value("document.getElementById('chat-text').focus()")
        await page.type("say it once more, " * 15)  # more than a page of tokens
        await page.press(*ENTER)
        return "[...document.querySelectorAll('.turn.answered .text')].at(-1).textContent"

    async def scenario(service: Service):
        async with tab(tmp_path / "profile") as page:
            await opened(page, service)
            announced = "document.getElementById('announcer').innerText"
            flip = f"""[...document.querySelectorAll('#workers button')].find((one) =>
              one.ariaLabel.startsWith('Flip bits {worker}')).click()"""
            await page.value("document.getElementById('chat-tokens').value = '1500'")
            said = await asked(page)
            await page.until(f"{said}.length > 20", why="it has begun")
            if worker == "decode-0":  # by hand: a browser complains of what is refused
                path, own = f"/demo/flip?worker={worker}", {"x-baton-demo": "1"}
                refused = await asyncio.to_thread(service.http.post, path, headers=own)
                assert (refused.status_code, refused.json()["error"]["code"]) == (409, "busy")
            await page.until(
                f"{announced} === 'The answer is complete.'", why="its end", seconds=60
            )
            due = await page.value(said)
            await asyncio.to_thread(service.wait_clean)
            assert damaged(service) == 0
            await page.value(flip)
            await asyncio.to_thread(
                wait_for, lambda: damaged(service) > 0, seconds=10, why="it is found"
            )
            await asyncio.sleep(1.2)  # what was not hashed within a second is not used
            await page.value(f"{announced.removesuffix('.innerText')}.innerText = ''")
            await page.value("document.getElementById('chat-new').click()")
            said = await asked(page)
            await page.until(
                f"{announced} === 'The answer is complete.'", why="its end", seconds=60
            )
            assert await page.value(said) == due
            assert begun_again(service) == 0
            only_ours(page, service)

    with demo(tmp_path, tiny) as service:
        asyncio.run(scenario(service))
        service.wait_clean()
