"""The processes of engines, asked in turns."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from tools.peers.case import Case

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".peers"  # environments, made by environments.sh
# how threads wait for each other: as each engine ships it
AS_SHIPPED: Mapping[str, str] = MappingProxyType({})


class Kind(NamedTuple):
    """One engine: its module, and its interpreter's environment; None = our own."""

    module: str
    environment: str | None


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "baton": Kind("tools.peers.engine_baton", None),
        "vllm": Kind("tools.peers.engine_vllm", "vllm"),
        "llama.cpp": Kind("tools.peers.engine_llama", "llama"),
        "transformers": Kind("tools.peers.engine_transformers", None),
    }
)


def why_absent(name: str) -> str:
    """Say why an engine cannot be measured; empty if it can."""
    place = KINDS[name].environment
    if place is None or python_of(place).exists():
        return ""
    return f"{name} is not installed: tools/peers/environments.sh {place}"


def python_of(environment: str) -> Path:
    """Return an environment's interpreter."""
    return PEERS / environment / "bin" / "python"


class PeerProcess:
    """One engine, in a process of its own.

    Args:
        said: how it is made: model, gguf, threads, dtype
        cores: that it may use
        waits: variables that say how its threads wait for each other

    Raises:
        RuntimeError: it has ended
    """

    def __init__(
        self,
        name: str,
        said: Mapping[str, Any],
        *,
        cores: Sequence[int],
        log: Path,
        waits: Mapping[str, str] = AS_SHIPPED,
    ) -> None:
        kind, self.name = KINDS[name], name
        python = sys.executable if kind.environment is None else str(python_of(kind.environment))
        threads = str(said["threads"])
        self._log = log
        self._process = subprocess.Popen(
            ["taskset", "-c", ",".join(map(str, cores)), python, "-m", kind.module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log.open("wb"),
            text=True,
            cwd=ROOT,
            env=os.environ
            | {"OMP_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
            | waits
            | preloaded(kind.environment),
        )
        self._say(said)

    def wait_ready(self) -> None:
        """Wait until it is made."""
        self._hear()

    def measure(self, case: Case, seed: int) -> list[float]:
        """Measure a case once; seconds."""
        self._say({"case": case, "seed": seed})
        found: list[float] = self._hear()
        return found

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(60)

    def _say(self, what: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} has ended; see {self._log}")
        return json.loads(line)


def preloaded(environment: str | None) -> dict[str, str]:
    """Return the libraries that an environment preloads, as vLLM's documentation advises for CPUs:
    tcmalloc and Intel's OpenMP."""
    if environment is None:
        return {}
    wanted = ("libtcmalloc_minimal.so*", "libiomp5.so")
    found = [next((PEERS / environment).rglob(name), None) for name in wanted]
    held = [str(path) for path in found if path is not None]
    return {"LD_PRELOAD": ":".join(held)} if held else {}
