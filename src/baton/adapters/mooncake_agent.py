"""The part of Mooncake's Python API that Baton uses, typed, and with reliable completion.

`transfer_check_status` (0.3.13) looks only at the first entry of a batch, and frees the batch when
that entry is done; the call for a whole batch spins until it is over. So every range is a batch of
its
own: its status is exact, and no call waits. This costs no more: 45 us a range over loopback either
    way.
"""

import importlib
import socket
from collections.abc import Sequence
from typing import Any

import msgspec

from baton.adapters.agent_fabric import agent_name
from baton.adapters.agent_reads import PartState
from baton.adapters.reads import Ranges, Region
from baton.adapters.shm_door import hung_up
from baton.adapters.tcp_door import dial, require_loopback_or_key
from baton.adapters.tcp_source import TcpSource
from baton.adapters.unpack import unpack
from baton.core.errors import ConfigError, FabricError
from baton.core.ids import Boot
from baton.core.memory.kinds import CudaMemory, MemoryKind
from baton.ports.fabric_settings import FabricSettings

REFUSED = (0, -1, (1 << 64) - 1)  # values that mean "no batch"
MOVING, THERE, TIMED_OUT = 0, 1, -2


def location(memory: MemoryKind) -> str:
    """Return Mooncake's name of a memory; "*" lets it find the NUMA node of host memory itself."""
    return str(memory) if isinstance(memory, CudaMemory) else "*"


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The addresses of a peer's engine and of its TCP socket."""

    host: str
    port: int
    door: int
    boot: Boot
    rank: int


def load_mooncake() -> Any:
    """Import the engine.

    Raises:
        ConfigError: it is not installed, or a system library is missing
    """
    try:
        return importlib.import_module("mooncake.engine")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "fabric mooncake: not installed: pip install 'baton-llm[mooncake]'"
        ) from error
    except ImportError as error:
        remedy = (
            "install libibverbs1 (Debian, Ubuntu) or libibverbs (Fedora)"
            if "ibverbs" in str(error)
            else "see the error"
        )
        raise ConfigError(f"fabric mooncake: does not load: {error}; {remedy}") from error


class MooncakeAgent:
    """Implements agent_reads.Agent with one engine.

    With `door` it can be read by peers that prove to know `key`.
    """

    def __init__(
        self, module: Any, settings: FabricSettings, *, key: bytes, door: tuple[Boot, int] | None
    ) -> None:
        require_loopback_or_key(settings.host, key)
        self._host, self._key = settings.host, key
        self._door: TcpSource | None = None
        self._lines: dict[str, tuple[str, socket.socket]] = {}
        self._registered: list[int] = []
        self._engine: Any = module.TransferEngine()
        wanted = (
            settings.host,
            "P2PHANDSHAKE",
            settings.mooncake.protocol,
            ",".join(settings.devices),
        )
        if self._engine.initialize(*wanted) != 0:
            raise ConfigError(
                f"fabric mooncake: protocol {settings.mooncake.protocol} does not start on "
                f"{settings.host}"
                f" with devices {list(settings.devices) or 'of its own choice'}"
            )
        if door is not None:
            self._door = TcpSource(settings.host, *door, [], key=key)
        self._who = door

    def register(self, regions: Sequence[Region]) -> bytes:
        """Register memory as source and target; returns our addresses."""
        for region in regions:
            where = location(region.memory)
            if self._engine.register_memory(region.address, region.nbytes, where) != 0:
                raise ConfigError(
                    f"fabric mooncake: {region.nbytes} bytes of {region.memory} cannot be "
                    "registered"
                )
            self._registered.append(region.address)
        if self._door is None or self._who is None:
            return b""
        return msgspec.msgpack.encode(
            Place(self._host, self._engine.get_rpc_port(), self._door.port, *self._who)
        )

    def add(self, metadata: bytes) -> str:
        """Connect to a peer's socket; returns the peer's name."""
        place = unpack(metadata, Place, what="the peer's mooncake metadata")
        line, _, _ = dial((place.host, place.door), place.boot, place.rank, key=self._key)
        line.setblocking(False)
        name = agent_name(place.boot, place.rank)
        self._lines[name] = (f"{place.host}:{place.port}", line)
        return name

    def remove(self, name: str) -> None:
        """Close the connection to a peer's socket."""
        if name in self._lines:
            self._lines.pop(name)[1].close()

    def post(self, name: str, ranges: Ranges) -> "MooncakePart":
        """Start a read."""
        segment, line = self._lines[name]
        if hung_up(line):
            raise FabricError("the peer is gone")
        return MooncakePart(self._engine, segment, line, ranges)

    def progress(self) -> None:
        """Do nothing: the engine has threads of its own."""

    def close(self) -> None:
        """Delete the engine; takes up to half a second."""
        for _, line in self._lines.values():
            line.close()
        self._lines.clear()
        if self._door is not None:
            self._door.close()
        if self._engine is not None:
            for address in self._registered:
                self._engine.unregister_memory(address)
        self._registered.clear()
        self._engine = None


class MooncakePart:
    """Implements agent_reads.Part: some ranges, each a batch of its own."""

    def __init__(self, engine: Any, segment: str, line: socket.socket, ranges: Ranges) -> None:
        self._engine, self._line = engine, line
        self.why, self.state = "", PartState.MOVING
        self._moving: list[int] = []
        rows = zip(
            ranges.target.tolist(), ranges.source.tolist(), ranges.nbytes.tolist(), strict=True
        )
        for target, source, nbytes in rows:
            batch = engine.batch_transfer_async_read(segment, [target], [source], [nbytes])
            if batch in REFUSED:
                self._break("mooncake refuses the read")
                return
            self._moving.append(batch)

    def look(self) -> PartState:
        """Ask for the status of every range that is not done."""
        self._ask()
        if self.state is PartState.MOVING and not self._moving:
            if hung_up(self._line):
                self._break("the peer is gone")
            else:
                self.state = PartState.DONE
        return self.state

    def release(self) -> bool:
        """Return whether no range is under way; the engine cannot cancel."""
        self._ask()
        return not self._moving

    def _ask(self) -> None:
        still = []
        for batch in self._moving:
            status = self._engine.transfer_check_status(batch)
            if status in (MOVING, TIMED_OUT):  # not over: its bytes may still land
                still.append(batch)
            if status not in (MOVING, THERE):
                self._break(f"mooncake reports status {status}")
        self._moving = still

    def _break(self, why: str) -> None:
        self.state = PartState.BROKEN
        self.why = self.why or why
