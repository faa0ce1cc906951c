"""A worker that neither lives nor dies as it should: the production program with an engine that
hangs, or dies of a request.

python -m tests.e2e.gray_worker ORDER WORKER-ARGUMENTS...

While the file ORDER holds "hang", the next step never ends: its thread waits in native code, where
nothing reaches it. A prompt that begins with the token POISON raises in the step, which ends the
process, and a request with a bias of RAISING_BIAS raises when its token is drawn.
"""

import ctypes
import sys
from pathlib import Path

import torch
import typer

from baton.cli import processes
from baton.core.work import Draw, Row
from baton.engine import sampler
from baton.engine.engine import TorchEngine

POISON = 211
RAISING_BIAS = 77.0


def main() -> None:
    """Run it."""
    order = Path(sys.argv[1])
    forward = TorchEngine._forward

    def gray(self: TorchEngine, rows: tuple[Row, ...]) -> torch.Tensor | None:
        if order.read_text() == "hang":
            ctypes.CDLL(None).pause()
        if any(row.start == 0 and row.tokens[0] == POISON for row in rows):
            raise MemoryError("a simulated poison")
        return forward(self, rows)

    TorchEngine._forward = gray  # type: ignore[method-assign, assignment]
    shape = sampler._token

    def raising(values: object, of: Draw, allowed: object) -> int:
        if of.sampling.shaping is not None and any(
            bias == RAISING_BIAS for _, bias in of.sampling.shaping.logit_bias
        ):
            raise IndexError("a simulated error of one row")
        return shape(values, of, allowed)  # type: ignore[arg-type]

    sampler._token = raising  # type: ignore[assignment]
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(processes.worker)
    app(sys.argv[2:])


if __name__ == "__main__":
    main()
