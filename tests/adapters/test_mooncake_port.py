"""Why mooncake has to be allowed: its port serves whoever reaches it."""

import ctypes
import os
import socket
import struct

import psutil
import pytest

from baton.core.errors import ConfigError
from baton.ports.fabric_settings import FabricSettings, MooncakeSettings
from baton.shell.settings import WorkerSettings
from baton.vllm.settings import settings_of

WORKER = {
    "model": "/m",
    "served_model_name": "m",
    "name": "worker",
    "gateways": ("tcp://127.0.0.1:7",),
    "bind": "tcp://127.0.0.1:0",
    "threads": 1,
}
GUEST = {"name": "e", "url": "http://127.0.0.1:8000"}
READ = 0  # the engine's opcode
HEADER = struct.Struct("<QQB7x")  # of its requests: size, address, opcode


def test_mooncake_is_refused_until_it_is_allowed_by_name() -> None:
    with pytest.raises(ConfigError, match="--mooncake-allow-unauthenticated"):
        WorkerSettings(**WORKER, fabrics=("mooncake",))
    with pytest.raises(ConfigError, match="mooncake_allow_unauthenticated"):
        settings_of(GUEST | {"fabric": ["nixl", "mooncake"]})
    allowed = FabricSettings(mooncake=MooncakeSettings(allow_unauthenticated=True))
    WorkerSettings(**WORKER, fabrics=("mooncake",), fabric_settings=allowed)
    settings_of(GUEST | {"fabric": ["mooncake"], "mooncake_allow_unauthenticated": True})


def test_nothing_else_needs_to_be_allowed() -> None:
    WorkerSettings(**WORKER)
    assert "mooncake" not in settings_of(GUEST).fabric


def test_the_engine_listens_everywhere_and_serves_a_stranger() -> None:
    """When this fails, the engine has learned to ask: then the flag may go."""
    engine = pytest.importorskip("mooncake.engine", exc_type=ImportError).TransferEngine()
    before = {c.laddr for c in listeners()}
    assert engine.initialize("127.0.0.1", "P2PHANDSHAKE", "tcp", "") == 0
    state = ctypes.create_string_buffer(b"state of a request", 4096)
    assert engine.register_memory(ctypes.addressof(state), 4096) == 0
    try:
        new = [c.laddr for c in listeners() if c.laddr not in before]
        assert {address.ip for address in new} <= {"0.0.0.0", "::"}, new
        (data,) = [a for a in new if a.port != engine.get_rpc_port()]
        with socket.create_connection(("127.0.0.1", data.port), 10) as stranger:
            stranger.settimeout(10)
            stranger.sendall(HEADER.pack(18, ctypes.addressof(state), READ))
            assert stranger.recv(18, socket.MSG_WAITALL) == b"state of a request"
    finally:
        engine.unregister_memory(ctypes.addressof(state))


def listeners() -> list:
    connections = psutil.Process(os.getpid()).net_connections()
    return [c for c in connections if c.status == psutil.CONN_LISTEN]
