"""What a role switch gains when the load turns from long prompts to long answers.

    tools/role_switch.py --rounds 3 -- --dtype bfloat16 --threads 1

Three services in turns, each with three workers: two for prefill, two for decode, and one whose
third worker changes from prefill to decode (`baton role`) while the second load runs. Each load is a
closed loop: as many requests at once as `--clients`, until all are answered.
"""

import argparse
import json
import statistics
import threading
from pathlib import Path

import httpx
import msgspec

from baton.dev.bench.client import Target
from baton.dev.bench.figures import Spread, spread, tpot, ttft
from baton.dev.bench.load import SendSchedule, drive
from baton.dev.bench.service import serving
from baton.dev.bench.workload import Shape, random_items

SETUPS = {
    "2 prefill, 1 decode": (2, 1, False),
    "1 prefill, 2 decode": (1, 2, False),
    "switched": (2, 1, True),
}
# tokens of a prompt, tokens of its answer, requests
PROMPTS, ANSWERS = (768, 4, 48), (32, 160, 64)
FEW, RATIO = (4, 2, 4), 0.25


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One load: until its last answer, and how requests fared."""

    seconds: float
    failures: list[str]
    ttft_ms: Spread
    tpot_ms: Spread


def load(target: Target, kind: tuple[int, int, int], clients: int, seed: int) -> Phase:
    """Ask all at the given concurrency."""
    prompt, answer, count = kind
    shape = Shape(seed=seed, low=100, high=20_000)
    items = random_items(count, input_len=prompt, output_len=answer, range_ratio=RATIO, shape=shape)
    outcomes = drive(
        target, items, SendSchedule((0.0,) * count, clients), warm_up=(), tell=lambda _: None
    )
    well = [o for o in outcomes if not o.failure]
    return Phase(
        seconds=max(o.ended for o in outcomes) - min(o.sent for o in outcomes),
        failures=sorted(o.failure for o in outcomes if o.failure),
        ttft_ms=spread([ttft(o) for o in well]),
        tpot_ms=spread([tpot(o) for o in well]),
    )


def turn(setup: tuple[int, int, bool], clients: int, seed: int, flags: list[str]) -> list[Phase]:
    """Both loads at a new service."""
    prefill, decode, switches = setup
    with serving("--prefill", str(prefill), "--decode", str(decode), *flags) as service:
        url = f"http://127.0.0.1:{service.port}"
        target = Target(base_url=url, endpoint="/v1/completions", model="bench")
        load(target, FEW, 2, seed)
        phases = [load(target, PROMPTS, clients, seed)]

        def switch() -> None:
            httpx.post(f"{url}/drain", params={"worker": "prefill-1", "role": "decode"}, timeout=60)

        thread = threading.Thread(target=switch)
        if switches:
            thread.start()
        phases.append(load(target, ANSWERS, clients, seed + 1))
        if switches:
            thread.join()
    return phases


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--json", type=Path)
    parser.add_argument("flags", nargs="*", help="of baton serve")
    args = parser.parse_args()
    found: dict[str, list[list[Phase]]] = {name: [] for name in SETUPS}
    for number in range(args.rounds):
        for name, setup in SETUPS.items():
            phases = turn(setup, args.clients, 10 * number, [args.model, *args.flags])
            found[name].append(phases)
            print(f"{name:22}" + "".join(f"{p.seconds:9.1f} s" for p in phases), flush=True)
    for name, rounds in found.items():
        for phase, what in enumerate(("long prompts", "long answers")):
            lot = [phases[phase] for phases in rounds]
            seconds = statistics.median(p.seconds for p in lot)
            first = statistics.median(p.ttft_ms.p50 for p in lot)
            each = statistics.median(p.tpot_ms.p50 for p in lot)
            failed = sum(len(p.failures) for p in lot)
            print(
                f"{name:22} {what}: {seconds:.1f} s, TTFT {first:.0f} ms, "
                f"{each:.0f} ms a token, {failed} failed"
            )
    if args.json is not None:
        args.json.write_text(json.dumps(msgspec.to_builtins(found), indent=1) + "\n")


if __name__ == "__main__":
    main()
