"""Networks of the kernel, one for each machine of a run, and the commands that are run in them."""

import ctypes
import os
import shutil
import subprocess

from baton.core.errors import ConfigError

CLONE_NEWNET = 0x40000000  # linux/sched.h


class NetworkNamespace:
    """The network of the thread that makes this object. Any thread can run commands in it."""

    def __init__(self) -> None:
        self._namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def run(self, *words: str, package: str, given: str = "") -> str:
        """Run a command in this network and return what it prints.

        Args:
            package: has the command, at Debian
            given: on its standard input

        Raises:
            ConfigError: there is no such command, or it fails
        """
        if shutil.which(words[0]) is None:
            raise ConfigError(f"no command {words[0]} here: install {package}")
        enter = ("nsenter", f"--net=/proc/self/fd/{self._namespace}", "--")
        try:
            done = subprocess.run(
                [*enter, *words],
                input=given,
                pass_fds=(self._namespace,),
                check=True,
                capture_output=True,
                text=True,
            )
        except FileNotFoundError as error:
            raise ConfigError("no command nsenter here: install util-linux") from error
        except subprocess.CalledProcessError as error:
            raise ConfigError(f"{' '.join(words)}: {error.stderr.strip()}") from error
        return done.stdout

    def close(self) -> None:
        """Forget the network; it vanishes with the last process in it."""
        os.close(self._namespace)


def move_to_own_network() -> NetworkNamespace:
    """Give this thread, and all that it starts, a network that has only loopback.

    Raises:
        ConfigError: this user may not
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise ConfigError(
            f"no network namespace: {os.strerror(ctypes.get_errno())}; faults of the cable need "
            "one for each of two machines: run as root, or leave them out of --kinds"
        )
    network = NetworkNamespace()
    network.run("ip", "link", "set", "lo", "up", package="iproute2")
    return network
