"""What of a handoff a request waits for: with overlap, as shipped, and without it, the whole prompt
being offered at its end.

    tools/exposed_transfer.py --fabric shm nixl tcp --prompt 512 2048 4096 --rounds 5

    prefill   chunk ──▶ chunk ──▶ last chunk computed ─ ─ ─ ─ exposed ─ ─ ─ ─▶ committed
    decode         reads, verifies ──▶ reads, verifies ──▶ reads, verifies ────┘

One real pair of processes for each fabric, one request at a time, both ways in turns. Requests that
are to be offered late have priority 1, which means nothing where nobody else waits: the workers of
this tool keep their offers back, and compute the same chunks. Times are of the log that the two
processes write, by one clock.
"""

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from baton.core.agreement import RowOrder
from baton.core.memory.chunks import final_blocks
from baton.core.scheduler.offering import Offering
from baton.core.scheduler.prefill_room import PrefillRoom
from baton.dev.bench.service import Service, serving

AS_BATON = "--as-baton"
LATE = 1  # priority of a request whose prompt is offered after its last chunk
WAYS = {"overlap": 0, "without": LATE}
PATIENCE_S = 10.0


class OffersLate(Offering):
    """Offers the blocks of some prompts together, with the record."""

    def computed(self, room: PrefillRoom, row: RowOrder, drawn: Any) -> None:
        if room.ticket.priority != LATE:
            super().computed(room, row, drawn)
        elif room.done == room.length:
            final = final_blocks(
                self.worker.state_table, start=0, end=room.length, length=room.length
            )
            super().computed(room, msgspec.structs.replace(row, final=final), drawn)


class Handoff(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        exposed_us: from the end of the last chunk's computation until the commit is applied on
            every rank of decode
        nbytes: what was read in that time
        reads: in how many pieces
        ttft_ms: what the client sees; it waits for no transfer
    """

    exposed_us: int
    nbytes: int
    reads: int
    ttft_ms: float


def one(service: Service, prompt: Sequence[int], way: str) -> Handoff:
    """Ask, and read from the log what came of it."""
    service.lines.clear()
    times = service.stream(prompt, max_tokens=3, priority=WAYS[way])
    until = time.monotonic() + PATIENCE_S
    while not service.events("received") or not any(
        "prefill" in e["worker"] for e in service.events("ended")
    ):
        if time.monotonic() > until:
            raise SystemExit(
                "the log does not say how the handoff ended:\n" + "".join(service.lines[-20:])
            )
        time.sleep(0.01)
    offered = [e for e in service.events("offered") if int(e["number"])]
    assert (len(offered) == 1) or way == "overlap", "it was to be offered as a whole"
    last = max(int(e["t_us"]) for e in offered)
    computed = max(
        t
        for e in service.events("step_computed")
        if "prefill" in e["worker"] and (t := int(e["t_us"])) <= last
    )
    reads = [int(e["bytes"]) for e in service.events("read_started") if int(e["t_us"]) >= computed]
    committed = int(service.events("received")[-1]["t_us"])
    return Handoff(committed - computed, sum(reads), len(reads), 1e3 * times[0])


def measure(
    fabric: str, flags: Sequence[str], lengths: Sequence[int], rounds: int
) -> list[dict[str, object]]:
    """A row for each length."""
    chance = random.Random(1)
    found: dict[tuple[int, str], list[Handoff]] = {
        (length, way): [] for length in lengths for way in WAYS
    }
    wanted = ["--role", "split", "--fabric", fabric, "--log-level", "debug", *flags]
    with serving(
        *wanted, baton=(sys.executable, str(Path(__file__).resolve()), AS_BATON)
    ) as service:
        for way in WAYS:  # whatever is made lazily is made now
            one(service, [chance.randrange(100, 20_000) for _ in range(max(lengths))], way)
        for n in range(rounds):
            for length in lengths:
                for way in list(WAYS)[:: 1 if n % 2 else -1]:
                    found[length, way].append(
                        one(service, [chance.randrange(100, 20_000) for _ in range(length)], way)
                    )
    return [
        {"fabric": fabric, "prompt": length} | {w: _summary(found[length, w]) for w in WAYS}
        for length in lengths
    ]


def _summary(handoffs: Sequence[Handoff]) -> dict[str, float]:
    p50, p90 = np.percentile([h.exposed_us / 1e3 for h in handoffs], (50, 90))
    return {
        "requests": len(handoffs),
        "exposed_p50_ms": float(p50),
        "exposed_p90_ms": float(p90),
        "mbytes": statistics.median(h.nbytes for h in handoffs) / 1e6,
        "reads": statistics.median(h.reads for h in handoffs),
        "ttft_p50_ms": statistics.median(h.ttft_ms for h in handoffs),
    }


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """As docs/benchmarks.md has it."""
    lines = [
        "| fabric | prompt | read after the last chunk | exposed with overlap, p50 / p90 | "
        "without, p50 / p90 | ratio |",
        "|---|---|---|---|---|---|",
    ]
    for row in rows:
        with_, without = (row[way] for way in WAYS)
        ratio = with_["exposed_p50_ms"] / without["exposed_p50_ms"]
        times = [
            f"{w['exposed_p50_ms']:.1f} / {w['exposed_p90_ms']:.1f} ms" for w in (with_, without)
        ]
        read = f"{with_['mbytes']:.1f} of {without['mbytes']:.1f} MB"
        lines.append(
            f"| {row['fabric']} | {row['prompt']:,} | {read} | {times[0]} | "
            f"{times[1]} | {ratio:.2f} |"
        )
    return "\n".join(lines)


def as_baton(arguments: Sequence[str]) -> None:
    """`baton`, with prefill workers that offer late what is asked with priority 1; the processes
    that it starts likewise."""
    from baton.cli import main, serve
    from baton.core.scheduler import roles

    roles.Offering = OffersLate  # type: ignore[misc]
    serve.BATON = (sys.executable, str(Path(__file__).resolve()), AS_BATON)  # type: ignore[assignment]
    sys.exit(main.run(list(arguments)))


def main() -> None:
    """Command line."""
    if AS_BATON in sys.argv[1:2]:
        as_baton(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fabric", nargs="+", default=["shm", "nixl", "tcp"])
    parser.add_argument("--prompt", nargs="+", type=int, default=[512, 2048, 4096], help="tokens")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument(
        "--flags", nargs=argparse.REMAINDER, default=[], help="of baton serve, at the end"
    )
    args = parser.parse_args()
    rows: list[dict[str, object]] = []
    for fabric in args.fabric:
        rows += measure(
            fabric, args.flags or ["smollm2", "--dtype", "bfloat16"], args.prompt, args.rounds
        )
        print(table(rows[-len(args.prompt) :]), flush=True)
    print(table(rows))
    if args.json is not None:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
