"""Three services in which a request is slow for a known reason, and a page of the service that asks
it: queued, on a slow wire, preempted.

python -m tests.e2e.slow_requests docs    takes the pictures of docs/slow-requests.md, with the trial model
"""

import asyncio
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.e2e.browser import Tab, tab
from tests.e2e.service import Service, wait_for
from tests.faults import Fault, Faults, Rule

from baton.core.ids import TokenId

GREEDY = ("--override-generation-config", '{"temperature": 0}')
QUESTION = "Why is the sky blue?"
SEEN = "Number(document.body.dataset.snapshots || 0)"
DELAY_MS = 1_800  # less than a read may take (faulty_worker.py)


class Sizes(NamedTuple):
    """How much the other requests of a service have to do, so that it takes some seconds."""

    prompts: int  # that are before the slow one
    prompt_tokens: int  # of each
    step_tokens: int  # of them that prefill computes at once
    answers: int  # requests that generate beside the slow one
    answer_tokens: int  # of each; they and the prompt fit the pool alone
    own_tokens: int  # of the slow answer where it is preempted; more than fit beside the others


TINY = Sizes(12, 3_900, 16, answers=4, answer_tokens=1_200, own_tokens=330)
TRIAL = Sizes(5, 600, 64, answers=2, answer_tokens=260, own_tokens=80)


class Stage:
    """A service, and what makes a request slow in it.

    Attributes:
        label: what the lane of the slow request says meanwhile
        tokens: at most, of its answer
    """

    def __init__(
        self, service: Service, label: str, tokens: int, load: Callable[["Stage"], None]
    ) -> None:
        """load: begins what is in the way of the slow request, just before that comes"""
        self.service, self.label, self.tokens = service, label, tokens
        self._load = load
        self._threads: list[threading.Thread] = []

    def load(self) -> None:
        """Begin what is in the way."""
        self._load(self)

    def ask(self, prompts: Sequence[list[TokenId]], tokens: int) -> None:
        """Ask for these too, and do not wait for the answers."""
        fields = {"max_tokens": tokens, "ignore_eos": True}
        for prompt in prompts:
            ask = threading.Thread(target=self.service.ids, args=(prompt,), kwargs=fields)
            ask.start()
            self._threads.append(ask)

    def rest(self) -> None:
        """Wait for the others."""
        for thread in self._threads:
            thread.join()


def apart(number: int, tokens: int) -> list[TokenId]:
    """A prompt that begins like no other."""
    return [TokenId(1 + (number + 7 * i) % 250) for i in range(tokens)]


def states(service: Service, role: str) -> list[str]:
    """Those of the rooms of all workers of a role."""
    workers = service.ledger()["workers"]
    return [room["state"] for w in workers if w["role"] == role for room in w["rooms"]]


@contextmanager
def _split(
    directory: Path,
    model: Path,
    *,
    prefill: Sequence[str],
    decode: Sequence[str],
    faults: Faults | None = None,
) -> Iterator[Service]:
    """A service whose workers are called as those of `baton serve`."""
    service = Service(directory, model)
    try:
        service.start_gateway(*GREEDY)
        service.start_worker("prefill", *prefill, name="prefill-0")
        service.start_worker("decode", *decode, name="decode-0", faults=faults)
        service.wait_ready()
        yield service
    finally:
        service.close()


