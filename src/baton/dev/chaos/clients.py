"""Clients that ask without a pause, and write down what they see."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from socket import SO_RCVBUF, SOL_SOCKET, socket

import aiohttp
import msgspec

from baton.core.errors import BatonError
from baton.dev.bench.client import Events, StreamEvent, refusal
from baton.dev.chaos.history import LEFT, Seen

TEXT = (
    "the runner carries a baton through every gate and hands it over before the light is gone "
    "while keepers count waves and write their numbers into a book that nobody reads"
)
PATTERN = "([a-z]{1,9}[ ,]){400}"  # longer than any answer here
TIMEOUT_S = 60.0  # --request-timeout of the service
LEAVING_LOG10_S = (-2.5, 0.5)  # 3 ms to 3 s after sending, as likely within each factor of two
ASLEEP_S = (1.0, 6.0)  # how long a slow reader reads nothing
ASLEEP_AT = 40  # the latest part of its answer before which it does so
LOGPROBS = 20  # beside each token of a slow reader's answer: it has kilobytes a token
LOOK_S = 0.02
SMALL_BYTES = 4096  # buffers of a slow reader, so that what it does not read stays with the gateway
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


class Habits(msgspec.Struct, frozen=True):
    """How clients behave, as shares of their requests.

    Attributes:
        leaving: that are left at a random moment
        slow: whose client reads nothing for seconds in the middle of the answer
    """

    leaving: float = 0.0
    slow: float = 0.0


class Course(msgspec.Struct, frozen=True):
    """What a client does with one request.

    Attributes:
        leaves_s: it is gone so long after sending; None if it stays
        sleeps_s: it reads nothing for so long
        sleeps_at: before this part of the answer
    """

    leaves_s: float | None = None
    sleeps_s: float = 0.0
    sleeps_at: int = -1


def draw_course(habits: Habits, chance: random.Random) -> Course:
    """Draw what a client does with its next request."""
    kind = chance.random()
    if kind < habits.leaving:
        return Course(leaves_s=10 ** chance.uniform(*LEAVING_LOG10_S))
    if kind < habits.leaving + habits.slow:
        return Course(sleeps_s=chance.uniform(*ASLEEP_S), sleeps_at=chance.randrange(ASLEEP_AT))
    return Course()


class SeenAnswer:
    """What has come of an answer. Times count from `began`."""

    def __init__(self, began: float) -> None:
        self._began = began
        self.times: list[float] = []
        self.tokens: list[int] = []
        self.failure = "the stream ended early"
        self.asleep = 0.0

    def take(self, data: bytes) -> None:
        """Take one event of the stream."""
        if data == b"[DONE]":
            self.failure = ""
            return
        said = _decoder.decode(data)
        if bytes(said.error) not in (b"", b"null"):
            self.failure = f"error in the stream: {msgspec.json.decode(said.error)['code']}"
        lot = [t for choice in said.choices for t in choice.token_ids or ()]
        if lot:
            self.tokens += lot
            self.times.append(time.monotonic() - self._began)


async def ask(
    http: aiohttp.ClientSession,
    url: str,
    case: int,
    body: dict[str, object],
    *,
    began: float,
    course: Course = Course(),  # noqa: B008  frozen
) -> Seen:
    """Send a request and read its answer to the end, or as `course` says. Times count from
    `began`."""
    sent, answer = time.monotonic() - began, SeenAnswer(began)
    patience = asyncio.timeout(course.leaves_s)
    try:
        async with patience:
            await _read(http, url, body, answer, course)
    except TimeoutError:
        answer.failure = LEFT if patience.expired() else "no end"
    except aiohttp.ClientConnectorError:
        answer.failure = "no connection"
    except (aiohttp.ClientError, OSError):
        answer.failure = "connection lost"
    ended = time.monotonic() - began
    return Seen(
        case,
        sent,
        ended,
        tuple(answer.times),
        tuple(answer.tokens),
        answer.failure,
        asleep=answer.asleep,
    )


async def _read(
    http: aiohttp.ClientSession,
    url: str,
    body: dict[str, object],
    answer: SeenAnswer,
    course: Course,
) -> None:
    async with await _post(http, url, body) as response:
        if response.status != 200:
            answer.failure = refusal(response.status, await response.read())
            return
        events, part = Events(), 0
        async for piece in response.content.iter_any():
            if part == course.sleeps_at:
                answer.asleep = course.sleeps_s
                await asyncio.sleep(course.sleeps_s)
            part += 1
            for data in events.feed(piece):
                answer.take(data)


async def _post(
    http: aiohttp.ClientSession, url: str, body: dict[str, object]
) -> aiohttp.ClientResponse:
    """Ask, and once more if the connection ends before an answer begins, as OpenAI's client does:
    a server may close an idle connection just when the next request is sent."""
    try:
        return await http.post(url, json=body)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
        return await http.post(url, json=body)


class ChaosLoad:
    """Clients, each with one request at a time, and what they have seen."""

    def __init__(
        self,
        url: str,
        cases: Sequence[dict[str, object]],
        *,
        began: float,
        habits: Habits = Habits(),  # noqa: B008  frozen
    ) -> None:
        self._url, self._cases, self._began = url, cases, began
        self._habits = habits
        self.history: list[Seen] = []
        self._stop = False
        self._may_ask = asyncio.Event()
        self._may_ask.set()
        self._open = 0

    def stop(self) -> None:
        """Let every client end with the request that it has."""
        self._stop = True

    @asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """No client has a request, and none begins one, until the context ends."""
        self._may_ask.clear()
        try:
            while self._open:
                await asyncio.sleep(LOOK_S)
            yield
        finally:
            self._may_ask.set()

    async def run(self, clients: int, *, seed: int) -> None:
        """Ask until told to stop."""
        timeout = aiohttp.ClientTimeout(total=2 * TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            aiohttp.ClientSession(
                timeout=timeout,
                read_bufsize=SMALL_BYTES,
                connector=aiohttp.TCPConnector(socket_factory=_small_socket, limit=0),
            ) as slow,
        ):
            await asyncio.gather(
                *(self._client(http, slow, seed * 1000 + i) for i in range(clients))
            )

    async def _client(
        self, http: aiohttp.ClientSession, slow: aiohttp.ClientSession, seed: int
    ) -> None:
        chance = random.Random(seed)
        while True:
            await self._may_ask.wait()
            if self._stop:
                return
            case, course = chance.randrange(len(self._cases)), draw_course(self._habits, chance)
            body, session = self._cases[case], http
            if course.sleeps_s:  # much to read, and little room for it
                body, session = body | {"logprobs": LOGPROBS}, slow
            self._open += 1
            try:
                seen = await ask(session, self._url, case, body, began=self._began, course=course)
            finally:
                self._open -= 1
            self.history.append(seen)
            if seen.failure not in ("", LEFT):
                await asyncio.sleep(0.2)


def _small_socket(address: aiohttp.AddrInfoType) -> socket:
    family, kind, protocol, *_ = address
    made = socket(family, kind, protocol)
    made.setsockopt(SOL_SOCKET, SO_RCVBUF, SMALL_BYTES)
    made.setblocking(False)
    return made


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
