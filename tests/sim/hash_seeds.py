"""One run in processes that order sets of strings differently."""

import subprocess
import sys


def traces(seed: int, parts: str) -> set[str]:
    """Return the hashes of what happened, of two processes with hash seeds of their own.

    parts: a name in baton.dev.sim.parts
    """
    program = (
        f"from baton.dev.sim.parts import {parts}\n"
        "from baton.dev.sim.run import be_silent, run\n"
        "be_silent()\n"
        f"print(run({seed}, parts={parts}).trace)"
    )
    return {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
