"""Measures what lies between the end of prefill and the first token of decode, with Baton's
connector and with vLLM's own NixlConnector, in turns.

    python -m tools.vllm_latency --vllm DIR/bin/vllm --rounds 2 --each 10

Both are asked one prompt at a time, and prompts are computed in chunks. Prefill's end is when its
HTTP answer has been read; the first token is when decode's HTTP answer has it. With Baton both pass
a recorder, which the gateway takes for the engines. NixlConnector gets what vLLM's example proxy
sends. Of Baton's reads, those that ended after the last chunk was offered count as left.
"""

import argparse
import asyncio
import json
import random
import re
import statistics
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.progress import Progress
from tools.vllm_engines import (
    PORTS,
    RECORDERS,
    URL,
    Recorder,
    Starts,
    baton,
    ended_by,
    first_token_at,
    greedy,
    nixl,
    url_of,
    wait_ready,
)

from baton.cli.models import TRIAL, ensure

CHUNK = 512
TOKENS = 8
WARM = 3  # prompts that are not counted
LEAST_LONG = 2  # a connector's pause after its round, seconds: what it reports comes late
LINE = re.compile(r"\] (read_started|read_ended|offered)\s+(.*)$", re.MULTILINE)
PRODUCE = {
    "do_remote_decode": True,
    "do_remote_prefill": False,
    "remote_engine_id": None,
    "remote_block_ids": None,
    "remote_host": None,
    "remote_port": None,
}


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a log line."""
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def left_after_last_chunk(folder: Path, rooms: set[str]) -> list[float]:
    """Return for each room the share of its bytes whose read ended after its last chunk was offered."""
    last: dict[str, int] = {}
    for _, rest in LINE.findall((folder / "prefill.log").read_text(errors="replace")):
        said = fields_of(rest)
        if said.get("last") == "True":
            last[said["room"]] = int(said["t_us"])
    reads: dict[tuple[str, str], int] = {}
    total: dict[str, int] = defaultdict(int)
    late: dict[str, int] = defaultdict(int)
    for event, rest in LINE.findall((folder / "decode.log").read_text(errors="replace")):
        said = fields_of(rest)
        if said.get("room") not in rooms:
            continue
        room, read = said["room"], (said["room"], said["handle"])
        if event == "read_started":
            reads[read] = int(said["bytes"])
        elif event == "read_ended":
            total[room] += reads[read]
            late[room] += reads[read] if int(said["t_us"]) > last[room] else 0
    return [late[room] / total[room] for room in total]


class Prompts:
    """Random prompts; none begins like another."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def one(self, length: int) -> list[int]:
        """The next one."""
        return [self._chance.randrange(100, 40_000) for _ in range(length)]


async def with_baton(
    starts: Starts, args: argparse.Namespace, prompts: Prompts, bar: Any
) -> dict[int, dict[str, list[float]]]:
    """One round."""
    found: dict[int, dict[str, list[float]]] = {n: defaultdict(list) for n in args.lengths}
    rooms: dict[int, set[str]] = defaultdict(set)
    with ExitStack() as stack:
        async with Recorder("prefill") as prefill, Recorder("decode") as decode:
            processes = [ended_by(stack, starts.gateway())]
            for role in PORTS:
                transfer = baton(role, url=url_of(role, RECORDERS), fabric=[args.fabric])
                process = starts.engine(role, transfer, log=f"{role}.log")
                processes.append(ended_by(stack, process))
            await asyncio.to_thread(wait_ready, f"{URL}/ready", processes)
            async with aiohttp.ClientSession() as session:
                for n in args.lengths:
                    for turn in range(WARM + args.each):
                        prefill.seen.clear()
                        decode.seen.clear()
                        began = time.monotonic()
                        first = await first_token_at(session, URL, greedy(prompts.one(n), TOKENS))
                        assert len(prefill.seen) == len(decode.seen) == 1, "one attempt"
                        bar()
                        if turn < WARM:
                            continue
                        (one,), (other,) = prefill.seen, decode.seen
                        assert one.ended is not None
                        assert other.first is not None
                        found[n]["gap"].append(other.first - one.ended)
                        found[n]["ttft"].append(first - began)
                        rooms[n].add(one.params["room"])
            await asyncio.sleep(LEAST_LONG)
    for n in args.lengths:
        found[n]["left"] = left_after_last_chunk(starts.folder, rooms[n])
    return found


