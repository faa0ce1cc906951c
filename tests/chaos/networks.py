"""A network of its own for a test, with a program's sockets in it."""

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest

from baton.dev.chaos.network import NetworkNamespace, move_to_own_network

T = TypeVar("T")


def needs(*commands: str) -> pytest.MarkDecorator:
    """Skips a test where networks, or one of these commands, are not to be had."""
    missing = [command for command in ("ip", "nsenter", *commands) if shutil.which(command) is None]
    return pytest.mark.skipif(
        os.geteuid() != 0 or bool(missing),
        reason=f"network namespaces need root, and the commands {', '.join(missing) or 'ip'}",
    )


class OwnNetwork:
    """A network that has only loopback; `run` calls functions in a thread that lives there."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1)
        self.network: NetworkNamespace = self.run(move_to_own_network)

    def run(self, function: Callable[[], T]) -> T:
        return self._thread.submit(function).result()

    def close(self) -> None:
        self.network.close()
        self._thread.shutdown()
