"""`baton chat`: a conversation with a running service, in a terminal or through a pipe.

    prompt ──POST /v1/chat/completions, streamed──▶ service ──▶ text as it comes, then one line of timing

Ctrl-C during an answer stops the answer, whose text so far stays in the conversation; at the prompt
it quits. From a pipe each line is a message, and the timing goes to stderr, so that stdout has only
the answers.
"""

import sys
import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from baton.cli.served import first_model, root_url
from baton.core.errors import BatonError

if TYPE_CHECKING:
    import httpx

SAMPLING, SERVICE = "Sampling", "Service"
HELP = (
    "/reset forgets the conversation, /system TEXT sets the system message and forgets, "
    "/help, /exit (or Ctrl-D)"
)
CONNECT_S, SILENCE_S = 10.0, 600.0

Url = Annotated[
    str, typer.Option(help="Of the service.", callback=root_url, rich_help_panel=SERVICE)
]
Model = Annotated[
    str | None,
    typer.Option(help="Name to ask for.", show_default="the first served", rich_help_panel=SERVICE),
]
ApiKey = Annotated[str | None, typer.Option(help="Bearer token.", rich_help_panel=SERVICE)]
System = Annotated[str | None, typer.Option(help="System message.", rich_help_panel=SAMPLING)]
Temperature = Annotated[
    float | None,
    typer.Option(help="0 is greedy.", show_default="the service's", rich_help_panel=SAMPLING),
]
TopP = Annotated[float | None, typer.Option(show_default="the service's", rich_help_panel=SAMPLING)]
TopK = Annotated[int | None, typer.Option(show_default="the service's", rich_help_panel=SAMPLING)]
MaxTokens = Annotated[
    int | None,
    typer.Option(help="Of one answer.", show_default="the service's", rich_help_panel=SAMPLING),
]
Seed = Annotated[
    int | None,
    typer.Option(help="Same seed, same answer.", show_default="drawn", rich_help_panel=SAMPLING),
]


def chat(
    url: Url = "http://127.0.0.1:8000",
    model: Model = None,
    api_key: ApiKey = None,
    system: System = None,
    temperature: Temperature = None,
    top_p: TopP = None,
    top_k: TopK = None,
    max_tokens: MaxTokens = None,
    seed: Seed = None,
) -> None:
    """Talk to a running service. /help says what can be typed."""
    import httpx

    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    sampling = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "max_tokens": max_tokens,
        "seed": seed,
    }
    fields = {"model": model or first_model(url, api_key)} | {
        k: v for k, v in sampling.items() if v is not None
    }
    with httpx.Client(
        base_url=url, headers=headers, timeout=httpx.Timeout(SILENCE_S, connect=CONNECT_S)
    ) as client:
        terminal = sys.stdin.isatty()
        if terminal:
            typer.echo(f"{fields['model']} at {url}; {HELP}")
        Conversation(client, fields, system, timing=sys.stdout if terminal else sys.stderr).run(
            _lines(terminal=terminal)
        )


def _lines(*, terminal: bool) -> Iterator[str]:
    """Yield the lines that the user types, until end of input or Ctrl-C at the prompt."""
    if not terminal:
        yield from (line.rstrip("\n") for line in sys.stdin)
        return
    import readline  # noqa: F401  # gives input() line editing and history

    while True:
        try:
            yield input("> ")
        except (EOFError, KeyboardInterrupt):
            typer.echo()
            return


