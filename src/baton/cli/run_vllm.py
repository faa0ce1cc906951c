"""Becomes an engine of vLLM with Baton's connector.

The engine replaces this process, so it gets the signals that were meant for it and ends with its
parent. vLLM's own processes end with the engine (`vllm/parent.py`).
"""

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from baton.cli.ports import free_port
from baton.cli.vllm_command import serve_arguments
from baton.core.errors import ConfigError
from baton.shell.vllm_settings import VllmSettings

VLLM = "vllm"
PROGRAM = ("-P", "-m", "vllm.entrypoints.cli.main")


def require_vllm() -> None:
    """Raise ConfigError if this Python has no vLLM."""
    if importlib.util.find_spec(VLLM) is None:
        raise ConfigError(
            f"--engine vllm: {sys.executable} has no vLLM; install it, and beside it "
            "baton-llm[vllm] (docs/vllm.md)"
        )


def run_vllm(settings: VllmSettings) -> None:
    """Run the engine, on a port of `host` that is free now. Does not return.

    Raises:
        ConfigError: vLLM is not installed, or the secret cannot be read
    """
    require_vllm()
    words = arguments(settings, port=free_port(settings.host, 0))
    os.execve(sys.executable, [sys.executable, *PROGRAM, *words], environment(settings))


def arguments(settings: VllmSettings, *, port: int) -> Sequence[str]:
    """Return the words behind `vllm`."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    connector = {
        "name": settings.name,
        "url": f"http://{host}:{port}",
        "gateways": settings.gateways,
        "bind": settings.bind,
        "host": settings.host,
        "secret": settings.secret,
        "served_model_name": settings.served_model_name,
        "handoff_timeout_s": settings.handoff_timeout_s,
        "fetch_timeout_s": settings.fetch_timeout_s,
        "mooncake_allow_unauthenticated": settings.mooncake_allow_unauthenticated,
    }
    if settings.fabrics:
        connector["fabric"] = settings.fabrics
    flags = {
        "--served-model-name": settings.served_model_name,
        "--host": settings.host,
        "--port": str(port),
        "--tensor-parallel-size": str(settings.tp),
        "--dtype": settings.dtype,
    }
    if settings.tp > 1:
        flags["--distributed-executor-backend"] = "mp"  # on a node of Ray, too
    if settings.max_model_len is not None:
        flags["--max-model-len"] = str(settings.max_model_len)
    words = serve_arguments(settings.model, flags, role=settings.role, connector=connector)
    return [*words, *settings.arguments]


def environment(settings: VllmSettings) -> dict[str, str]:
    """Return the environment of the engine. Raises ConfigError if the secret cannot be read."""
    from baton.adapters.secret import load_secret

    cores = "|".join(",".join(map(str, rank)) for rank in settings.cores)
    ours = {
        "VLLM_CPU_OMP_THREADS_BIND": cores or "nobind",
        "OMP_NUM_THREADS": str(settings.threads),
    }
    found = {**ours, **os.environ}
    if settings.secret is not None:
        found["VLLM_API_KEY"] = load_secret(Path(settings.secret)).engine_key
    return found
