"""The same loads at a service on this machine, and the processor time that its processes take."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from types import MappingProxyType

import httpx
import msgspec
import numpy as np
import psutil
from tools.gateway_rate import free_port
from tools.held_out.loads import HeldOutLoad
from tools.held_out.recording import Recording

from baton.core.errors import BatonError
from baton.dev.bench.client import RequestOutcome, Target
from baton.dev.bench.load import SendSchedule, Tell, drive
from baton.dev.bench.service import BATON, START_S
from baton.dev.bench.workload import Item, Shape, TraceRow, random_items
from baton.dev.fleet.profile import MachineProfile
from baton.dev.fleet.served_request import ServedRequest
from baton.dev.profiling.least_squares import not_negative

SHAPE = Shape(seed=0, low=100, high=20_000)  # token ids of prompts
WARM_UPS = 3  # requests of each load's mix that are not counted
# requests under way while the processor time of gateway and client is measured: it matters where
# there are many, and a message then has tokens of many answers
AT_ONCE = 16
IDLE_S = 5.0
CLIENT, GATEWAY = "client", "gateway"
WORKERS = MappingProxyType(
    {"split": ("prefill-0", "decode-0"), "unified": ("unified-0", "unified-1")}
)


class LiveRun(msgspec.Struct, frozen=True, kw_only=True):
    """What a service made of one load.

    Attributes:
        late_ms: how late the client was, at p99
        cores: by process, the processor time that it took as a share of the time that passed
        pace: by worker, the time that its steps took, divided by what they take by the profile
    """

    served: tuple[ServedRequest, ...]
    late_ms: float
    seconds: float
    cores: dict[str, float]
    pace: dict[str, float]


@contextmanager
def running(
    layout: str, model: str, flags: Sequence[str], *, recording: Recording | None = None
) -> Iterator[Target]:
    """Run a service of two workers of one thread, each pinned to a core."""
    own = ("--threads", "1", "--no-enable-prefix-caching", *flags)
    control, port = f"tcp://127.0.0.1:{free_port()}", free_port()
    names = WORKERS[layout]
    gateway = [*BATON, "gateway", model, "--port", str(port), "--control", control]
    gateway += ["--served-model-name", "bench", "--generation-config", "vllm"]
    commands = [gateway]
    for core, name in enumerate(names):
        role = name.partition("-")[0]
        pinned = ["--role", role, "--name", name, "--cores", str(core)]
        worker = _worker(name, recording)
        commands.append([*worker, model, "--gateway", control, *pinned, *own])
    with ExitStack() as started:
        processes = [started.enter_context(_process(command)) for command in commands]
        url = f"http://127.0.0.1:{port}"
        _wait(url, [name.partition("-")[0] for name in names], processes)
        yield Target(base_url=url, endpoint="/v1/completions", model="bench")


def _worker(name: str, recording: Recording | None) -> list[str]:
    if recording is None:
        return [*BATON, "worker"]
    return [sys.executable, "-m", "tools.held_out.worker", *recording.arguments(name)]


@contextmanager
def _process(command: Sequence[str]) -> Iterator["subprocess.Popen[bytes]"]:
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=quiet, stderr=quiet)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)


def _wait(url: str, roles: Sequence[str], processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait until requests find all workers.

    Raises:
        BatonError: a process ends, or it takes too long
    """
    until = time.monotonic() + START_S
    while time.monotonic() < until and all(process.poll() is None for process in processes):
        with suppress(httpx.HTTPError):
            found = httpx.get(f"{url}/autoscaling").json()
            there = all(found.get(r, {}).get("workers") == roles.count(r) for r in roles)
            if there and httpx.get(f"{url}/ready").is_success:
                return
        time.sleep(0.2)
    raise BatonError(f"the service did not start: {' '.join(processes[0].args)}")


def measured(
    target: Target, load: HeldOutLoad, recording: Recording, *, purpose: str, tell: Tell
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
    before, began = _spent(), time.monotonic()
    outcomes = drive(target, items, SendSchedule(due), warm_up=(), tell=tell)
    seconds, after = time.monotonic() - began, _spent()
    late = sorted(1e3 * max(0.0, one.sent - one.due) for one in outcomes)
    return LiveRun(
        served=tuple(served_of(row, one) for row, one in zip(load.rows, outcomes, strict=True)),
        late_ms=late[int(0.99 * (len(late) - 1))],
        seconds=seconds,
        cores={name: (s - before.get(name, 0.0)) / seconds for name, s in after.items()},
        pace=_pace(recording, began),
    )


def _pace(recording: Recording, since: float) -> dict[str, float]:
    """Return how long each worker's steps took since then, as a ratio to the profile's."""
    workers = (name for names in WORKERS.values() for name in names)
    found = {worker: recording.pace(worker, since) for worker in workers}
    return {worker: pace for worker, pace in found.items() if pace is not None}


def with_host_times(profile: MachineProfile, model: str, flags: Sequence[str]) -> MachineProfile:
    """Measure the processor time of gateway and client for each request and each token, with
    answers of two lengths, beyond what both take while nobody asks for anything."""
    columns, spent = [], []
    with running("split", model, flags) as target:
        idle = _hosts_us(lambda: time.sleep(IDLE_S)) / IDLE_S
        for answer, count in ((1, 48), (48, AT_ONCE), (1, 96), (48, 2 * AT_ONCE)):
            items = [one for n in range(count) for one in _items(64, answer, f"host {answer} {n}")]
            schedule = SendSchedule((0.0,) * count, AT_ONCE)
            began = time.monotonic()
            us = _hosts_us(partial(drive, target, items, schedule, warm_up=(), tell=lambda _: None))
            columns.append([float(count), float(count * answer)])
            spent.append(us - idle * (time.monotonic() - began))
    request, reply = not_negative(np.array(columns), np.array(spent)).tolist()
    host = msgspec.structs.replace(profile.host, request_us=request, reply_us=reply)
    return msgspec.structs.replace(profile, host=host)


def _hosts_us(during: Callable[[], object]) -> float:
    """Return the microseconds of processor time that gateway and client take meanwhile."""
    before = _spent()
    during()
    after = _spent()
    return 1e6 * sum(after[name] - before[name] for name in (GATEWAY, CLIENT))


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


def _spent() -> dict[str, float]:
    """Return the processor seconds of all processes, by their names."""
    spent = {CLIENT: time.process_time()}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            line, times = process.cmdline(), process.cpu_times()
            spent[_name(line)] = spent.get(_name(line), 0.0) + times.user + times.system
    return spent


def _name(line: Sequence[str]) -> str:
    if "--name" in line:
        return line[line.index("--name") + 1]
    return GATEWAY if GATEWAY in line else "others"
