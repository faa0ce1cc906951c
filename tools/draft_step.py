"""What drafts cost in a step, by processor time, and how many must be right for them to pay.

    tools/draft_step.py smollm2 --batch 1 8 --drafts 1 3 6     # looked up in the text
    tools/draft_step.py mtp --batch 1 8                        # made by a draft layer

`smollm2` is the trial model; `mtp` is a random one of the shape of DeepSeek-V3, 8 layers and a draft
layer behind them. Every row has so many drafts of the tokens after its last one, none of them right,
over a context of noise. Kinds of steps take turns; the least of each.

A step that takes 1 + c times as long as one without drafts pays where a row gives c tokens more.
"""

import argparse
import logging
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import structlog
import torch
from rich.console import Console
from rich.table import Table
from tests.engine.whole import Request, Rig, placement_of
from tests.tiny import make_tiny_with_draft_layer

from baton.core.memory.state import DType
from baton.core.work import Row
from baton.engine.checkpoint import Checkpoint
from baton.engine.trial import default_directory
from decode_step import COMMON, LATENT, B

SHAPE = {**COMMON, **LATENT, "tie_word_embeddings": False, "pad_token_id": 0}


class Steps:
    """Steps of one engine. Sequences have `context` tokens each."""

    def __init__(self, path: Path, *, layer: bool, batch: int, context: int, threads: int) -> None:
        checkpoint, each = Checkpoint.open(path), -(-(context + B) // B)
        placement = placement_of(checkpoint, DType.BF16, 1, drafts=layer)
        self._rig = Rig(
            path, dtype=DType.BF16, pages=batch * each, placement=placement, threads=threads
        )
        for pool in self._rig.pools.values():  # subnormal numbers would take longer
            noise = torch.randn(pool.nbytes // 2).bfloat16()
            pool.array[:] = noise.view(torch.uint8).numpy()
        prompt = [1] * context
        self._requests = [Request(n, prompt, range(n * each, (n + 1) * each)) for n in range(batch)]

    def take(self, batch: int, drafts: int, ahead: int) -> float:
        """Return the milliseconds of processor time of a step of `batch` rows.

        drafts: of each row; ahead: that the layer makes of each
        """
        chance = np.random.default_rng(0)  # noqa: TID251 (a tool's, from a seed)
        rows: list[Row] = []
        for request in self._requests[:batch]:
            tokens = chance.integers(1, COMMON["vocab_size"], 1 + drafts).tolist()
            rows.append(msgspec.structs.replace(request.guessed(tokens, 1), drafts=ahead))
        began = time.process_time()
        done = self._rig.run(rows)
        took = 1000 * (time.process_time() - began)
        assert not any(row.more for row in done), "no draft is right"
        self._rig.model.hidden.clear()
        self._rig.model.answers.clear()
        return took

    def close(self) -> None:
        """End it."""
        self._rig.close()


def measured(kinds: Sequence[tuple[Steps, int, int]], batch: int, count: int) -> list[float]:
    """Return the least of each kind of step, which take turns."""
    found: list[list[float]] = [[] for _ in kinds]
    for n in range(count + 1):
        for times, (steps, drafts, ahead) in zip(found, kinds, strict=True):
            took = steps.take(batch, drafts, ahead)
            if n:  # the first generates code
                times.append(took)
    return [min(times) for times in found]


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", choices=("smollm2", "mtp"))
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--drafts", type=int, nargs="*", default=[1, 3])
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    torch.set_num_threads(args.threads)
    table = Table("rows", "step", "ms", "times as long", "tokens more, to pay")
    with tempfile.TemporaryDirectory() as directory:
        layer = args.model == "mtp"
        path = default_directory()
        if layer:
            path = make_tiny_with_draft_layer(Path(directory), "deepseek_v3", **SHAPE)
        sizes = {"batch": max(args.batch), "context": args.context, "threads": args.threads}
        engines = [
            Steps(path, layer=kind, **sizes) for kind in ([False, True] if layer else [False])
        ]
        plain, drafting = engines[0], engines[-1]
        kinds = [("without", (plain, 0, 0))]
        if layer:
            kinds.append(("its rows, no draft", (drafting, 0, 0)))
        kinds += [
            (f"{n} drafts of each row", (drafting, n, n if layer else 0)) for n in args.drafts
        ]
        for batch in args.batch:
            times = measured([kind for _, kind in kinds], batch, args.steps)
            for (name, _), ms in zip(kinds, times, strict=True):
                more = ms / times[0]
                table.add_row(str(batch), name, f"{ms:.2f}", f"{more:.3f}", f"{more - 1:.2f}")
        for engine in engines:
            engine.close()
    Console().print(table)


if __name__ == "__main__":
    main()
