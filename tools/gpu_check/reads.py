"""Reads of a device's memory by another process: through a mapping, and over a fabric.

mapping     what CUDA itself allows (CUDA IPC), without Baton
pairs       a fabric between two processes, from and to every kind of memory
contract    every sentence of the fabric's contract, all pools on the device
handed over a KV cache that vLLM's connector seals behind a step, reads and verifies
"""

import os
import queue
import subprocess
import sys
import threading
import time
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.multiprocessing
from numpy.typing import NDArray
from tools.compile_gpu_kernels import MODELS, PAGED
from tools.gpu_check.common import (
    ANSWER_S,
    BE_SLOW,
    IDENTITY,
    Result,
    random_pool,
    rate,
    scattered,
)

from baton.adapters.clock import MonotonicClock
from baton.adapters.fabrics import ATTEND_S, DEFAULTS, available, build, connect_and_wait
from baton.cli.doctor.fabrics import attempt
from baton.core.handoff import seal
from baton.core.ids import Boot, Micros, Rank, RankId
from baton.core.manifest import PoolView, RankManifest
from baton.core.memory.kinds import MemoryKind
from baton.dev.contract.checks import run_all
from baton.dev.contract.measure import measure
from baton.engine.cuda.seal import block_sums
from baton.ports.fabric import Copies, Fabric, Handle, ReadEnded, ReadOutcome
from baton.vllm.memory import memory_of

SOURCE, READER = Boot(1), Boot(2)
ROUNDS = 5
OFFER_SEGMENTS = """
import torch
from baton.vllm.memory import memory_of
memory_of(torch.zeros(1 << 24, dtype=torch.uint8, device="cuda:0"))
"""


def read_as_peer(asks: Any, answers: Any) -> None:
    """Be the reading process: map the pool that is sent, copy it, seal the copy, time both."""
    pool, name, case = asks.get()
    device = pool.device
    target, again = torch.empty_like(pool), torch.empty_like(pool)
    read = rate(lambda: target.copy_(pool), pool.numel(), device)
    copied = rate(lambda: again.copy_(target), pool.numel(), device)
    sums = block_sums(target, MODELS[name], PAGED, *case, IDENTITY).cpu().numpy()
    answers.put((read, copied, sums))


def device_read(name: str, device: torch.device, nbytes: int) -> Result:
    """Let another process read the pool through a mapping (CUDA IPC) and compare its sums."""
    placement = MODELS[name]
    pool = random_pool(placement, nbytes, device)
    case = scattered(pool, placement)
    context = torch.multiprocessing.get_context("spawn")
    asks, answers = context.SimpleQueue(), context.Queue()
    peer = context.Process(target=read_as_peer, args=(asks, answers), daemon=True)
    peer.start()
    asks.put((pool, name, case))
    try:
        read, copied, theirs = answers.get(timeout=ANSWER_S)
    except queue.Empty:
        return Result(False, f"the peer says nothing: {peer}", {})
    peer.join(ANSWER_S)  # it unmaps the pool before the pool goes
    ours = block_sums(pool, placement, PAGED, *case, IDENTITY).cpu().numpy()
    same = np.array_equal(ours, theirs)
    said = f"{read:,.0f} GB/s read from a peer, {copied:,.0f} GB/s copied: x{read / copied:.2f}"
    figures = {"read_gb_s": read, "copy_gb_s": copied}
    return Result(same, said + ("" if same else "; sums differ"), figures)


