"""A second machine on this one: another network namespace, and a cable to it that can be cut.

    namespace of this process         this process            namespace of the other machine
      10.79.0.1 ── device ◀──packets── Cable ──packets──▶ device ── 10.79.0.2

Both devices are tunnels (TUN) whose packets pass through a thread of this process. It drops what a
cut direction carries, and delays what a slow one does, so that connections neither break nor are
refused: the other side falls silent. Namespaces and devices vanish with the last process in them.
"""

import fcntl
import os
import select
import struct
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import suppress

from baton.core.errors import ConfigError
from baton.dev.chaos.network import NetworkNamespace, move_to_own_network

HERE, THERE = "10.79.0.1", "10.79.0.2"
DEVICE, MTU = "cable", 32_000
TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x1, 0x1000  # linux/if_tun.h
LOOK_S = 0.2
AGAIN_S = 0.5  # between the end of a program and its next start


class Cable:
    """Carries packets between two devices, until closed.

    Args:
        ends: descriptors of the two devices, which it closes
    """

    def __init__(self, ends: tuple[int, int]) -> None:
        self._ends = ends
        self._cut: frozenset[int] = frozenset()
        self._delay_s = 0.0
        self._closed = False
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def cut(self, *directions: int) -> None:
        """Drop what comes from these ends, 0 (this machine) and 1, and nothing else."""
        self._cut = frozenset(directions)

    def delay(self, seconds: float) -> None:
        """Let every packet take so long from now on."""
        self._delay_s = seconds

    def close(self) -> None:
        """Pull it out."""
        self._closed = True
        self._thread.join()
        for end in self._ends:
            os.close(end)

    def _carry(self) -> None:
        under_way: deque[tuple[float, int, bytes]] = deque()
        while not self._closed:
            wait = max(0.0, under_way[0][0] - time.monotonic()) if under_way else LOOK_S
            for end in select.select(self._ends, (), (), min(LOOK_S, wait))[0]:
                side = self._ends.index(end)
                packet = os.read(end, MTU)
                if side not in self._cut:
                    due = time.monotonic() + self._delay_s
                    under_way.append((due, self._ends[1 - side], packet))
            while under_way and under_way[0][0] <= time.monotonic():
                _, target, packet = under_way.popleft()
                with suppress(OSError):  # a device that is full drops it, as a real one does
                    os.write(target, packet)


class OtherMachine:
    """Runs programs beyond the cable, and starts those again that end.

    Attributes:
        networks: of this machine, and of that one

    Args:
        here: the network of this thread, which has moved to one of its own
        programs: command lines

    Raises:
        ConfigError: this user may not, or there is no command ip
    """

    def __init__(self, here: NetworkNamespace, programs: Sequence[Sequence[str]]) -> None:
        device = _device(here, HERE, THERE)
        self._programs = [tuple(program) for program in programs]
        self._made: Future[tuple[NetworkNamespace, int]] = Future()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        try:
            there, its_device = self._made.result()
        except ConfigError:
            os.close(device)
            raise
        self.networks = (here, there)
        self.cable = Cable((device, its_device))

    def close(self) -> None:
        """End the programs, and pull out the cable."""
        self._stop.set()
        self._thread.join()
        self.cable.close()
        self.networks[1].close()

    def _run(self) -> None:
        try:
            network = move_to_own_network()
            self._made.set_result((network, _device(network, THERE, HERE)))
        except ConfigError as error:
            self._made.set_exception(error)
            return
        running: dict[tuple[str, ...], subprocess.Popen[bytes]] = {}
        while not self._stop.wait(AGAIN_S):
            for program in self._programs:
                if program not in running or running[program].poll() is not None:
                    running[program] = subprocess.Popen(
                        program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                    )
        for process in running.values():
            process.kill()
            process.wait()


def _device(network: NetworkNamespace, own: str, other: str) -> int:
    """Make this end of the cable in the network, that of this thread; returns its descriptor."""
    try:
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), IFF_TUN | IFF_NO_PI))
    except OSError as error:
        raise ConfigError(f"no tunnel device for the cable: {error}") from error
    address = ("addr", "add", own, "peer", other, "dev", DEVICE)
    for words in (address, ("link", "set", DEVICE, "up", "mtu", str(MTU))):
        network.run("ip", *words, package="iproute2")
    return device
