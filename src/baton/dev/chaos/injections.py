"""What is done to a process, and to the cable between two machines: one function for each kind.

kill       SIGKILL of a rank of a worker, or of a gateway; the supervisor starts it again
stop       SIGSTOP, and SIGCONT after a while, before or after silence has ended its sessions
restart    SIGTERM, as an operator restarts a service that nobody may miss
partition  the cable to the other machine carries nothing, in one direction or both
delay      it carries everything later
loss       the kernel of a machine, or of both, drops a share of what arrives by the cable
bandwidth  it sends what goes into the cable at a low rate
"""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from baton.core.errors import ConfigError
from baton.dev.chaos.bandwidth import Bandwidth
from baton.dev.chaos.cable import DEVICE, OtherMachine
from baton.dev.chaos.history import RESTART
from baton.dev.chaos.loss import Loss

STOPPED_S = (0.2, 8.0)
DELAYS_S = (0.005, 0.3)  # one way
LOST_SHARES = (0.1, 0.4)
RATES_LOG10 = (5.5, 7.0)  # bits/s: 0.3 to 10 Mbit/s
SIDES = ((0,), (1,), (0, 1))  # of the cable


class Hindrance(Protocol):
    """Something that the kernel of a machine does to the packets of its cable."""

    def begin(self, amount: float, /) -> None:
        """Do it from now on, so much of it."""
        ...

    def end(self) -> int:
        """Leave it off. Returns how many packets it has met."""
        ...


async def _kill(pid: int, chance: random.Random) -> None:
    os.kill(pid, signal.SIGKILL)


async def _stop(pid: int, chance: random.Random) -> None:
    os.kill(pid, signal.SIGSTOP)
    await asyncio.sleep(chance.uniform(*STOPPED_S))
    os.kill(pid, signal.SIGCONT)


async def _restart(pid: int, chance: random.Random) -> None:
    os.kill(pid, signal.SIGTERM)


async def _partition(machine: OtherMachine, chance: random.Random) -> int:
    machine.cable.cut(*chance.choice(SIDES))
    await asyncio.sleep(chance.uniform(*STOPPED_S))
    machine.cable.cut()
    return 0


async def _delay(machine: OtherMachine, chance: random.Random) -> int:
    machine.cable.delay(chance.uniform(*DELAYS_S))
    await asyncio.sleep(chance.uniform(*STOPPED_S))
    machine.cable.delay(0)
    return 0


async def _lose(machine: OtherMachine, chance: random.Random) -> int:
    hindrances = [Loss(machine.networks[side], DEVICE) for side in chance.choice(SIDES)]
    return await _hinder(hindrances, chance.uniform(*LOST_SHARES), chance)


async def _narrow(machine: OtherMachine, chance: random.Random) -> int:
    hindrances = [Bandwidth(machine.networks[side], DEVICE) for side in chance.choice(SIDES)]
    return await _hinder(hindrances, 10 ** chance.uniform(*RATES_LOG10), chance)


async def _hinder(hindrances: Sequence[Hindrance], amount: float, chance: random.Random) -> int:
    """Returns how many packets were met."""
    for hindrance in hindrances:
        await asyncio.to_thread(hindrance.begin, amount)
    await asyncio.sleep(chance.uniform(*STOPPED_S))
    return sum([await asyncio.to_thread(hindrance.end) for hindrance in hindrances])


def try_out(kinds: Sequence[str], machine: OtherMachine) -> None:
    """Begin and end what the kernel must do for these kinds, before it matters.

    Raises:
        ConfigError: it does not do one of them
    """
    for kind, amount in ((Loss, LOST_SHARES[0]), (Bandwidth, 10 ** RATES_LOG10[1])):
        if kind.KIND in kinds:
            for network in machine.networks:
                hindrance = kind(network, DEVICE)
                try:
                    hindrance.begin(amount)
                    hindrance.end()
                except ConfigError as error:
                    raise ConfigError(
                        f"{error} ({kind.KIND} needs {kind.NEEDS}; or leave it out of --kinds)"
                    ) from error


PROCESS_KINDS: Mapping[str, Callable[[int, random.Random], Awaitable[None]]] = MappingProxyType(
    {"kill": _kill, "stop": _stop, RESTART: _restart}
)
# They return how many packets show that it was done, if the kernel counts them.
CABLE_KINDS: Mapping[str, Callable[[OtherMachine, random.Random], Awaitable[int]]] = (
    MappingProxyType(
        {"partition": _partition, "delay": _delay, Loss.KIND: _lose, Bandwidth.KIND: _narrow}
    )
)
