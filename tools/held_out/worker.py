"""A worker that writes down how long each of its steps took, and how long it takes by a profile: the
production program. With `paced` a step takes the profile's time and computes nothing, with real
state, reads and messages: so a plan is compared with a service, whatever the machine's speed.

    python -m tools.held_out.worker PROFILE.json STEPS.jsonl computing|paced WORKER-ARGUMENTS...
"""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import torch
import typer
from tools.held_out.recording import PACED, RecordedStep

from baton.cli import processes
from baton.core.ids import TokenId
from baton.core.messages import Drawn
from baton.core.work import Batch, BatchDone, Row
from baton.dev.fleet.profile import StepTimes, read_profile
from baton.engine.engine import TorchEngine
from baton.engine.grammars import Masks

DRAWN = Drawn(TokenId(100), None, ())


def main() -> None:
    """Run it."""
    profile, steps, kind = sys.argv[1:4]
    if kind == PACED:
        _compute_nothing()
    _record(read_profile(Path(profile)).steps, Path(steps), paced=kind == PACED)
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(processes.worker)
    app(sys.argv[4:])


def _record(times: StepTimes, file: Path, *, paced: bool) -> None:
    compute, out = TorchEngine._compute, file.open("wb", buffering=0)

    def recorded(self: TorchEngine, batch: Batch, masks: Masks) -> BatchDone:
        began, planned = time.monotonic(), times.of(batch.rows) / 1e6
        done = compute(self, batch, masks)
        if paced:
            time.sleep(max(0.0, began + planned - time.monotonic()))
        step = RecordedStep(began, time.monotonic() - began, planned)
        out.write(msgspec.json.encode(step) + b"\n")
        return done

    TorchEngine._compute = recorded  # type: ignore[method-assign]


def _compute_nothing() -> None:
    def forward(_: TorchEngine, rows: Sequence[Row]) -> tuple[torch.Tensor, list[object]]:
        return torch.zeros(len(rows)), []

    def draw(
        _: TorchEngine, rows: Sequence[Row], _hidden: torch.Tensor, _masks: Masks
    ) -> dict[int, list[Drawn]]:
        return {i: [DRAWN] for i, row in enumerate(rows) if row.draw is not None}

    TorchEngine._forward = forward  # type: ignore[method-assign, assignment]
    TorchEngine._draw = draw  # type: ignore[method-assign, assignment]


if __name__ == "__main__":
    main()
