"""A process of a service on some node of a cluster: what depends on the node is decided there.

    python -m baton.cli.node NAME < NODE_PROCESS      NAME: for `ps`

These are the directory of the model, the address of the node's route to the gateway, and the file
of the secret, which exists only in this process.
"""

import os
import sys
from functools import partial
from typing import Any

import msgspec

from baton.cli.child import OwnSettings, decode, kind_of, start
from baton.cli.ending import exit_code, prepare
from baton.shell.settings import WorkerSettings
from baton.shell.vllm_settings import VllmSettings


class NodeProcess(msgspec.Struct, frozen=True, kw_only=True):
    """A process, and what it must find out.

    Attributes:
        kind: one of child.KINDS
        settings: of the process; `model`, `secret` and its own addresses are not decided yet
        model: MODEL, as on the command line
        secret: the secret itself; None = there is none
    """

    kind: str
    settings: msgspec.Raw
    model: str
    secret: str | None


def document(settings: OwnSettings, model: str, secret: str | None) -> bytes:
    """Return what the process with these settings reads from standard input."""
    raw = msgspec.Raw(msgspec.json.encode(settings))
    process = NodeProcess(kind=kind_of(settings), settings=raw, model=model, secret=secret)
    return msgspec.json.encode(process)


def settle(process: NodeProcess) -> Any:
    """Return the settings with everything decided.

    Raises:
        ConfigError: there is no such model here, or no route to the gateway
    """
    from baton.cli.models import ensure
    from baton.cli.own_address import control_at, own_address

    settings = decode(process.kind, bytes(process.settings))
    decided: dict[str, Any] = {"model": str(ensure(process.model))}
    if process.secret is not None:
        decided["secret"] = file_in_memory(process.secret)
    match settings:
        case WorkerSettings():
            host = own_address(settings.gateways)
            fabric = msgspec.structs.replace(settings.fabric_settings, host=host)
            decided |= {"bind": control_at(host), "fabric_settings": fabric}
        case VllmSettings():
            host = own_address(settings.gateways)
            decided |= {"bind": control_at(host), "host": host}
    return msgspec.structs.replace(settings, **decided)


def file_in_memory(text: str) -> str:
    """Return the path of a file that is on no disk. This process has it, and a program that
    replaces it; their children can open it."""
    fd = os.memfd_create("baton-secret", 0)
    os.fchmod(fd, 0o600)
    os.write(fd, text.encode())
    return f"/proc/{os.getpid()}/fd/{fd}"


def run(text: bytes) -> None:
    """Run the process that the document describes. Raises ConfigError."""
    process = msgspec.json.decode(text, type=NodeProcess)
    start(process.kind, settle(process))


def main() -> None:
    """Entry point."""
    sys.exit(prepare() or exit_code(partial(run, sys.stdin.buffer.read())))


if __name__ == "__main__":
    main()
