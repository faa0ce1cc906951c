"""Starts a `baton serve` for a benchmark, and reads its log."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from baton.core.errors import BatonError

START_S = 120.0
BATON = (sys.executable, "-m", "baton.cli.main")
READY = re.compile(r"http://127\.0\.0\.1:(\d+)/v1")


class Service:
    """A running service. `lines` grows as it logs."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._process = process
        self.lines: list[str] = []
        self.port = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line)
            if not self.port and (found := READY.search(line)):
                self.port = int(found.group(1))

    @property
    def pid(self) -> int:
        """The process id of `baton serve`."""
        return self._process.pid

    def wait(self) -> None:
        """Wait until it serves.

        Raises:
            BatonError: it ends, or takes too long
        """
        until = time.monotonic() + START_S
        while not self.port:
            if self._process.poll() is not None or time.monotonic() > until:
                raise BatonError(f"the service did not start:\n{''.join(self.lines[-20:])}")
            time.sleep(0.05)

    def stream(self, prompt: Sequence[int], *, max_tokens: int, **more: object) -> list[float]:
        """Send one greedy request with these additional fields. Returns the seconds from sending to
        each of its tokens.

        Raises:
            BatonError: the service refuses it
        """
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {
            "model": "bench",
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
        }
        body |= {"ignore_eos": True, "return_token_ids": True} | more
        started, times = time.perf_counter(), []
        connection.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise BatonError(f"the service answered {answer.status}: {answer.read()[:500]!r}")
        while line := answer.readline():
            if line.startswith(b"data: {"):
                ids = _ids(json.loads(line[6:]))
                times += [time.perf_counter() - started] * ids
        connection.close()
        return times

    def events(self, name: str) -> list[dict[str, str]]:
        """Return the fields of all log lines of one event, in order."""
        found = []
        for line in self.lines:
            if f"event={name} " in line:
                fields = dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line))
                # lines of other threads than the pump's do not name it
                fields["worker"] = line.split(" | ")[0]
                found.append(fields)
        return found


def _ids(chunk: dict[str, Any]) -> int:
    return sum(len(c.get("token_ids") or ()) for c in chunk["choices"])


@contextmanager
def serving(*flags: str, baton: Sequence[str] = BATON) -> Iterator[Service]:
    """Run a service with these flags until the context ends.

    It has no prefix cache unless a flag switches it on, because loads and warm-ups repeat prompts
    and are to be measured as if they did not. It does not use a model's sampling settings, because
    a penalty would be measured too.

    baton: the command that stands for `baton`
    """
    plain = ("--no-enable-prefix-caching", "--generation-config", "vllm")
    command = [*baton, "serve", "--port", "0", "--served-model-name", "bench", *plain, *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    service = Service(process)
    try:
        service.wait()
        yield service
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