@contextmanager
def queue(directory: Path, model: Path, sizes: Sizes) -> Iterator[Stage]:
    """Long prompts are before it, on the only prefill worker."""
    pools = ("--kv-pages", str(sizes.prompts * (sizes.prompt_tokens // 64 + 2) + 20))
    small = (*pools, "--max-num-batched-tokens", str(sizes.step_tokens))

    def load(stage: Stage) -> None:
        stage.ask([apart(n, sizes.prompt_tokens) for n in range(sizes.prompts)], 1)
        most = 3 * sizes.prompts // 4  # the first may be over before the last comes
        wait_for(
            lambda: len(states(stage.service, "prefill")) >= most, seconds=20, why="they are there"
        )

    with _split(directory, model, prefill=small, decode=pools) as service:
        stage = Stage(service, "Queued", 12, load)
        yield stage
        stage.rest()


@contextmanager
def wire(directory: Path, model: Path, sizes: Sizes) -> Iterator[Stage]:
    """What decode reads takes long to arrive."""
    pools, slow = ("--kv-pages", "100"), Faults((Rule(Fault.DELAY, delay_ms=DELAY_MS),))
    with _split(directory, model, prefill=pools, decode=pools, faults=slow) as service:
        yield Stage(service, "KV transfer", 4, lambda stage: None)


@contextmanager
def preemption(directory: Path, model: Path, sizes: Sizes) -> Iterator[Stage]:
    """Decode has too little memory for all that it runs, and the slow request came last."""
    pages = ("--page-size", "16")
    tight = (*pages, "--kv-pages", str((20 + sizes.answer_tokens) // 16 + 2))
    roomy = (*pages, "--kv-pages", "200")

    def load(stage: Stage) -> None:
        stage.ask([apart(n, 20) for n in range(sizes.answers)], sizes.answer_tokens)
        wait_for(
            lambda: states(stage.service, "decode").count("running") == sizes.answers,
            seconds=20,
            why="all run",
        )

    with _split(directory, model, prefill=roomy, decode=tight) as service:
        stage = Stage(service, "Preempted", sizes.own_tokens, load)
        yield stage
        stage.rest()


async def opened(page: Tab, stage: Stage, *, width: int, height: int) -> None:
    """Open the page as its user does."""
    await page.look(width=width, height=height, dark=False)
    await page.open(f"http://127.0.0.1:{stage.service.port}/")
    await page.until(f"{SEEN} >= 2", why="two snapshots have come")


async def ask_in_the_page(page: Tab, stage: Stage) -> None:
    """Ask in the chat box, and wait until the page shows that the request waits."""
    await page.value(f"document.getElementById('chat-tokens').value = '{stage.tokens}'")
    await page.value("document.getElementById('chat-text').focus()")
    await page.type(QUESTION)
    await asyncio.to_thread(stage.load)
    await page.press("Enter", 13)
    mine = """[...document.querySelectorAll('#lanes .lane')].find((lane) =>
      !lane.querySelector('.yours').hidden)"""
    said = f"({mine})?.querySelector('.said').innerText"
    if (
        stage.label == "Queued"
    ):  # nothing of its answer is known yet, so no lane is known as its own
        said = "document.querySelector('#lanes .lane .said')?.innerText"
    await page.until(f"{said} === {stage.label!r}", why=f"its lane says {stage.label}", seconds=40)


OWN_ITEM = """[...document.querySelectorAll('#slow li')].find((item) =>
  !item.querySelector('.yours').hidden)"""


async def wait_for_the_account(page: Tab) -> None:
    """Wait until the page says where the time went."""
    await page.until("document.querySelector('.spent .why')", why="a sentence", seconds=90)
    await page.until(OWN_ITEM, why="it is listed")


async def _picture(page: Tab, path: Path) -> None:
    """Save what is seen, in so few colours that it is small."""
    from PIL import Image

    await page.screenshot(path)
    with Image.open(path) as seen:
        few = seen.convert("RGB").quantize(128, method=Image.Quantize.MAXCOVERAGE)
        few.save(path, optimize=True)


async def _pictures(folder: Path, model: Path) -> None:
    stages: dict[str, Callable[..., object]] = {
        "queue": queue,
        "wire": wire,
        "preemption": preemption,
    }
    for name, begin in stages.items():
        with tempfile.TemporaryDirectory() as directory:
            here = Path(directory)
            async with tab(here / "profile") as page:
                with begin(here, model, TRIAL) as stage:
                    await opened(page, stage, width=1440, height=900)
                    await ask_in_the_page(page, stage)
                    await wait_for_the_account(page)
                    await asyncio.sleep(0.8)  # what moves on the page is at rest
                    await _picture(page, folder / f"slow-{name}.png")
                    await page.look(width=390, height=844, dark=True, phone=True)
                    await page.value("document.getElementById('why-slow').scrollIntoView()")
                    await asyncio.sleep(0.7)
                    await _picture(page, folder / f"slow-{name}-phone.png")


if __name__ == "__main__":
    from baton.cli.models import TRIAL as NAME
    from baton.cli.models import ensure

    asyncio.run(_pictures(Path(sys.argv[1]), ensure(NAME)))
