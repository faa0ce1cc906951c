"""Small machines, and what is asked of them."""

import random
from collections.abc import Iterator
from typing import Any

from baton.core.ids import TokenId
from baton.dev.fleet.fleet import Fleet, FleetRequest, FleetSettings
from baton.dev.fleet.profile import (
    MachineProfile,
    StepLimits,
    StepTimes,
    WireTimes,
    WorkerMemory,
    in_proportion,
)
from baton.dev.fleet.served_request import ServedRequest

MESSAGE_US = 200
STEP_US, TOKEN_US = 8_000.0, 100.0


def profile(*, pages: int = 4000, step_tokens: int = 2048, **times: Any) -> MachineProfile:
    """A worker that computes 10,000 tokens/s; `times` override single ones."""
    steps: dict[str, Any] = {
        "tokens_us": in_proportion(STEP_US, TOKEN_US),
        "pair_us": 0.01,
        "row_us": 50.0,
        "context_us": 0.5,
    }
    return MachineProfile(
        name="small",
        steps=StepTimes(**{**steps, **times}),
        wire=WireTimes(bytes_per_s=1e9, read_us=500.0, message_us=MESSAGE_US),
        memory=WorkerMemory(page_tokens=16, pages=pages, token_bytes=65_536),
        limits=StepLimits(step_tokens=step_tokens, max_rooms=64),
    )


def mix(count: int, *, rate: float, prompt: int, answer: int, seed: int = 0) -> list[FleetRequest]:
    """Requests that come at random, with lengths around these."""
    chance, at, found = random.Random(seed), 0.0, []
    for number in range(count):
        at += chance.expovariate(rate)
        length = chance.randint(prompt // 2, prompt * 3 // 2)
        tokens = (TokenId(number + 1),) * length
        asked = chance.randint(max(1, answer // 2), answer * 3 // 2)
        found.append(FleetRequest(round(at * 1e6), tokens, asked))
    return found


def one(prompt: int, answer: int) -> list[FleetRequest]:
    """A single request."""
    return [FleetRequest(0, (TokenId(7),) * prompt, answer)]


def split(prefill: int, decode: int) -> tuple[str, ...]:
    """The roles of a divided fleet."""
    return ("prefill",) * prefill + ("decode",) * decode


def rest(fleet: Fleet) -> None:
    """Let so much time pass that whatever was under way has ended."""
    until = fleet.clock.now + 5_000_000
    while fleet.clock.now < until and fleet.clock.advance():
        pass


def serve(
    roles: tuple[str, ...], requests: list[FleetRequest], machine: MachineProfile, **settings: Any
) -> tuple[Fleet, list[ServedRequest]]:
    """What a fleet made of requests."""
    fleet = Fleet(roles, machine, FleetSettings(**settings))
    return fleet, fleet.serve(iter(requests))


def times(served: list[ServedRequest]) -> Iterator[tuple[int | None, int | None]]:
    """When the first and the last token of each came."""
    return ((one.first, one.last) for one in served)
