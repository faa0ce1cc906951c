"""The host store of a simulated rank. It copies block by block over time, sometimes more slowly
than every timeout, and sometimes wrongly."""

from collections.abc import Callable, Mapping
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from baton.core.ids import GroupName, Key, StoreKey
from baton.core.memory.state import Placement
from baton.core.work import Copied, HostCopy
from baton.dev.sim.gray import COPY
from baton.dev.sim.heap import Heap
from baton.dev.sim.memory import SimPool
from baton.dev.sim.process import Process
from baton.dev.sim.settings import Faults
from baton.dev.sim.tape import Tape

COPY_US = 40
SLOW_US = (2_000, 20_000, 400_000, 2_000_000)  # the last is longer than a handoff may stall
Block = tuple[GroupName, int, int]  # group, place in the copy, place in the pool


class StoreWorld(Protocol):
    """What a store needs to know of its world."""

    heap: Heap
    tape: Tape
    tainted: set[Key]

    def faults(self) -> Faults:
        """Return the faults that may occur at the moment."""
        ...

    def fault(self, kind: str, *names: str) -> None:
        """Note a fault."""
        ...


class SimHostStore:
    """Port HostStore for one rank."""

    def __init__(
        self,
        *,
        world: StoreWorld,
        process: Process,
        placement: Placement,
        pools: Mapping[GroupName, SimPool],
        total: int,
    ) -> None:
        self._world, self._process, self._placement, self._pools, self._total = (
            world,
            process,
            placement,
            pools,
            total,
        )
        self.copies: dict[
            StoreKey, dict[GroupName, NDArray[np.uint8]]
        ] = {}  # [blocks, bytes of one]
        self.under_way: dict[int, HostCopy] = {}
        self.saving: set[StoreKey] = set()  # of those under way, what is being read from the pool
        self._done: list[Copied] = []
        # whether a bit was flipped in the page of this slot of the pool; the rank's engine knows
        self.damaged: Callable[[GroupName, int], bool] = lambda group, slot: False

    @property
    def held(self) -> Mapping[StoreKey, Mapping[GroupName, int]]:
        return {key: {g: a.nbytes for g, a in copy.items()} for key, copy in self.copies.items()}

    def blocks(self, group: GroupName) -> NDArray[np.uint8]:
        """Return [blocks, bytes of one]: the pool itself, not a copy."""
        return self._pools[group].data.reshape(-1, self._placement.block_bytes(group))

    def save(self, copy: HostCopy) -> None:
        self._process.port_call()
        held = sum(sum(groups.values()) for key, groups in self.held.items() if key != copy.key)
        want = sum(len(slots) * self._placement.block_bytes(g) for g, slots in copy.slots.items())
        if held + want > self._total:
            self._begin(copy, f"{held + want} bytes are more than {self._total}", None)
            return
        self.copies[copy.key] = {
            g: np.full((len(slots), self._placement.block_bytes(g)), 0xDD, dtype=np.uint8)
            for g, slots in copy.slots.items()
        }
        self.saving.add(copy.key)
        self._begin(copy, "", self._save_block)

    def load(self, copy: HostCopy) -> None:
        self._process.port_call()
        saved = {g: len(a) for g, a in self.copies.get(copy.key, {}).items()}
        if saved != {g: len(slots) for g, slots in copy.slots.items()}:
            self._begin(copy, f"{saved} blocks were saved", None)
            return
        self._begin(copy, "", self._load_block)

    def _save_block(self, copy: HostCopy, block: Block) -> None:
        group, at, slot = block
        if self.damaged(group, slot) and isinstance(copy.key, Key):
            # the damage moves with the state, into pages in which no bit was flipped; what is kept
            # of prompts must have its sums at birth when it comes back
            self._world.tainted.add(copy.key)
        self.copies[copy.key][group][at] = self.blocks(group)[slot]

    def _load_block(self, copy: HostCopy, block: Block) -> None:
        group, at, slot = block
        self.blocks(group)[slot] = self.copies[copy.key][group][at]

    def _begin(self, copy: HostCopy, why: str, act: object) -> None:
        world, tape, faults = self._world, self._world.tape, self._world.faults()
        self.under_way[copy.job] = copy
        if not self._process.ends(COPY):
            return
        late = COPY_US
        if tape.chance(faults.host_slow, "a slow copy"):
            late += SLOW_US[tape.below(len(SLOW_US), "slow by")]
        if late > SLOW_US[-1] and act == self._save_block and not isinstance(copy.key, Key):
            # what follows a checkpoint within a prompt waits for it, as for a step
            world.fault("slow checkpoint", self._process.name)
        if act is not None and tape.chance(faults.host_fail, "a copy fails"):
            why = "a simulated error"
            world.fault("host copy", self._process.name)
        damages = (
            act is not None
            and not why
            and tape.chance(faults.host_damage, "host memory is damaged")
        )
        world.heap.after(late // 2, self._half, copy, act, why, damages, late)

    def _half(self, copy: HostCopy, act: object, why: str, damages: bool, late: int) -> None:
        """Copy some blocks now, and the others at the end."""
        if not self._process.alive:
            return
        blocks = [
            (g, i, int(slot)) for g, slots in copy.slots.items() for i, slot in enumerate(slots)
        ]
        if callable(act):
            for block in blocks[::2]:
                act(copy, block)
        self._world.heap.after(
            late - late // 2, self._finish, copy, act, blocks[1::2], why, damages
        )

    def _finish(
        self, copy: HostCopy, act: object, rest: list[Block], why: str, damages: bool
    ) -> None:
        if not self._process.alive:
            return
        if callable(act) and not why:
            for block in rest:
                act(copy, block)
        if damages:
            self._damage(copy.key)
        del self.under_way[copy.job]
        self.saving.discard(copy.key)
        self._process.has_ended(COPY)
        self._done.append(Copied(copy.job, why))
        self._process.wake()

    def _damage(self, key: StoreKey) -> None:
        groups = [g for g, a in self.copies[key].items() if a.size]
        if groups:
            data = self.copies[key][groups[self._world.tape.below(len(groups), "group")]].reshape(
                -1
            )
            data[self._world.tape.below(data.size, "byte")] ^= 1 << self._world.tape.below(8, "bit")
            self._world.fault("host copy", self._process.name)

    def discard(self, key: StoreKey) -> None:
        self._process.port_call()
        self.copies.pop(key, None)

    def poll(self) -> list[Copied]:
        done, self._done = self._done, []
        return done

    def close(self) -> None: ...
