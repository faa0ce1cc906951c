"""What it costs when a request gives way and comes back: one rank's core, host memory and seal,
beside memcpy in the same run.

    tools/preempt_cost.py --model llama-8b --gib 1 --rounds 5

A state of that size lies in scattered pages. Preempt: copied to host memory while its sums are
taken, on two threads. Resume: into other pages, and hashed again. memcpy: the same bytes, one range
to another, one thread. The first round is printed by itself: in it the kernel gives host memory its
pages.
"""

import argparse
import json
import queue
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from random import Random

import numpy as np
from tests.core.driven import T0, report_of

from baton.adapters.host_memory import HostMemory
from baton.adapters.memory import HostPool
from baton.core.agreement import Hold, Offload, Restore, StepPlan, Vote
from baton.core.ids import Boot, Epoch, GroupName, Key, Page, Rank, Room, Seq
from baton.core.memory.state import DType, Full, Group, Placement, StateSpec, StateTable, Unit
from baton.core.rank.rank import RankCore
from baton.core.rank.rank_effects import Digest, Discard, Load, RankEffect, Save
from baton.core.work import DigestDone, DigestOrder
from baton.engine.digest import block_sums

FULL, BLOCK_TOKENS = GroupName("full"), 16
# layers, K/V heads, head size
MODELS: Mapping[str, tuple[int, int, int]] = {"llama-8b": (32, 8, 128), "smollm2": (30, 3, 64)}


class Machine:
    """One rank without a model: its pool, its host memory, and a thread that hashes."""

    def __init__(self, model: str, state_bytes: int, page_blocks: int) -> None:
        layers, heads, size = MODELS[model]
        spec = StateSpec("kv", FULL, tuple(range(layers)), ("k", "v"), heads, size, DType.BF16)
        table = StateTable(layers, BLOCK_TOKENS, (Group(FULL, Unit.PAGE, Full()),), (spec,))
        self.placement = Placement(table, 1, 1, 0, 0, page_blocks)
        self.pages = -(-state_bytes // self.placement.page_bytes(FULL))
        self.tokens = self.pages * page_blocks * BLOCK_TOKENS
        self.nbytes = self.pages * self.placement.page_bytes(FULL)
        self.pool = HostPool(2 * self.nbytes)
        self.pool.array[:] = np.resize(
            np.frombuffer(Random(1).randbytes(1 << 20), dtype=np.uint8), self.pool.nbytes
        )
        self.woken = threading.Event()
        self.store = HostMemory(
            pools={FULL: self.pool},
            block_bytes={FULL: self.placement.block_bytes(FULL)},
            total=self.nbytes,
            wake=self.woken.set,
        )
        self.core = RankCore(rank=Rank(0), boot=Boot(1), placements=[self.placement], seal=True)
        self.hashed: list[DigestDone] = []
        self.orders: queue.SimpleQueue[DigestOrder | None] = queue.SimpleQueue()
        self.hashing = threading.Thread(target=self._hash)
        self.hashing.start()
        self.seq = self.order = 0
        self.key = Key(Room("0" * 32), Epoch(1))
        scattered = Random(2).sample(range(2 * self.pages), 2 * self.pages)
        self.halves = [tuple(map(Page, scattered[n::2])) for n in (0, 1)]

    def _hash(self) -> None:
        while (order := self.orders.get()) is not None:
            sums = block_sums(self.pool.array, self.placement, FULL, order.slots, order.numbers, 7)
            self.hashed.append(DigestDone(order.job, sums))
            self.woken.set()

    def plan(self, **orders: object) -> None:
        """Apply a plan, and wait until the rank has voted on what was ordered."""
        self.seq += 1
        plan = StepPlan(Seq(self.seq), **orders)
        self._perform(self.core.step(plan, T0))
        wanted, votes = len(plan.offload) + len(plan.restore), []
        while len(votes) < wanted:
            self.woken.wait()
            self.woken.clear()
            for done in self.store.poll():
                self._perform(self.core.step(done, T0))
            while self.hashed:
                self._perform(self.core.step(self.hashed.pop(0), T0))
            report = report_of(self.core)
            votes += report.ballots if report is not None else ()
        assert all(ballot.vote is Vote.ARRIVED for ballot in votes), votes

    def _perform(self, effects: list[RankEffect]) -> None:
        for effect in effects:
            match effect:
                case Save(copy=copy):
                    self.store.save(copy)
                case Load(copy=copy):
                    self.store.load(copy)
                case Digest(order=order):
                    self.orders.put(order)
                case Discard(key=key):
                    self.store.discard(key)
                case _:
                    raise AssertionError(effect)

    def next_order(self) -> int:
        """A number."""
        self.order += 1
        return self.order

    def close(self) -> None:
        """End the threads, give the memory back."""
        self.orders.put(None)
        self.hashing.join()
        self.store.close()
        self.pool.close()


def seconds(what: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def measure(model: str, state_bytes: int, page_blocks: int, rounds: int) -> dict[str, object]:
    """Milliseconds per GB (1e9 bytes)."""
    machine = Machine(model, state_bytes, page_blocks)
    source, target = (np.full(machine.nbytes, n, dtype=np.uint8) for n in (1, 2))
    found: dict[str, list[float]] = {"preempt": [], "resume": [], "memcpy": []}
    machine.plan(hold=(Hold(machine.key, {FULL: machine.halves[0]}, {}),))
    for n in range(rounds + 1):
        offload = Offload(machine.next_order(), machine.key, machine.tokens)
        found["preempt"].append(seconds(lambda order=offload: machine.plan(offload=(order,))))
        machine.plan(
            vacate=(machine.key,),
            hold=(Hold(machine.key, {FULL: machine.halves[(n + 1) % 2]}, {}),),
        )
        restore = Restore(machine.next_order(), machine.key, machine.tokens)
        found["resume"].append(seconds(lambda order=restore: machine.plan(restore=(order,))))
        found["memcpy"].append(seconds(lambda: np.copyto(target, source)))
    machine.close()
    per_gb = {
        name: [1e3 * t / (machine.nbytes / 1e9) for t in times] for name, times in found.items()
    }
    medians = {name: round(statistics.median(times[1:]), 1) for name, times in per_gb.items()}
    return {
        "model": model,
        "state_bytes": machine.nbytes,
        "blocks": machine.pages * page_blocks,
        "rounds": rounds,
        "first_ms_per_gb": {name: round(times[0], 1) for name, times in per_gb.items()},
        "ms_per_gb": medians,
        "preempt_and_resume_over_memcpy": round(
            (medians["preempt"] + medians["resume"]) / medians["memcpy"], 2
        ),
    }


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", choices=MODELS, nargs="+", default=[*MODELS])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the state")
    parser.add_argument("--page-blocks", type=int, default=4, help="blocks of 16 tokens in a page")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for model in args.model:
        print(
            json.dumps(measure(model, int(args.gib * 2**30), args.page_blocks, args.rounds)),
            flush=True,
        )


if __name__ == "__main__":
    main()
