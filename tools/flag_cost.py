"""Times requests to two services that differ in a flag, in turns: what the flag costs, on a machine
whose speed changes from minute to minute.

    python tools/flag_cost.py smollm2 --first "--seal on" --second "--seal off" --input-len 512 --pairs 100
        --serve-args "--dtype bfloat16 --threads 1"

Both services run at once, and one of them has a request at any time. Each prompt goes to both, to
either first by turns. Of each pair there is a ratio, first to second, of the time to the first token
and of the time from there to the last one. Printed are medians, and the 95 % interval of the ratios'
median, by a bootstrap over the pairs.
"""

import argparse
import shlex
from collections.abc import Sequence
from random import Random
from statistics import median, quantiles

from rich.console import Console
from rich.progress import track

from baton.dev.bench.service import Service, serving

WARM_UPS, DRAWS = 3, 2_000


def times(service: Service, prompt: Sequence[int], tokens: int) -> tuple[float, float]:
    """Return the milliseconds to the first token, and from there to the last one."""
    found = service.stream(prompt, max_tokens=tokens)
    return 1e3 * found[0], 1e3 * (found[-1] - found[0])


def said(name: str, first: Sequence[float], second: Sequence[float]) -> str:
    """Return one line of the result."""
    draw, ratios = Random(0), [a / b for a, b in zip(first, second, strict=True)]
    drawn = [median(draw.choices(ratios, k=len(ratios))) for _ in range(DRAWS)]
    low, *_, high = quantiles(drawn, n=40)
    return (
        f"{name}: {median(first):.1f} and {median(second):.1f} ms, ratio of a pair "
        f"{median(ratios):.3f} ({low:.3f} to {high:.3f})"
    )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--first", required=True, help="flags of `baton serve`")
    parser.add_argument("--second", required=True, help="those of the other service")
    parser.add_argument("--serve-args", default="", help="flags that both have")
    parser.add_argument("--input-len", type=int, default=512)
    parser.add_argument("--output-len", type=int, default=8)
    parser.add_argument("--pairs", type=int, default=100)
    args = parser.parse_args()
    common, draw = shlex.split(args.serve_args), Random(0)
    errors, found = Console(stderr=True), []
    with (
        serving(args.model, *common, *shlex.split(args.first)) as first,
        serving(args.model, *common, *shlex.split(args.second)) as second,
    ):
        turns = range(-WARM_UPS, args.pairs)
        for turn in track(turns, "pairs", console=errors, disable=not errors.is_terminal):
            prompt = [draw.randrange(100, 20_000) for _ in range(args.input_len)]
            order = [first, second] if turn % 2 else [second, first]
            pair = {service: times(service, prompt, args.output_len) for service in order}
            if turn >= 0:
                found.append([*pair[first], *pair[second]])
    first_ttft, first_rest, second_ttft, second_rest = zip(*found, strict=True)
    print(said("time to the first token", first_ttft, second_ttft))
    print(said("from there to the last", first_rest, second_rest))


if __name__ == "__main__":
    main()
