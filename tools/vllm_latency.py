"""Measures what lies between the end of prefill and the first token of decode, with Baton's
connector and with vLLM's own NixlConnector, in turns.

    python -m tools.vllm_latency --vllm DIR/bin/vllm --rounds 2 --each 10

Both are asked one prompt at a time, and prompts are computed in chunks. Decode's first token is when
its HTTP answer has it; with Baton that passes a recorder, which the gateway takes for the engine.
Prefill's end is with Baton when its leader has told decode the first token (its HTTP answer is not
waited for), and with NixlConnector, which gets what vLLM's example proxy sends, when its HTTP answer has
been read: a little later. Of Baton's reads, those that ended after the last chunk was offered count
as left.
"""

import argparse
import asyncio
import json
import random
import re
import shlex
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
from rich.console import Console
from rich.progress import Progress
from tools.vllm_engines import (
    PORTS,
    PRODUCE,
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

TOKENS = 8
WARM = 3  # prompts that are not counted
LEAST_LONG = 2  # a connector's pause after its round, seconds: what it reports comes late
LINE = re.compile(r"\] (read_started|read_ended|offered)\s+(.*)$", re.MULTILINE)


def fields_of(line: str) -> dict[str, str]:
    """Return the fields of a log line."""
    return dict(part.split("=", 1) for part in line.split() if "=" in part)


def lines_of(log: Path) -> list[tuple[str, dict[str, str]]]:
    """Return the events of a log that are looked at, and their fields."""
    found = LINE.findall(log.read_text(errors="replace"))
    return [(event, fields_of(rest)) for event, rest in found]


def offers_of(folder: Path) -> dict[str, list[int]]:
    """Return for each room when offers were made, in microseconds of the monotonic clock."""
    found: dict[str, list[int]] = defaultdict(list)
    for event, said in lines_of(folder / "prefill.log"):
        if event == "offered":
            found[said["room"]].append(int(said["t_us"]))
    return found


def left_after_last_chunk(
    folder: Path, rooms: set[str], offers: Mapping[str, Sequence[int]]
) -> list[float]:
    """Return for each room the share of its bytes that had not been read when its last chunk was
    offered. The last offer of all has the first token, and no blocks."""
    starts: dict[tuple[str, str], tuple[int, int]] = {}
    reads: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for event, said in lines_of(folder / "decode.log"):
        if said["room"] not in rooms or event == "offered":
            continue
        key, now = (said["room"], said["handle"]), int(said["t_us"])
        if event == "read_started":
            starts[key] = now, int(said["bytes"])
        else:
            reads[said["room"]].append((*starts[key], now))
    found = []
    for room, each in reads.items():
        newest = max(start for start, _, _ in each)
        last = max(at for at in offers[room] if at <= newest)
        left = sum(nbytes for _, nbytes, ended in each if ended > last)
        found.append(left / sum(nbytes for _, nbytes, _ in each))
    return found


class Prompts:
    """Random prompts; none begins like another."""

    def __init__(self, seed: int, vocabulary: int) -> None:
        self._chance, self._vocabulary = random.Random(seed), vocabulary

    def one(self, length: int) -> list[int]:
        """The next one."""
        return [self._chance.randrange(100, self._vocabulary) for _ in range(length)]


async def with_baton(
    starts: Starts, args: argparse.Namespace, prompts: Prompts, bar: Any
) -> dict[int, dict[str, list[float]]]:
    """One round."""
    found: dict[int, dict[str, list[float]]] = {n: defaultdict(list) for n in args.lengths}
    firsts: dict[int, dict[str, float]] = defaultdict(dict)  # by length and room
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
                        bar()
                        if turn < WARM:
                            continue
                        if len(decode.seen) > 1:  # decode drew another first token: a near-tie
                            found[n]["drawn again"].append(first - began)
                            continue
                        (seen,) = decode.seen
                        assert seen.first is not None
                        found[n]["ttft"].append(first - began)
                        firsts[n][seen.params["room"]] = seen.first
            await asyncio.sleep(LEAST_LONG)
    offers = offers_of(starts.folder)
    for n in args.lengths:
        found[n]["gap"] = [first - offers[room][-1] / 1e6 for room, first in firsts[n].items()]
        found[n]["left"] = left_after_last_chunk(starts.folder, set(firsts[n]), offers)
    return found


async def with_nixl(
    starts: Starts, args: argparse.Namespace, prompts: Prompts, bar: Any
) -> dict[int, dict[str, list[float]]]:
    """One round; this process does what vLLM's example proxy does."""
    found: dict[int, dict[str, list[float]]] = {n: defaultdict(list) for n in args.lengths}
    with ExitStack() as stack:
        transfer = nixl(args.nixl_buffer_device)
        processes = [
            ended_by(stack, starts.engine(role, transfer, log=f"nixl-{role}.log")) for role in PORTS
        ]
        for role in PORTS:
            await asyncio.to_thread(wait_ready, f"{url_of(role)}/health", processes)
        async with aiohttp.ClientSession() as session:
            for n in args.lengths:
                for turn in range(WARM + args.each):
                    prompt, began = prompts.one(n), time.monotonic()
                    body = greedy(prompt, 1, kv_transfer_params=dict(PRODUCE))
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
    prompts = Prompts(args.seed, args.vocabulary)
    flags = ("--max-num-batched-tokens", str(args.chunk), *shlex.split(args.vllm_args))
    model = Path(args.model) if args.model else ensure(TRIAL)
    most = args.rounds * len(CONNECTORS) * len(args.lengths) * (WARM + args.each)
    task = progress.add_task("requests", total=most)
    found: dict[str, dict[int, dict[str, list[float]]]] = {
        name: {n: defaultdict(list) for n in args.lengths} for name in CONNECTORS
    }
    for number in range(args.rounds):
        for name, run in CONNECTORS.items():
            place = folder / f"{number}-{name}"
            place.mkdir()
            starts = Starts(args.vllm, model, place, flags)
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
    parser.add_argument("--chunk", type=int, default=512, help="tokens of a prompt in one step")
    parser.add_argument("--model", help="a directory; default: the trial model")
    parser.add_argument("--vocabulary", type=int, default=40_000, help="ids of prompts end before")
    parser.add_argument("--nixl-buffer-device", default="cpu", help="cuda on a GPU")
    parser.add_argument("--vllm-args", default="", help="more flags of vLLM, which win")
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