async def with_nixl(
    starts: Starts, args: argparse.Namespace, prompts: Prompts, bar: Any
) -> dict[int, dict[str, list[float]]]:
    """One round; this process does what vLLM's example proxy does."""
    found: dict[int, dict[str, list[float]]] = {n: defaultdict(list) for n in args.lengths}
    with ExitStack() as stack:
        for role in PORTS:
            process = ended_by(stack, starts.engine(role, nixl(), log=f"nixl-{role}.log"))
            await asyncio.to_thread(wait_ready, f"{url_of(role)}/health", [process])
        async with aiohttp.ClientSession() as session:
            for n in args.lengths:
                for turn in range(WARM + args.each):
                    prompt, began = prompts.one(n), time.monotonic()
                    body = greedy(prompt, 1, kv_transfer_params=PRODUCE)
                    url = f"{url_of('prefill')}/v1/completions"
                    async with session.post(url, json=body) as reply:
                        params = (await reply.json())["kv_transfer_params"]
                    ended = time.monotonic()
                    asked = greedy(prompt, TOKENS, kv_transfer_params=params)
                    first = await first_token_at(session, url_of("decode"), asked)
                    bar()
                    if turn >= WARM:
                        found[n]["gap"].append(first - ended)
                        found[n]["ttft"].append(first - began)
    return found


CONNECTORS = {"baton": with_baton, "nixl": with_nixl}


async def measure(args: argparse.Namespace, folder: Path, progress: Progress) -> dict[str, Any]:
    """Run all rounds, and return the medians."""
    prompts, flags = Prompts(args.seed), ("--max-num-batched-tokens", str(CHUNK))
    most = args.rounds * len(CONNECTORS) * len(args.lengths) * (WARM + args.each)
    task = progress.add_task("requests", total=most)
    found: dict[str, dict[int, dict[str, list[float]]]] = {
        name: {n: defaultdict(list) for n in args.lengths} for name in CONNECTORS
    }
    for number in range(args.rounds):
        for name, run in CONNECTORS.items():
            place = folder / f"{number}-{name}"
            place.mkdir()
            starts = Starts(args.vllm, ensure(TRIAL), place, flags)
            said = await run(starts, args, prompts, lambda: progress.advance(task))
            for n, kinds in said.items():
                for kind, values in kinds.items():
                    found[name][n][kind] += values
    return {
        name: {
            str(n): {
                kind: {
                    "median": round(statistics.median(values), 4),
                    "least": round(min(values), 4),
                    "most": round(max(values), 4),
                    "count": len(values),
                }
                for kind, values in kinds.items()
            }
            for n, kinds in lengths.items()
        }
        for name, lengths in found.items()
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vllm", required=True, help="the command of vLLM")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--each", type=int, default=10, help="prompts of a length in a round")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048])
    parser.add_argument("--fabric", default="nixl")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    console, folder = Console(), Path(tempfile.mkdtemp(prefix="baton-vllm-"))
    console.print(f"logs in {folder}")
    with Progress(console=console) as progress:
        found = asyncio.run(measure(args, folder, progress))
    for n in map(str, args.lengths):
        ratio = found["baton"][n]["gap"]["median"] / found["nixl"][n]["gap"]["median"]
        found["baton"][n]["gap beside nixl"] = round(ratio, 2)
    console.print_json(json.dumps(found))


if __name__ == "__main__":
    main()
