"""The part of NIXL's Python API that Baton uses,
typed, without its status strings and serialisers."""

import contextlib
import importlib
import logging
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from baton.adapters.agent_reads import PartState
from baton.adapters.reads import Ranges, Region
from baton.core.errors import ConfigError, FabricError
from baton.core.memory.kinds import CudaMemory, HostRam, MemoryKind

PACKAGES = ("nixl_cu12", "nixl_cu13", "nixl")  # the first that is installed; all have the same API
_ERRORS = (
    "nixlBackendError",
    "nixlCancelledError",
    "nixlInvalidParamError",
    "nixlMismatchError",
    "nixlNotAllowedError",
    "nixlNotFoundError",
    "nixlNotPostedError",
    "nixlNotSupportedError",
    "nixlRemoteDisconnectError",
    "nixlRepostActiveError",
    "nixlUnknownError",
)
# NIXL's names of memory; its descriptors also have a device id, which is 0 in host memory
SEGMENTS: Mapping[type[MemoryKind], str] = MappingProxyType({HostRam: "DRAM", CudaMemory: "VRAM"})
UCX_PARAMS: Mapping[str, str] = MappingProxyType(
    # A failing request fails its endpoint and is reported; otherwise UCX could leave it hanging.
    {
        "ucx_error_handling_mode": "peer",
        "num_workers": "1",
        # Without NVLink UCX does not read through CUDA IPC by itself but over TCP: 300 times
        # slower, and a reader that vanishes can then abort its source.
        "engine_config": "CUDA_IPC_ENABLE_GET_ZCOPY=on",
    }
)


def load_nixl() -> Any:
    """Import NIXL, which takes a quarter of a second.

    Raises:
        ConfigError: it is not installed
    """
    for package in PACKAGES:
        try:
            module = importlib.import_module(package)
        except ImportError:
            continue
        # NIXL writes INFO lines to stdout by default
        logging.getLogger("nixl").setLevel(logging.WARNING)
        return module
    raise ConfigError(
        "fabric nixl: the package is not installed (or does not load): pip "
        "install 'baton-llm[nixl]'"
    )


class NixlAgent:
    """Implements agent_reads.Agent with one NIXL agent: one backend, no progress thread."""

    def __init__(self, nixl: Any, name: str, *, backend: str, params: Mapping[str, str]) -> None:
        bindings = importlib.import_module(f"{nixl.__name__}._bindings")
        self._errors = tuple(getattr(bindings, error) for error in _ERRORS)
        config = nixl.nixl_agent_config(
            enable_prog_thread=False, enable_listen_thread=False, backends=[]
        )
        try:
            self._agent = nixl.nixl_agent(name, config)
            self._agent.create_backend(backend, dict(params))
        except (*self._errors, RuntimeError) as error:
            raise ConfigError(
                f"fabric nixl: backend {backend} does not start here: {type(error).__name__} "
                f"{error}; see --nixl-backend"
            ) from error
        self._registered: Any = None

    def register(self, regions: Sequence[Region]) -> bytes:
        """Register memory as source and target; returns this agent's metadata."""
        try:
            if regions:
                segment, _ = _place(regions[0].memory)
                self._registered = self._agent.register_memory(
                    [(r.address, r.nbytes, _place(r.memory)[1], "") for r in regions], segment
                )
            return bytes(self._agent.get_agent_metadata())
        except self._errors as error:
            raise ConfigError(
                f"fabric nixl: {regions[0].memory if regions else 'nothing'} cannot be "
                f"registered: {type(error).__name__} {error}"
            ) from error

    def add(self, metadata: bytes) -> str:
        """Load a peer's metadata and start to connect; returns the name in it."""
        try:
            name = self._agent.add_remote_agent(metadata)
            self._agent.make_connection(name)
        except self._errors as error:
            raise FabricError(
                f"nixl does not take the peer's metadata: {type(error).__name__} {error}"
            ) from error
        return name.decode() if isinstance(name, bytes) else str(name)

    def remove(self, name: str) -> None:
        """Close the endpoint to a peer by force and forget it. An unknown name is ignored."""
        with contextlib.suppress(*self._errors):  # NIXL forgets dead peers by itself
            self._agent.remove_remote_agent(name)

    def post(self, name: str, ranges: Ranges) -> "NixlPart":
        """Start a read; on one host the bytes have often landed when this returns.

        Raises:
            FabricError: the read is refused, and nothing was submitted
        """
        agent = self._agent
        target = _descriptors(ranges.target, ranges.nbytes, ranges.target_memory)
        source = _descriptors(ranges.source, ranges.nbytes, ranges.source_memory)
        try:
            handle = agent.initialize_xfer(
                "READ", agent.get_xfer_descs(*target), agent.get_xfer_descs(*source), name
            )
        except self._errors as error:
            raise FabricError(f"nixl refuses the read: {type(error).__name__} {error}") from error
        return NixlPart(agent, handle, self._errors)

    def progress(self) -> None:
        """Let UCX make progress with peers' reads from us, and with connections."""
        self._agent.get_new_notifs()

    def close(self) -> None:
        """Delete the agent. No part of it may be in use any more."""
        with contextlib.suppress(*self._errors):  # deleting the agent also deregisters the memory
            if self._registered is not None:
                self._agent.deregister_memory(self._registered)
        self._registered = None
        del self._agent


class NixlPart:
    """Implements agent_reads.Part: one posted transfer."""

    def __init__(self, agent: Any, handle: Any, errors: tuple[type[Exception], ...]) -> None:
        self._agent, self._handle, self._errors = agent, handle, errors
        self.why = ""
        self.state = PartState.MOVING
        self._follow(agent.transfer)

    def look(self) -> PartState:
        """Ask NIXL for the state, which also lets UCX make progress."""
        if self.state is PartState.MOVING:
            self._follow(self._agent.check_xfer_state)
        return self.state

    def release(self) -> bool:
        """Release the handle; returns False if NIXL does not allow it yet."""
        try:
            self._handle.release()
        except self._errors:
            return False
        return True

    def _follow(self, call: Any) -> None:
        try:
            said = call(self._handle)
        except self._errors as error:
            self.state, self.why = PartState.BROKEN, f"{type(error).__name__} {error}"
            return
        self.state = {"DONE": PartState.DONE, "PROC": PartState.MOVING}.get(said, PartState.BROKEN)
        self.why = "" if self.state is not PartState.BROKEN else "nixl reports an error"


def _place(memory: MemoryKind) -> tuple[str, int]:
    """Return NIXL's name of a memory and the device id in it."""
    return SEGMENTS[type(memory)], memory.device if isinstance(memory, CudaMemory) else 0


def _descriptors(
    address: NDArray[np.int64], nbytes: NDArray[np.int64], memory: MemoryKind
) -> tuple[NDArray[np.uint64], str]:
    """Return the arguments of get_xfer_descs: uint64 [n, 3] and NIXL's name of the memory."""
    segment, device = _place(memory)
    rows = np.stack((address, nbytes, np.full_like(nbytes, device)), axis=1)
    return rows.astype(np.uint64), segment
