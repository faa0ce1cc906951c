"""What each gateway counts by itself, and how the gateways behind one port tell each other.

    a scrape ──▶ one gateway ──a question, as JSON──▶ the sockets in a folder, one of each gateway
                             ◀──the answer, as JSON, and the end of the connection──

The folder belongs to `baton serve` and no other user can open it.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec

from baton.gateway.door import LedgerReport
from baton.gateway.tally import RequestTally
from baton.gateway.timeline import Timeline

T = TypeVar("T", bound=msgspec.Struct)
ANSWER_WITHIN_S = 0.5
LARGEST = 1 << 20  # bytes of an answer


class SiblingQuestion(msgspec.Struct, frozen=True):
    """What a gateway asks another one. timeline: of which request; None = what it counts"""

    timeline: str | None = None


class GatewayCounts(msgspec.Struct, frozen=True):
    """What one gateway counts; of its report, the fields that are its own.

    Attributes:
        under_way: requests of clients that have not ended, each choice of `n` by itself
    """

    name: str
    tally: RequestTally
    report: LedgerReport
    under_way: int = 0


def joined(report: LedgerReport, others: Sequence[GatewayCounts]) -> LedgerReport:
    """Return the report with the requests of other gateways too."""
    queues = [report.queue, *(counts.report.queue for counts in others)]
    refused: Counter[str] = Counter()
    for queue in queues:
        refused.update(queue.refused)
    queue = msgspec.structs.replace(
        report.queue,
        length=sum(queue.length for queue in queues),
        oldest_ms=max(queue.oldest_ms for queue in queues),
        refused=dict(refused),
    )
    open_requests = report.open_requests + sum(counts.report.open_requests for counts in others)
    return msgspec.structs.replace(report, open_requests=open_requests, queue=queue)


class Siblings:
    """Tells the other gateways behind the port what this one counts, and asks them.

    Created on its asyncio loop; `close` releases everything.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._path = folder, folder / name
        self._server: asyncio.Server | None = None

    async def open(
        self, own: Callable[[], GatewayCounts], find: Callable[[str], Timeline | None]
    ) -> None:
        """Answer the others from now on. find: returns the timeline of a request"""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with (
                contextlib.suppress(ConnectionError, TimeoutError, msgspec.DecodeError),
                contextlib.closing(writer),
            ):
                async with asyncio.timeout(ANSWER_WITHIN_S):
                    asked = msgspec.json.decode(await reader.readline(), type=SiblingQuestion)
                writer.write(
                    msgspec.json.encode(own() if asked.timeline is None else find(asked.timeline))
                )
                await writer.drain()

        self._path.unlink(missing_ok=True)  # of a gateway of this name that was killed
        self._server = await asyncio.start_unix_server(answer, self._path)

    async def others(self) -> list[GatewayCounts]:
        """Return what the others count; those that do not answer are left out."""
        found = [_decoded(raw, GatewayCounts) for raw in await self._ask(None)]
        return [counts for counts in found if counts is not None]

    async def timeline(self, name: str) -> Timeline | None:
        """Return the timeline of a request of another gateway; None if none of them has it."""
        for raw in await self._ask(name):
            if raw != b"null" and (found := _decoded(raw, Timeline)) is not None:
                return found
        return None

    async def _ask(self, timeline: str | None) -> list[bytes]:
        """Return the answers of those that have answered."""
        paths = sorted(path for path in self._folder.iterdir() if path != self._path)
        question = msgspec.json.encode(SiblingQuestion(timeline)) + b"\n"
        found = await asyncio.gather(*(_ask(path, question) for path in paths))
        return [raw for raw in found if raw]

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            self._server.close()
            self._path.unlink(missing_ok=True)


def _decoded(raw: bytes, kind: type[T]) -> T | None:
    """Return an answer; None if it was cut off."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.DecodeError:
        return None


async def _ask(path: Path, question: bytes) -> bytes:
    """Ask one gateway. Returns nothing if it does not answer in time."""
    try:
        async with asyncio.timeout(ANSWER_WITHIN_S):
            reader, writer = await asyncio.open_unix_connection(path, limit=LARGEST)
            with contextlib.closing(writer):
                writer.write(question)
                return await reader.read(LARGEST)
    except (OSError, TimeoutError):
        return b""
