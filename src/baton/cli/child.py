"""How Baton starts its own processes: each reads its settings from standard input, as JSON.

    python -m baton.cli.child KIND NAME < SETTINGS      KIND: gateway, worker or vllm; NAME: for `ps`

Settings may hold API keys, and `ps` shows a command line to every user of the machine.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from baton.cli.ending import exit_code, prepare
from baton.cli.processes import run_gateway, run_worker
from baton.cli.run_vllm import run_vllm
from baton.core.errors import ConfigError
from baton.shell.child import Program
from baton.shell.gateway_settings import GatewaySettings
from baton.shell.settings import WorkerSettings
from baton.shell.vllm_settings import VllmSettings

OwnSettings = GatewaySettings | WorkerSettings | VllmSettings

KINDS: dict[str, tuple[type[Any], Callable[[Any], None]]] = {
    "gateway": (GatewaySettings, run_gateway),
    "worker": (WorkerSettings, run_worker),
    "vllm": (VllmSettings, run_vllm),
}


def program(
    name: str,
    settings: OwnSettings,
    *,
    ends: int = 0,
    descriptors: tuple[int, ...] = (),
) -> Program:
    """Return the program that runs a process with these settings."""
    argv = (sys.executable, "-P", "-m", "baton.cli.child", kind_of(settings), name)
    return Program(name, argv, ends, msgspec.json.encode(settings), descriptors)


def kind_of(settings: OwnSettings) -> str:
    """Return the kind of a process with these settings."""
    return next(kind for kind, (struct, _) in KINDS.items() if isinstance(settings, struct))


def decode(kind: str, document: bytes) -> Any:
    """Read the settings of a process of this kind.

    Raises:
        ConfigError: the document is from another version of Baton
    """
    try:
        return msgspec.json.decode(document, type=KINDS[kind][0])
    except msgspec.DecodeError as error:
        raise ConfigError(
            f"the settings of this {kind} come from another version of Baton ({error}); "
            "restart the service"
        ) from error


def start(kind: str, settings: Any) -> None:
    """Run a process of this kind."""
    KINDS[kind][1](settings)


def run(kind: str, document: bytes) -> None:
    """Run a process of this kind. Raises ConfigError."""
    start(kind, decode(kind, document))


def main() -> None:
    """Entry point."""
    sys.exit(prepare() or exit_code(partial(run, sys.argv[1], sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()
