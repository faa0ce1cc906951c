"""A run: a service, clients, and somebody who hurts it."""

import asyncio
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import httpx
import msgspec

from baton.dev.bench.service import BATON, Service, serving
from baton.dev.chaos import history
from baton.dev.chaos.bandwidth import Bandwidth
from baton.dev.chaos.cable import HERE, OtherMachine
from baton.dev.chaos.clients import TIMEOUT_S, ChaosLoad, Habits, bodies, references
from baton.dev.chaos.history import CORRUPT, ChaosFigures
from baton.dev.chaos.injections import CABLE_KINDS, try_out
from baton.dev.chaos.loss import Loss
from baton.dev.chaos.machine_clock import MachineClock
from baton.dev.chaos.nemesis import CLEAN_S, Nemesis, NotWhole
from baton.dev.chaos.network import NetworkNamespace, move_to_own_network
from baton.dev.chaos.recordings import Recordings

MODEL = "bench"  # the name that `serving` gives it
CONTROL = f"tcp://{HERE}:5500"
MARGIN_S = 10.0  # of a request beyond its own timeout
EVIDENCE = {
    CORRUPT: "damaged pages found",
    Loss.KIND: "packets dropped",
    Bandwidth.KIND: "times a packet waited",
    MachineClock.KIND: "processes lived by it",
}


class ChaosSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        seconds: how long the service is hurt
        habits: of the clients
        cases: different requests
        verify_s: interval in which the service verifies its caches, if their memory is hurt
        flags: of `baton serve`; if the cable is hurt, of the workers of the other machine, too
        record: directory for the recordings of all processes; if there is none, they are kept only
            for a complaint
    """

    model: str
    seconds: float = 60.0
    gateways: int = 1
    prefill: int = 2
    decode: int = 2
    clients: int = 4
    habits: Habits = Habits()
    cases: int = 24
    seed: int = 1
    kinds: tuple[str, ...] = ("kill", "stop", "restart")
    victims: tuple[str, ...] = ("prefill", "decode", "gateway")
    verify_s: float = 2.0
    flags: tuple[str, ...] = ()
    record: str | None = None

    @property
    def two_machines(self) -> bool:
        """Whether there is another machine, with one more worker of each role."""
        return any(kind in CABLE_KINDS for kind in self.kinds)


class ChaosReport(msgspec.Struct, frozen=True):
    """What came of it. `complaints` is empty if all is well.

    Attributes:
        recordings: the directory with those of all processes, if they were kept
    """

    settings: ChaosSettings
    complaints: tuple[str, ...]
    figures: ChaosFigures
    recordings: str | None


def run(settings: ChaosSettings) -> ChaosReport:
    """Start a service, hurt it while clients ask, and judge what they saw.

    If the cable is hurt, this thread moves to a network of its own, and cannot come back.

    Raises:
        BatonError: the service does not start, or fails before anything is done to it
        ConfigError: one of the kinds cannot be done here
    """
    common = [
        *("--dtype", "float32", "--enable-prefix-caching"),
        *(("--cache-verify-interval", str(settings.verify_s)) if CORRUPT in settings.kinds else ()),
    ]
    front = [
        *("--gateways", str(settings.gateways)),
        *("--prefill", str(settings.prefill), "--decode", str(settings.decode)),
        *("--request-timeout", str(TIMEOUT_S)),
    ]
    with TemporaryDirectory(prefix="baton-") as directory, ExitStack() as opened:
        recordings = opened.enter_context(closing(Recordings(settings.record)))
        common += ["--record", str(recordings.directory)]
        clocks = [
            opened.enter_context(closing(MachineClock(Path(directory) / f"clock-{number}")))
            for number in range(1 + settings.two_machines)
            if MachineClock.KIND in settings.kinds
        ]
        machine = None
        if settings.two_machines:
            here = opened.enter_context(closing(move_to_own_network()))
            secret = Path(directory) / "SECRET"
            subprocess.run([*BATON, "secret", "new", str(secret)], check=True, capture_output=True)
            common += ["--fabric", "tcp", "--secret", str(secret)]
            front += ["--control", CONTROL]
            baton = _baton(clocks[1:])
            machine = opened.enter_context(_machine(settings, here, baton, common))
        flags = (settings.model, *front, *common, *settings.flags)
        service = opened.enter_context(serving(*flags, baton=_baton(clocks)))
        complaints, figures = asyncio.run(_run(settings, service, machine, clocks))
        if complaints:
            recordings.keep()
    kept = str(recordings.directory) if recordings.kept else None
    return ChaosReport(settings, complaints, figures, kept)


def _baton(clocks: Sequence[MachineClock]) -> Sequence[str]:
    """Return the command of a machine: its processes live by the first of these clocks, if any."""
    return (*clocks[0].prefix, *BATON) if clocks else BATON


@contextmanager
def _machine(
    settings: ChaosSettings, here: NetworkNamespace, baton: Sequence[str], common: Sequence[str]
) -> Iterator[OtherMachine]:
    """The other machine, with a worker of each role."""
    host, _, port = CONTROL.rpartition(":")
    gateways = [f"{host}:{int(port) + i}" for i in range(settings.gateways)]
    shared = [
        *(word for gateway in gateways for word in ("--gateway", gateway)),
        *("--served-model-name", MODEL, *common, *settings.flags),
    ]
    with closing(
        OtherMachine(
            here,
            [
                [*baton, "worker", settings.model, "--role", role, "--name", f"{role}-far", *shared]
                for role in ("prefill", "decode")
            ],
        )
    ) as machine:
        try_out(settings.kinds, machine)
        yield machine


async def _run(
    settings: ChaosSettings,
    service: Service,
    machine: OtherMachine | None,
    clocks: Sequence[MachineClock],
) -> tuple[tuple[str, ...], ChaosFigures]:
    """Return the complaints, and the figures."""
    url = f"http://127.0.0.1:{service.port}"
    began, cases = time.monotonic(), bodies(MODEL, settings.cases, seed=settings.seed)
    ask_at = f"{url}/v1/completions"
    reference = await references(ask_at, cases)
    load = ChaosLoad(ask_at, cases, began=began, habits=settings.habits)
    nemesis = Nemesis(
        url,
        service.pid,
        gateways=settings.gateways,
        prefill=settings.prefill + (machine is not None),
        decode=settings.decode + (machine is not None),
        kinds=settings.kinds,
        victims=settings.victims,
        machine=machine,
        clocks=clocks,
        paused=load.paused,
        verify_s=settings.verify_s,
        seed=settings.seed,
        began=began,
    )
    asking = asyncio.ensure_future(load.run(settings.clients, seed=settings.seed))
    found = []
    try:
        await nemesis.run(settings.seconds)
    except NotWhole as error:
        found.append(f"not whole: {error}")
    except (aiohttp.ClientError, TimeoutError) as error:
        found.append(f"not whole: it does not say what it holds: {error!r}")
    load.stop()
    await asking
    if not await _clean(url):
        found.append(f"leaked: the ledger is not clean {CLEAN_S:g} s after the last request")
    found += history.complaints(
        load.history, reference, nemesis.faults, limit_s=TIMEOUT_S + MARGIN_S
    )
    return tuple(found), history.figures(load.history, nemesis.faults)


async def _clean(url: str) -> bool:
    """Return whether nothing is held any more, soon."""
    until = time.monotonic() + CLEAN_S
    async with httpx.AsyncClient(timeout=5) as http:
        while True:
            with suppress(httpx.HTTPError):  # a service that does not answer is not clean
                if (await http.get(f"{url}/debug/ledger")).json()["clean"]:
                    return True
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.1)


def sentence(report: ChaosReport) -> Sequence[str]:
    """Return the report as lines for people."""
    f = report.figures
    share = f"{100 * f.whole / max(1, f.requests - f.left):.2f} %"
    lines = [
        f"{f.requests} requests, {f.left} left by their clients, {f.whole} answered whole "
        f"({share} of the others), {f.slow} of them to slow readers, "
        f"{len(report.complaints)} complaints"
    ]
    lines += [f"  {count} x {failure}" for failure, count in sorted(f.failures.items())]
    columns = ("new request answered", "whole again", "gap of a stream")
    lines.append(" " * 23 + "".join(f"{c:>24}" for c in columns) + "   (median, longest; s)")
    for kind, b in f.faults.items():
        cells = [f"{_median(v):.2f}, {max(v):.2f}" for v in (b.answered_s, b.whole_s, b.gap_s)]
        name = EVIDENCE.get(kind.split()[0])
        found = f"   {b.evidence} {name}" if name is not None else ""
        lines.append(f"{b.count:>5} x {kind:15}" + "".join(f"{cell:>24}" for cell in cells) + found)
    lines += report.complaints
    if report.recordings is not None:
        lines.append(
            f"recordings of all processes are in {report.recordings}; "
            "'baton replay-log FILE' replays one of them"
        )
    return lines


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
