"""Checks, without torch and within a second, whether workers can start.

The workers check again; they also check what depends on the model's family.
"""

from collections.abc import Sequence
from math import prod
from pathlib import Path

from baton.adapters.credentials import load_credentials
from baton.adapters.directory import is_named
from baton.adapters.fabrics import require_fabric
from baton.adapters.memory import available_bytes
from baton.adapters.tcp_door import require_loopback_or_key
from baton.adapters.zmq_control import require_secret
from baton.adapters.zmq_events import EventSockets
from baton.cli.sizes import show_size
from baton.core.errors import ConfigError
from baton.engine.checkpoint import Checkpoint
from baton.shell.settings import Role, WorkerSettings

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}  # bytes of a weight, by the served dtype
# stored dtypes that are converted to the served dtype, as quantised weights are; others keep theirs
CONVERTED = {"F64", "F32", "F16", "BF16"}


def require_startable(workers: Sequence[WorkerSettings]) -> None:
    """Check the checkpoint, the fabrics and secrets asked for, the ports of KV events, and the
    memory of all workers.

    Raises:
        ConfigError: the message names what is wrong, the limit and the remedy
    """
    checkpoint = Checkpoint.open(Path(workers[0].model))
    for name in sorted({w.fabrics[0] for w in workers if len(w.fabrics) == 1}):
        require_fabric(name)
    for secret, members in {(w.secret, w.members) for w in workers}:
        load_credentials(secret, members)
    for worker in workers:
        if worker.secret is None:
            _require_loopback(worker)
        if worker.kv_events.on and worker.own_rank == 0:
            EventSockets(worker.kv_events).close()
    require_room(workers, weights=_weights(checkpoint, workers), available=available_bytes())


def _require_loopback(worker: WorkerSettings) -> None:
    """Raise ConfigError if a worker without a secret has to do with other machines."""
    for address in (*worker.gateways, worker.bind):
        if not is_named(address):
            require_secret(address, None)
    if "tcp" in worker.fabrics:
        require_loopback_or_key(worker.fabric_settings.host, b"")


def require_room(
    workers: Sequence[WorkerSettings], *, weights: Sequence[int], available: int
) -> None:
    """Check that pools, weights and host memory of all workers' ranks fit together.

    A worker alone could find enough memory for itself while the others are still loading. Pools
    given in pages are not counted, because the size of a page depends on the model's family.
    Neither is host memory of default size, which is a share of what is left.

    Args:
        weights: bytes of the weights of each worker
        available: free bytes of the machine's memory

    Raises:
        ConfigError: they do not fit; the message names both sizes
    """
    pools = [(w.pool_bytes or 0) * _ranks(w) for w in workers]
    away = [
        (w.host_kv_memory.nbytes or 0) * _ranks(w) if w.role is not Role.PREFILL else 0
        for w in workers
    ]
    wanted = sum(pools) + sum(weights) + sum(away)
    if wanted <= available:
        return
    store, flags = (
        (f", {_sizes(away)} for requests that give way", " or --host-kv-memory")
        if any(away)
        else ("", "")
    )
    raise ConfigError(
        f"{', '.join(w.name for w in workers)} need {show_size(wanted)} of host memory, pools "
        f"of {_sizes(pools)} "
        f"and weights of {_sizes(weights)}{store}, but only {show_size(available)} are "
        f"available; lower --kv-memory{flags}"
    )


def _weights(checkpoint: Checkpoint, workers: Sequence[WorkerSettings]) -> list[int]:
    tensors = checkpoint.tensors.values()
    converted = sum(prod(t.shape) for t in tensors if t.quantised or t.dtype in CONVERTED)
    others = sum(prod(t.shape) for t in tensors if not (t.quantised or t.dtype in CONVERTED))
    own = str(checkpoint.config.get("dtype") or checkpoint.config.get("torch_dtype"))
    whole = [
        others + converted * BYTES.get(own if w.dtype == "auto" else w.dtype, 1) for w in workers
    ]
    return [size * _ranks(w) // (w.tp * w.pp) for size, w in zip(whole, workers, strict=True)]


def _ranks(worker: WorkerSettings) -> int:
    """Return the number of ranks that one command starts on this machine."""
    return 1 + len(worker.others_here)


def _sizes(sizes: Sequence[int]) -> str:
    return " + ".join(map(show_size, sizes))
