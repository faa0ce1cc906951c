"""Clients that ask without a pause, and write down what they see."""

import asyncio
import random
import time
from collections.abc import Sequence

import aiohttp
import msgspec

from baton.core.errors import BatonError
from baton.dev.bench.client import Events, StreamEvent, refusal
from baton.dev.chaos.history import Seen

TEXT = (
    "the runner carries a baton through every gate and hands it over before the light is gone "
    "while keepers count waves and write their numbers into a book that nobody reads"
)
PATTERN = "([a-z]{1,9}[ ,]){400}"  # longer than any answer here
TIMEOUT_S = 60.0  # --request-timeout of the service
_decoder = msgspec.json.Decoder(StreamEvent)


def bodies(model: str, count: int, *, seed: int) -> list[dict[str, object]]:
    """Return requests of many lengths: greedy ones, ones that draw with a seed of their own, and
    some of both whose answer is held to a grammar."""
    chance, words, made = random.Random(seed), TEXT.split(), []
    for number in range(count):
        sampling = {"temperature": 0.0} if number % 2 else {"temperature": 0.8, "seed": number}
        prompt = " ".join(chance.choice(words) for _ in range(chance.randrange(5, 120)))
        made.append(
            {
                "model": model,
                "prompt": prompt,
                "max_tokens": chance.randrange(5, 120),
                "ignore_eos": True,
                "stream": True,
                "return_token_ids": True,
                **sampling,
                **({"structured_outputs": {"regex": PATTERN}} if number % 4 > 1 else {}),
            }
        )
    return made


async def ask(
    http: aiohttp.ClientSession, url: str, case: int, body: dict[str, object], *, began: float
) -> Seen:
    """Send a request and read its answer to the end. Times count from `began`."""
    sent, times, tokens = time.monotonic() - began, list[float](), list[int]()
    failure = "the stream ended early"
    try:
        async with http.post(url, json=body) as response:
            if response.status != 200:
                failure = refusal(response.status, await response.read())
            else:
                events = Events()
                async for piece in response.content.iter_any():
                    for data in events.feed(piece):
                        if data == b"[DONE]":
                            failure = ""
                            continue
                        said = _decoder.decode(data)
                        if bytes(said.error) not in (b"", b"null"):
                            failure = (
                                f"error in the stream: {msgspec.json.decode(said.error)['code']}"
                            )
                        lot = [t for choice in said.choices for t in choice.token_ids or ()]
                        if lot:
                            tokens += lot
                            times.append(time.monotonic() - began)
    except TimeoutError:
        failure = "no end"
    except aiohttp.ClientConnectorError:
        failure = "no connection"
    except (aiohttp.ClientError, OSError):
        failure = "connection lost"
    return Seen(case, sent, time.monotonic() - began, tuple(times), tuple(tokens), failure)


class ChaosLoad:
    """Clients, each with one request at a time, and what they have seen."""

    def __init__(self, url: str, cases: Sequence[dict[str, object]], *, began: float) -> None:
        self._url, self._cases, self._began = url, cases, began
        self.history: list[Seen] = []
        self._stop = False

    def stop(self) -> None:
        """Let every client end with the request that it has."""
        self._stop = True

    async def run(self, clients: int, *, seed: int) -> None:
        """Ask until told to stop."""
        timeout = aiohttp.ClientTimeout(total=2 * TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            await asyncio.gather(*(self._client(http, seed * 1000 + i) for i in range(clients)))

    async def _client(self, http: aiohttp.ClientSession, seed: int) -> None:
        chance = random.Random(seed)
        while not self._stop:
            case = chance.randrange(len(self._cases))
            seen = await ask(http, self._url, case, self._cases[case], began=self._began)
            self.history.append(seen)
            if seen.failure:
                await asyncio.sleep(0.2)


async def references(url: str, cases: Sequence[dict[str, object]]) -> list[tuple[int, ...]]:
    """Return the answers of the service while nobody hurts it.

    Raises:
        BatonError: a request fails
    """
    found = []
    async with aiohttp.ClientSession() as http:
        for case, body in enumerate(cases):
            seen = await ask(http, url, case, body, began=0.0)
            if seen.failure:
                raise BatonError(
                    f"before anything was done to it the service failed: {seen.failure}"
                )
            found.append(seen.tokens)
    return found
