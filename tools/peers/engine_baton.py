"""Baton's engine, without a service around it."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tools.decode_step import Ours
from tools.peers.case import STEPS, serve

MOST, LONGEST = 32, 2048 + STEPS


class BatonEngine:
    """Implements case.Engine."""

    def __init__(self, said: Mapping[str, Any]) -> None:
        torch.set_num_threads(said["threads"])
        self._engine = Ours(
            Path(said["model"]), said["dtype"], threads=said["threads"], batch=MOST, longest=LONGEST
        )

    def prefill(self, prompts: list[list[int]]) -> float:
        began = time.perf_counter()
        self._engine.prefill_all([np.array(p) for p in prompts])
        return time.perf_counter() - began

    def decode(self, prompts: list[list[int]], steps: int) -> list[float]:
        tokens = np.array(self._engine.prefill_all([np.array(p) for p in prompts]))
        found = []
        for _ in range(steps):
            began = time.perf_counter()
            tokens = np.array(self._engine.step(tokens))
            found.append(time.perf_counter() - began)
        return found


if __name__ == "__main__":
    serve(BatonEngine)
