"""A worker whose steps take as long as a profile says, and compute nothing: the production program with
real state, reads and messages. So a plan is compared with a service, whatever the machine's speed.

    python -m tools.held_out.paced PROFILE.json WORKER-ARGUMENTS...
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
import typer

from baton.cli import processes
from baton.core.ids import TokenId
from baton.core.messages import Drawn
from baton.core.work import Batch, BatchDone, Row
from baton.dev.fleet.profile import read_profile
from baton.engine.engine import TorchEngine
from baton.engine.grammars import Masks

DRAWN = Drawn(TokenId(100), None, ())


def main() -> None:
    """Run it."""
    times = read_profile(Path(sys.argv[1])).steps
    compute = TorchEngine._compute

    def paced(self: TorchEngine, batch: Batch, masks: Masks) -> BatchDone:
        ends = time.monotonic() + times.of(batch.rows) / 1e6
        done = compute(self, batch, masks)
        time.sleep(max(0.0, ends - time.monotonic()))
        return done

    def forward(_: TorchEngine, rows: Sequence[Row]) -> tuple[torch.Tensor, list[object]]:
        return torch.zeros(len(rows)), []

    def draw(
        _: TorchEngine, rows: Sequence[Row], _hidden: torch.Tensor, _masks: Masks
    ) -> dict[int, list[Drawn]]:
        return {i: [DRAWN] for i, row in enumerate(rows) if row.draw is not None}

    TorchEngine._compute = paced  # type: ignore[method-assign]
    TorchEngine._forward = forward  # type: ignore[method-assign, assignment]
    TorchEngine._draw = draw  # type: ignore[method-assign, assignment]
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(processes.worker)
    app(sys.argv[2:])


if __name__ == "__main__":
    main()
