"""One streamed request to an OpenAI-compatible service, and the times at which the parts of its
answer came.

An answer is a success if the service sent `[DONE]` and at least one token. Everything else is a
failure of a kind that says what happened, never a short success.
"""

import time

import aiohttp
import msgspec

from baton.dev.bench.workload import Item

DETAIL_CHARS = 300
REFUSALS = ("HTTP 429", "HTTP 503")


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where requests go, and what each of them contains.

    Attributes:
        chat: prompts are sent as one user message; they must be text then
        ignore_eos: ask for exactly as many tokens as the workload says, an extension of vLLM,
            SGLang and Baton
        timeout_s: a request that takes longer is a failure
    """

    base_url: str
    endpoint: str
    model: str
    api_key: str | None = None
    chat: bool = False
    ignore_eos: bool = True
    temperature: float = 0.0
    timeout_s: float = 600.0

    @property
    def url(self) -> str:
        """The URL to post to."""
        return self.base_url.rstrip("/") + self.endpoint

    @property
    def headers(self) -> dict[str, str]:
        """The header with the API key, if there is one."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def body(self, item: Item) -> dict[str, object]:
        """Return the request's JSON."""
        asked = (
            {"messages": [{"role": "user", "content": item.prompt}]}
            if self.chat
            else {"prompt": item.prompt}
        )
        common = {
            "model": self.model,
            "max_tokens": item.output_tokens,
            "temperature": self.temperature,
            "stream": True,
        }
        extra = {"ignore_eos": True} if self.ignore_eos else {}
        return asked | common | extra | {"stream_options": {"include_usage": True}}


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one request. Times are in seconds of this machine's monotonic clock.

    Attributes:
        due, sent: when it was to be sent, and when it was
        times: arrival of each part of the answer that carried text or tokens
        prompt_tokens, output_tokens: as the service counts; otherwise the prompt's length as asked,
            and the number of parts
        failure: its kind; empty for a success
        detail: the message of the service or the system
        retry_after_s: when a service that refused wants to be asked again; None if it does not say
    """

    due: float
    sent: float
    ended: float
    times: tuple[float, ...] = ()
    prompt_tokens: int = 0
    output_tokens: int = 0
    failure: str = ""
    detail: str = ""
    retry_after_s: float | None = None

    @property
    def refused(self) -> bool:
        """Whether the service refused it for lack of capacity."""
        return self.failure.startswith(REFUSALS)


class Delta(msgspec.Struct):
    """New text of a chat answer."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class AnswerChoice(msgspec.Struct):
    """A part of one answer."""

    text: str | None = None
    delta: Delta | None = None
    token_ids: tuple[int, ...] | None = None

    @property
    def carries(self) -> bool:
        """Whether it contains anything that a user would see."""
        delta = self.delta or Delta()
        return bool(
            self.text
            or self.token_ids
            or delta.content
            or delta.reasoning_content
            or delta.reasoning
        )


class ReportedUsage(msgspec.Struct):
    """The service's own count of tokens."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class StreamEvent(msgspec.Struct):
    """An event of the stream."""

    choices: tuple[AnswerChoice, ...] = ()
    usage: ReportedUsage | None = None
    error: msgspec.Raw = msgspec.Raw(b"")


class Events:
    """Cuts a byte stream into the data of its server-sent events, however it arrives. Each event
    has one line of data."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, piece: bytes) -> list[bytes]:
        """Return the data of all events that are complete now."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        return [line[5:].strip() for line in lines if line.startswith(b"data:")]


class _Answer:
    """An answer as it comes in."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.usage = ReportedUsage()
        self.done = False
        self.error = b""
        self._decoder = msgspec.json.Decoder(StreamEvent)

    def take(self, data: bytes, now: float) -> None:
        if data == b"[DONE]":
            self.done = True
            return
        said = self._decoder.decode(data)
        if bytes(said.error) not in (b"", b"null"):
            self.error = bytes(said.error)
        if any(choice.carries for choice in said.choices):
            self.times.append(now)
        self.usage = said.usage or self.usage

    def failure(self) -> str:
        if self.error:
            return f"error in the stream{_code(self.error)}"
        if not self.done:
            return "the stream ended early"
        return "" if self.times else "no tokens"


class Failure(msgspec.Struct):
    """An error object in OpenAI's schema."""

    code: str | int | None = None
    type: str | None = None


class FailureBody(msgspec.Struct):
    """The body of an answer that is not 200."""

    error: Failure | None = None


def _code(raw: bytes) -> str:
    try:
        error = msgspec.json.decode(raw, type=Failure)
    except msgspec.MsgspecError:
        return ""
    code = error.code or error.type
    return f": {code}" if code else ""


def refusal(status: int, body: bytes) -> str:
    """Return the kind of an answer that is not 200: its status, with the error's code if it has
    one."""
    try:
        error = msgspec.json.decode(body, type=FailureBody).error or Failure()
    except msgspec.MsgspecError:
        error = Failure()
    code = error.code or error.type
    return f"HTTP {status}: {code}" if code and str(code) != str(status) else f"HTTP {status}"


async def ask(
    session: aiohttp.ClientSession, target: Target, item: Item, *, due: float
) -> RequestOutcome:
    """Send one request and read its answer to the end. Only cancellation raises."""
    answer, body, sent = _Answer(), target.body(item), time.perf_counter()
    failure = detail = retry_after = ""
    try:
        async with session.post(target.url, json=body, headers=target.headers) as response:
            if response.status == 200:
                events = Events()
                async for piece in response.content.iter_any():
                    now = time.perf_counter()
                    for data in events.feed(piece):
                        answer.take(data, now)
                failure, detail = answer.failure(), answer.error.decode(errors="replace")
            else:
                raw = await response.read()
                failure, detail = refusal(response.status, raw), raw.decode(errors="replace")
                retry_after = response.headers.get("Retry-After", "")
    except TimeoutError:
        failure, detail = "timeout", f"no end within {target.timeout_s:g} s"
    except aiohttp.ClientConnectorError as error:
        failure, detail = "no connection", str(error)
    except (aiohttp.ClientError, OSError) as error:
        failure, detail = "connection lost", f"{type(error).__name__}: {error}"
    except msgspec.MsgspecError as error:
        failure, detail = "not OpenAI's schema", str(error)
    asked = 0 if isinstance(item.prompt, str) else len(item.prompt)
    return RequestOutcome(
        due=due,
        sent=sent,
        ended=time.perf_counter(),
        times=tuple(answer.times),
        prompt_tokens=answer.usage.prompt_tokens or asked,
        output_tokens=answer.usage.completion_tokens or len(answer.times),
        failure=failure,
        detail=detail[:DETAIL_CHARS],
        retry_after_s=float(retry_after) if retry_after.isdecimal() else None,
    )
