"""How many streamed tokens a second one client process of `baton bench serve` can take in.

tools/client_ceiling.py [--streams 64] [--tokens 2000]

The other end is a process that does nothing but write server-sent events, one a token, over plain
asyncio sockets. A figure for docs/tools.md: a service that streams more than this must be measured
by several clients.
"""

import argparse
import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection

from baton.dev.bench.client import RequestOutcome, Target
from baton.dev.bench.load import SendSchedule, drive
from baton.dev.bench.workload import Item

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
TOKEN = (
    b"data: "
    b'{"id":"cmpl-0","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" '
    b'token",'
)
TOKEN += b'"logprobs":null,"finish_reason":null}]}\n\n'


def chunk(data: bytes) -> bytes:
    """One piece of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _serve(tokens: int, say: Connection) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while not reader.at_eof():
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return  # the client is done
            length = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            await reader.readexactly(length)
            writer.write(HEAD)
            for _ in range(tokens):
                writer.write(chunk(TOKEN))
                await writer.drain()
                # the next stream's turn: a token of each, as an engine's step does
                await asyncio.sleep(0)
            writer.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    say.send(server.sockets[0].getsockname()[1])
    async with server:
        await server.serve_forever()


def _process(tokens: int, say: Connection) -> None:
    import uvloop

    uvloop.run(_serve(tokens, say))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=2000)
    args = parser.parse_args()
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(
        target=_process, args=(args.tokens, theirs), daemon=True
    )
    server.start()
    target = Target(base_url=f"http://127.0.0.1:{ours.recv()}", endpoint="/", model="m")
    items = [Item((1,), args.tokens)] * args.streams
    cpu = time.process_time()
    found: list[RequestOutcome] = drive(
        target,
        items,
        SendSchedule((0.0,) * args.streams, None),
        warm_up=items[:1],
        tell=lambda _: None,
    )
    cpu = time.process_time() - cpu
    seconds = max(o.ended for o in found) - min(o.sent for o in found)
    total = sum(len(o.times) for o in found)
    assert total == args.streams * args.tokens, {o.failure for o in found}
    print(
        f"{args.streams} streams: {total / seconds:,.0f} tokens/s, {1e6 * cpu / total:.1f} "
        "us of this process a token"
    )
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