class Conversation:
    """The messages so far, and the parameters of the next request."""

    def __init__(
        self,
        client: "httpx.Client",
        fields: Mapping[str, object],
        system: str | None,
        *,
        timing: TextIO,
    ) -> None:
        self._client, self._fields, self._timing = client, dict(fields), timing
        self._system = system
        self._messages: list[dict[str, str]] = []
        self._reset()

    def run(self, lines: Iterator[str]) -> None:
        """Converse until the lines end or one of them is /exit."""
        for line in lines:
            command, _, rest = line.strip().partition(" ")
            match command:
                case "":
                    continue
                case "/exit" | "/quit":
                    return
                case "/reset":
                    self._reset()
                case "/system":
                    self._system = rest or None
                    self._reset()
                case "/help":
                    typer.echo(HELP)
                case _ if command.startswith("/") and "/" not in command[1:]:
                    typer.echo(f"no command {command}: {HELP}", err=True)
                case _:
                    self._exchange(line)

    def _reset(self) -> None:
        self._messages = [{"role": "system", "content": self._system}] if self._system else []

    def _exchange(self, text: str) -> None:
        """Send one message and show the answer. A refused message is not kept."""
        self._messages.append({"role": "user", "content": text})
        answer = IncomingAnswer()
        try:
            # closing the connection stops the answer at the service
            with closing(self._stream(answer)) as pieces:
                for piece in pieces:
                    typer.echo(piece, nl=False)
        except KeyboardInterrupt:
            answer.end = "ended by you"
        except BatonError as error:
            typer.echo(f"\nbaton: {error}" if answer.text else f"baton: {error}", err=True)
            if not answer.text:
                self._messages.pop()
                return
            answer.end = "failed"
        typer.echo()
        print(answer.timing(), file=self._timing, flush=True)
        self._messages.append({"role": "assistant", "content": answer.text})

    def _stream(self, answer: "IncomingAnswer") -> Generator[str, None, None]:
        """Yield the text of the answer in pieces. Raises BatonError if the answer cannot be had."""
        import httpx

        asked = {
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        try:
            with self._client.stream(
                "POST", "/v1/chat/completions", json=self._fields | asked
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise BatonError(why(response))
                for line in response.iter_lines():
                    if line.startswith("data:"):
                        yield from answer.take(line[5:].strip(), time.perf_counter())
        except httpx.HTTPError as error:
            raise BatonError(f"{self._client.base_url}: {error or type(error).__name__}") from error
        if not answer.done:
            raise BatonError("the stream ended early")


class IncomingAnswer:
    """An answer as it comes in."""

    def __init__(self) -> None:
        self.asked = time.perf_counter()
        self.first: float | None = None
        self.last = self.asked
        self.text = ""
        self.tokens = 0  # the service's count; until it comes, the number of pieces
        self.done = False
        self.end = ""

    def take(self, data: str, now: float) -> Iterator[str]:
        """Take one event; yields its text. Raises BatonError if the event is an error."""
        import json

        if data == "[DONE]":
            self.done = True
            return
        try:
            event = json.loads(data)
            if error := event.get("error"):
                raise BatonError(str(error.get("message", error)))
            choices = event.get("choices") or [{}]
            piece = (choices[0].get("delta") or {}).get("content") or ""
            counted = (event.get("usage") or {}).get("completion_tokens")
        except (ValueError, AttributeError, LookupError, TypeError) as error:
            raise BatonError(f"not an event of OpenAI's schema: {data[:200]}") from error
        if choices[0].get("finish_reason") == "length":
            self.end = "max_tokens reached"
        if piece:
            self.first = now if self.first is None else self.first
            self.last = now
            self.tokens += 1
            self.text += piece
            yield piece
        self.tokens = self.tokens if counted is None else int(counted)

    def timing(self) -> str:
        """`[TTFT 95 ms, 31 tokens, 52.1 tokens/s]`"""
        if self.first is None:
            return f"[no tokens{', ' + self.end if self.end else ''}]"
        rate = (
            f", {(self.tokens - 1) / (self.last - self.first):.1f} tokens/s"
            if self.last > self.first
            else ""
        )
        end = f", {self.end}" if self.end else ""
        return f"[TTFT {1e3 * (self.first - self.asked):.0f} ms, {self.tokens} tokens{rate}{end}]"


def why(response: "httpx.Response") -> str:
    """Return the service's own error message."""
    try:
        return f"{response.status_code}: {response.json()['error']['message']}"
    except (ValueError, LookupError, TypeError):
        return f"{response.status_code}: {response.text[:300] or response.reason_phrase}"
