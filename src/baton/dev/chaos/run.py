"""A run: a service, clients, and somebody who hurts it."""

import asyncio
import time
from collections.abc import Sequence

import httpx
import msgspec

from baton.dev.bench.service import serving
from baton.dev.chaos.clients import TIMEOUT_S, ChaosLoad, bodies, references
from baton.dev.chaos.history import ChaosFigures, complaints, figures
from baton.dev.chaos.nemesis import Nemesis, NotWhole

MODEL = "bench"  # the name that `serving` gives it
CLEAN_S = 5.0
MARGIN_S = 10.0  # of a request beyond its own timeout


class ChaosSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is run.

    Attributes:
        seconds: how long the service is hurt
        cases: different requests
        flags: of `baton serve`
    """

    model: str
    seconds: float = 60.0
    gateways: int = 1
    prefill: int = 2
    decode: int = 2
    clients: int = 4
    cases: int = 24
    seed: int = 1
    kinds: tuple[str, ...] = ("kill", "stop", "restart")
    victims: tuple[str, ...] = ("prefill", "decode", "gateway")
    flags: tuple[str, ...] = ()


class ChaosReport(msgspec.Struct, frozen=True):
    """What came of it. `complaints` is empty if all is well."""

    settings: ChaosSettings
    complaints: tuple[str, ...]
    figures: ChaosFigures


def run(settings: ChaosSettings) -> ChaosReport:
    """Start a service, hurt it while clients ask, and judge what they saw.

    Raises:
        BatonError: the service does not start, or fails before anything is done to it
    """
    flags = (
        *("--gateways", str(settings.gateways)),
        *("--prefill", str(settings.prefill), "--decode", str(settings.decode)),
        *("--dtype", "float32", "--enable-prefix-caching"),
        *("--request-timeout", str(TIMEOUT_S), *settings.flags),
    )
    with serving(settings.model, *flags) as service:
        return asyncio.run(_run(settings, f"http://127.0.0.1:{service.port}", service.pid))


async def _run(settings: ChaosSettings, url: str, supervisor: int) -> ChaosReport:
    began, cases = time.monotonic(), bodies(MODEL, settings.cases, seed=settings.seed)
    ask_at = f"{url}/v1/completions"
    reference = await references(ask_at, cases)
    load = ChaosLoad(ask_at, cases, began=began)
    nemesis = Nemesis(
        url,
        supervisor,
        gateways=settings.gateways,
        prefill=settings.prefill,
        decode=settings.decode,
        kinds=settings.kinds,
        victims=settings.victims,
        seed=settings.seed,
        began=began,
    )
    asking = asyncio.ensure_future(load.run(settings.clients, seed=settings.seed))
    found = []
    try:
        await nemesis.run(settings.seconds)
    except NotWhole as error:
        found.append(f"not whole: {error}")
    load.stop()
    await asking
    if not await _clean(url):
        found.append(f"leaked: the ledger is not clean {CLEAN_S:g} s after the last request")
    found += complaints(load.history, reference, nemesis.faults, limit_s=TIMEOUT_S + MARGIN_S)
    return ChaosReport(settings, tuple(found), figures(load.history, nemesis.faults))


async def _clean(url: str) -> bool:
    """Return whether nothing is held any more, soon."""
    until = time.monotonic() + CLEAN_S
    async with httpx.AsyncClient(timeout=5) as http:
        while True:
            if (await http.get(f"{url}/debug/ledger")).json()["clean"]:
                return True
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.1)


def sentence(report: ChaosReport) -> Sequence[str]:
    """Return the report as lines for people."""
    f = report.figures
    share = f"{100 * f.whole / max(1, f.requests):.2f} %"
    lines = [
        f"{f.requests} requests, {f.whole} answered whole ({share}), "
        f"{len(report.complaints)} complaints"
    ]
    lines += [f"  {count} x {failure}" for failure, count in sorted(f.failures.items())]
    columns = ("new request answered", "whole again", "gap of a stream")
    lines.append(" " * 23 + "".join(f"{c:>24}" for c in columns) + "   (median, longest; s)")
    for kind, b in f.faults.items():
        cells = [f"{_median(v):.2f}, {max(v):.2f}" for v in (b.answered_s, b.whole_s, b.gap_s)]
        lines.append(f"{b.count:>5} x {kind:15}" + "".join(f"{cell:>24}" for cell in cells))
    return [*lines, *report.complaints]


def _median(values: Sequence[float]) -> float:
    return sorted(values)[len(values) // 2]
