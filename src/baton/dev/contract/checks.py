"""The contract of ports/fabric.py as checks, one for each sentence. `baton fabric check` and the
test suite run them.

A check takes a `CheckWorld` and raises AssertionError if the fabric breaks the sentence.
"""

import inspect
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from baton.adapters.fabrics import DEFAULTS
from baton.core.errors import BatonError
from baton.core.memory.kinds import HOST, MemoryKind
from baton.dev.contract import bounds, cuts, house, memories, peers, reads
from baton.dev.contract.peer import Peer, PeerOrder
from baton.dev.contract.rig import BOOTS, POOLS, CheckWorld
from baton.ports.fabric_settings import FabricSettings


@dataclass(frozen=True, slots=True)
class ContractCheck:
    """One sentence of the contract. `name` begins with its number, or with `house`."""

    name: str
    run: Callable[[CheckWorld], None]

    @property
    def sentence(self) -> str:
        """The sentence, as people read it."""
        return (self.run.__doc__ or self.name).strip().rstrip(".")


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. `broken` says what was seen; empty if the sentence holds."""

    check: ContractCheck
    broken: str


def _of(module: ModuleType) -> tuple[ContractCheck, ...]:
    functions = inspect.getmembers(module, inspect.isfunction)
    own = [
        (name, f)
        for name, f in functions
        if f.__module__ == module.__name__ and not name.startswith("_")
    ]
    own.sort(key=lambda entry: entry[1].__code__.co_firstlineno)
    return tuple(ContractCheck(name, f) for name, f in own)


CHECKS = (*_of(reads), *_of(cuts), *_of(peers), *_of(bounds), *_of(memories), *_of(house))


def run_all(
    kind: str, settings: FabricSettings = DEFAULTS, memory: MemoryKind = HOST
) -> Iterator[CheckResult]:
    """Check a fabric against every sentence.

    Raises:
        ConfigError: the fabric does not start
    """
    peer = Peer(PeerOrder(kind, next(BOOTS), 3, POOLS, settings, memory))
    try:
        for check in CHECKS:
            world = CheckWorld(kind, peer)
            try:
                check.run(world)
                broken = ""
            except (AssertionError, BatonError, OSError) as error:
                broken = _describe(error)
            finally:
                world.close()
            yield CheckResult(check, broken)
    finally:
        peer.kill()


def _describe(error: Exception) -> str:
    at = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error or type(error).__name__} ({Path(at.filename).name}:{at.lineno}: {at.line})"
