"""The same loads at a service on this machine, and the processor time that its processes take."""

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import httpx
import msgspec
import numpy as np
import psutil
from tools.gateway_rate import free_port
from tools.held_out.loads import HeldOutLoad

from baton.core.errors import BatonError
from baton.dev.bench.client import RequestOutcome, Target
from baton.dev.bench.load import SendSchedule, Tell, drive
from baton.dev.bench.service import BATON, START_S, Service, serving
from baton.dev.bench.workload import Item, Shape, TraceRow, random_items
from baton.dev.fleet.profile import MachineProfile
from baton.dev.fleet.served_request import ServedRequest
from baton.dev.profiling.least_squares import not_negative

SHAPE = Shape(seed=0, low=100, high=20_000)  # token ids of prompts
WARM_UPS = 3  # requests of each load's mix that are not counted
CLIENT, GATEWAY = "client", "gateway"


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a service made of one load.

    Attributes:
        late_ms: how late the client was, at p99
        cores: by process, the processor time that it took as a share of the time that passed
    """

    served: tuple[ServedRequest, ...]
    late_ms: float
    seconds: float
    cores: dict[str, float]


@contextmanager
def running(layout: str, model: str, flags: Sequence[str]) -> Iterator[tuple[Target, Service]]:
    """Run a service of two workers of one thread, each pinned to a core."""
    own = ("--threads", "1", *flags)
    if layout == "split":
        with serving(model, "--role", "split", *own) as service:
            yield _target(service), service
        return
    # `baton serve` starts one unified worker; the other joins it
    control = f"tcp://127.0.0.1:{free_port()}"
    with serving(model, "--role", "unified", "--control", control, *own) as service:
        command = [*BATON, "worker", model, "--gateway", control, "--role", "unified"]
        command += ["--name", "unified-1", "--cores", "1", "--no-enable-prefix-caching", *own]
        other = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for_two(service, other)
            yield _target(service), service
        finally:
            other.terminate()
            other.wait(60)


def _target(service: Service) -> Target:
    url = f"http://127.0.0.1:{service.port}"
    return Target(base_url=url, endpoint="/v1/completions", model="bench")


def _wait_for_two(service: Service, other: subprocess.Popen[bytes]) -> None:
    url, until = f"http://127.0.0.1:{service.port}/autoscaling", time.monotonic() + START_S
    while time.monotonic() < until and other.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.get(url).json().get("unified", {}).get("workers") == 2:
                return
        time.sleep(0.2)
    raise BatonError("the second unified worker did not join the service")


def measured(
    target: Target, service: Service, load: HeldOutLoad, *, purpose: str, tell: Tell
) -> LiveRun:
    """Send a load at its times, with prompts that no other run has."""
    items = [
        item
        for number, row in enumerate(load.rows)
        for item in _items(row.input_tokens, row.output_tokens, f"{purpose} {load} {number}")
    ]
    warm_up = [
        item
        for number, row in enumerate(load.rows[:WARM_UPS])
        for item in _items(row.input_tokens, row.output_tokens, f"warm {purpose} {load} {number}")
    ]
    drive(target, [], SendSchedule(()), warm_up=warm_up, tell=tell)
    due = tuple(row.at_s or 0.0 for row in load.rows)
    before, began = _spent(service), time.monotonic()
    outcomes = drive(target, items, SendSchedule(due), warm_up=(), tell=tell)
    seconds, after = time.monotonic() - began, _spent(service)
    late = sorted(1e3 * max(0.0, one.sent - one.due) for one in outcomes)
    return LiveRun(
        served=tuple(served_of(row, one) for row, one in zip(load.rows, outcomes, strict=True)),
        late_ms=late[int(0.99 * (len(late) - 1))],
        seconds=seconds,
        cores={name: (s - before.get(name, 0.0)) / seconds for name, s in after.items()},
    )


def with_host_times(profile: MachineProfile, model: str, flags: Sequence[str]) -> MachineProfile:
    """Measure the processor time of gateway and client for each request and each token, with
    answers of two lengths."""
    columns, spent = [], []
    with running("split", model, flags) as (target, service):
        for answer, count in ((1, 48), (48, 12), (1, 96), (48, 24)):
            items = [one for n in range(count) for one in _items(64, answer, f"host {answer} {n}")]
            before, began = _spent(service), time.monotonic()
            drive(target, items, SendSchedule((0.0,) * count, 4), warm_up=(), tell=lambda _: None)
            after, seconds = _spent(service), time.monotonic() - began
            columns.append([float(count), float(count * answer), seconds])
            spent.append(1e6 * sum(after[name] - before[name] for name in (GATEWAY, CLIENT)))
    # the third is what a gateway does even if nobody asks for anything
    request, reply, _ = not_negative(np.array(columns), np.array(spent)).tolist()
    host = msgspec.structs.replace(profile.host, request_us=request, reply_us=reply)
    return msgspec.structs.replace(profile, host=host)


def _items(prompt: int, answer: int, purpose: str) -> list[Item]:
    return random_items(
        1, input_len=prompt, output_len=answer, range_ratio=0.0, shape=SHAPE, purpose=purpose
    )


def served_of(row: TraceRow, one: RequestOutcome) -> ServedRequest:
    """Return an outcome as a plan has it; times count from when it was sent."""
    first, last = (
        (round(1e6 * (one.times[i] - one.sent)) for i in (0, -1)) if one.times else (None, None)
    )
    return ServedRequest(
        at=0,
        prompt_tokens=row.input_tokens,
        asked=row.output_tokens,
        first=first,
        last=last,
        tokens=one.output_tokens,
        failure=one.failure,
    )


def _spent(service: Service) -> dict[str, float]:
    """Return the processor seconds of all processes, by their names."""
    ours = psutil.Process()
    # the second unified worker is a child of this process, as `baton serve` is
    spent = {CLIENT: time.process_time()}
    for process in ours.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            line, times = process.cmdline(), process.cpu_times()
            spent[_name(line)] = spent.get(_name(line), 0.0) + times.user + times.system
    return spent


def _name(line: Sequence[str]) -> str:
    if "baton.cli.child" in line:
        return line[-1]
    if "--name" in line:
        return line[line.index("--name") + 1]
    return "others"