def segments_refused() -> Result:
    """Let a process with PyTorch's expandable segments offer its cache, which nobody could map."""
    asked = [sys.executable, "-c", OFFER_SEGMENTS]
    env = {**os.environ, "PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    done = subprocess.run(asked, capture_output=True, text=True, env=env, timeout=ANSWER_S)
    said = (done.stderr or "not refused").strip().splitlines()[-1]
    return Result("cannot be exported" in said, said, {})


def reaching_devices() -> list[str]:
    """Return the fabrics that work here and reach memory of a device."""
    found = []
    for name in (name for name, obstacle in available().items() if not obstacle):
        fabric = build(name, SOURCE, 0, wake=lambda: None, clock=MonotonicClock())
        fabric.close()
        found += [name] * fabric.capabilities.device_memory
    return found


def pair(fabric: str, source: MemoryKind, target: MemoryKind) -> Result:
    """Read from one kind of memory into another, between two processes; every byte is compared."""
    tried = attempt(fabric, DEFAULTS, source_memory=source, reader_memory=target)
    found = tried.found
    if found.why:
        return Result(False, found.why, {})
    over = tried.transport or "an unnamed transport"
    said = f"{found.gbytes_s:,.1f} GB/s over {over}, {found.small_us:.0f} us for 4 KiB"
    return Result(True, said, {"gb_s": found.gbytes_s, "small_us": found.small_us})


def contract(fabric: str, memory: MemoryKind) -> Result:
    """Hold the fabric to every sentence of its contract."""
    verdicts = list(run_all(fabric, DEFAULTS, memory))
    broken = [f"{v.check.name}: {v.broken}" for v in verdicts if v.broken]
    said = f"{len(verdicts)} sentences, {len(broken)} broken"
    return Result(not broken, "; ".join([said, *broken]), {"sentences": len(verdicts)})


def rates(fabric: str, memory: MemoryKind) -> Result:
    """State how fast scattered ranges of several sizes are read."""
    found = measure(fabric, DEFAULTS, memory)
    figures = {f"gb_s_{rate.range_bytes}": rate.gb_per_s for rate in found.rates}
    figures |= {"connect_ms": found.connect_ms, "small_us": found.small_read_us}
    listed = ", ".join(f"{r.range_bytes:,} B {r.gb_per_s:.1f}" for r in found.rates)
    said = f"GB/s by range: {listed}; 64 B {found.small_read_us:.0f} us"
    stopped = f"stopped source: {found.stopped}; killed: {found.dead}; again: {found.restart}"
    return Result(None, f"{said}; {stopped}", figures)


class Offered(NamedTuple):
    """What the source tells the reader. `sums`: uint64 [blocks, units]."""

    fabric: str
    model: str
    nbytes: int
    exposure: bytes
    memory: MemoryKind
    slots: NDArray[np.int64]
    numbers: NDArray[np.int64]
    sums: NDArray[np.uint64]


def read_offer(asks: Any, answers: Any, device: torch.device) -> None:
    """Be the reading process: read all blocks to other slots, and seal what has landed."""
    offer: Offered = asks.get()
    placement = MODELS[offer.model]
    cache = torch.zeros(offer.nbytes, dtype=torch.uint8, device=device)
    memory, block = memory_of(cache), placement.block_bytes(PAGED)
    woken = threading.Event()
    fabric = build(offer.fabric, READER, 0, wake=woken.set, clock=MonotonicClock())
    try:
        fabric.expose({PAGED: memory.pool})
        view = PoolView(PAGED, 1, offer.nbytes, offer.memory)
        peer = RankId(SOURCE, SOURCE, Rank(0))
        manifest = RankManifest(SOURCE, 0, 0, 0, (view,), {offer.fabric: offer.exposure})
        connect_and_wait(fabric, peer, manifest)
        slots = offer.slots[::-1].copy()
        nbytes = np.full(len(slots), block, dtype=np.int64)
        copies = Copies(PAGED, offer.slots * block, slots * block, nbytes)
        seconds = min(_read(fabric, woken, peer, copies, Handle(n + 1)) for n in range(ROUNDS))
        copied = rate(lambda: cache.clone(), offer.nbytes, device)
        found = memory.sums(placement, PAGED, IDENTITY)(slots, offer.numbers)
        answers.put((offer.nbytes / seconds / 1e9, copied, int((found != offer.sums).sum())))
    finally:
        fabric.close()


def _read(
    fabric: Fabric, woken: threading.Event, peer: RankId, copies: Copies, handle: Handle
) -> float:
    """Return the seconds that a read takes; raises TimeoutError if it does not succeed."""
    began = time.perf_counter()
    fabric.submit(handle, peer, [copies], deadline=Micros(int(ANSWER_S * 1e6)))
    while woken.wait(ANSWER_S):
        woken.clear()
        for end in fabric.poll():
            if isinstance(end, ReadEnded) and end.outcome is ReadOutcome.OK:
                return time.perf_counter() - began
    raise TimeoutError(f"a read of {int(copies.nbytes.sum())} bytes does not end")


def handed_over(over: str, name: str, device: torch.device, nbytes: int) -> Result:
    """Hand a cache over as the connector of vLLM does: sealed behind a step that takes long, read
    by another process into its own cache, and sealed again there."""
    placement = MODELS[name]
    cache, written = (random_pool(placement, nbytes, device) for _ in range(2))
    cache.zero_()
    slots, numbers = scattered(cache, placement)
    memory = memory_of(cache)
    sums = memory.sums(placement, PAGED, IDENTITY)
    fabric = build(over, SOURCE, 0, wake=lambda: None, clock=MonotonicClock())
    context = torch.multiprocessing.get_context("spawn")
    asks, answers = context.SimpleQueue(), context.Queue()
    peer = context.Process(target=read_offer, args=(asks, answers, device), daemon=True)
    peer.start()
    try:
        exposure = fabric.expose({PAGED: memory.pool})
        BE_SLOW[device.type]()
        cache.copy_(written)
        memory.fence()()
        offered = sums(slots, numbers)
        asks.put(
            Offered(
                over, name, cache.numel(), exposure, memory.pool.memory, slots, numbers, offered
            )
        )
        until = time.monotonic() + ANSWER_S
        while answers.empty() and time.monotonic() < until:
            fabric.attend()
            time.sleep(ATTEND_S)
        read, copied, wrong = answers.get(timeout=ATTEND_S)
    except queue.Empty:
        return Result(False, f"the reader says nothing: {peer}", {})
    finally:
        fabric.close()
    peer.join(ANSWER_S)
    right = seal.block_sums(written.cpu().numpy(), placement, PAGED, slots, numbers, IDENTITY)
    early = int((offered != right).sum())
    said = (
        f"{read:,.0f} GB/s read, {copied:,.0f} GB/s copied: x{read / copied:.2f}; "
        f"{early} sums offered wrong, {wrong} of {right.size:,} landed wrong"
    )
    return Result(not early and not wrong, said, {"read_gb_s": read, "copy_gb_s": copied})
