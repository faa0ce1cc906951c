"""What computes in the workers of `baton serve`: Baton, or engines of vLLM (docs/vllm.md)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from baton.cli.flags import Given
from baton.cli.processes import rank_cores
from baton.cli.run_vllm import require_vllm
from baton.core.errors import ConfigError
from baton.ports.fabric_settings import FABRICS
from baton.ports.flag import settings_of
from baton.shell.settings import WorkerSettings
from baton.shell.vllm_settings import VllmSettings

if TYPE_CHECKING:
    from baton.cli.serve import ServeSettings

# flags of workers that engines of vLLM get too, or that have a meaning without them
PASSED_ON = frozenset(
    {
        *("served_model_name", "max_model_len", "secret", "log_level", "log_format", "control"),
        *("tp", "prefill_tp", "decode_tp", "dtype", "threads", "local_prefill"),
        *("fabric", "mooncake_allow_unauthenticated", "handoff_timeout", "fetch_timeout"),
        *("role", "prefill", "decode", "gateways", "engine", "vllm_args", "on"),
        *("ray_address", "ray_cpus", "ray_gpus"),
    }
)


class ServedEngine(Protocol):
    """What `baton serve` asks an engine."""

    def require(self, service: "ServeSettings", given: Given) -> None:
        """Raise ConfigError for flags that this engine does not take."""
        ...

    def require_startable(self, workers: Sequence[WorkerSettings]) -> None:
        """Raise ConfigError if these workers cannot start on this machine."""
        ...

    def seats(self, worker: WorkerSettings) -> int:
        """Return the number of processes that Baton starts for a worker."""
        ...

    def process(
        self, worker: WorkerSettings, service: "ServeSettings"
    ) -> WorkerSettings | VllmSettings:
        """Return the settings of a worker's processes."""
        ...


class BatonWorkers:
    """Implements ServedEngine."""

    def require(self, service: "ServeSettings", given: Given) -> None:
        if service.vllm_args:
            raise ConfigError("--vllm-args: they are for --engine vllm; leave one of the two out")

    def require_startable(self, workers: Sequence[WorkerSettings]) -> None:
        from baton.cli.preflight import require_startable

        require_startable(workers)

    def seats(self, worker: WorkerSettings) -> int:
        return worker.tp * worker.pp

    def process(self, worker: WorkerSettings, service: "ServeSettings") -> WorkerSettings:
        return worker


class VllmWorkers:
    """Implements ServedEngine."""

    def require(self, service: "ServeSettings", given: Given) -> None:
        if service.role != "split":
            raise ConfigError(
                f"--role {service.role}: with --engine vllm there are prefill and decode workers; "
                "leave the flag out"
            )
        for setting in (*settings_of(WorkerSettings), *settings_of(type(service))):
            said = given.get(setting.key)
            if setting.key not in PASSED_ON and said not in (None, setting.default):
                raise ConfigError(
                    f"{setting.name}: engines of vLLM do not take it; leave it out, or give vLLM's "
                    "own flag with --vllm-args"
                )
        if service.on == "machine":
            require_vllm()

    def require_startable(self, workers: Sequence[WorkerSettings]) -> None:
        """vLLM itself checks them."""

    def seats(self, worker: WorkerSettings) -> int:
        return 1

    def process(self, worker: WorkerSettings, service: "ServeSettings") -> VllmSettings:
        fabric = worker.fabric_settings
        return VllmSettings(
            name=worker.name,
            role=worker.role,
            model=worker.model,
            served_model_name=worker.served_model_name,
            gateways=worker.gateways,
            host=fabric.host,
            bind=worker.bind,
            secret=worker.secret,
            tp=worker.tp,
            dtype=worker.dtype,
            max_model_len=worker.max_model_len,
            fabrics=() if worker.fabrics == FABRICS["auto"] else worker.fabrics,
            mooncake_allow_unauthenticated=fabric.mooncake.allow_unauthenticated,
            handoff_timeout_s=worker.handoff_timeout_s,
            fetch_timeout_s=worker.fetch_timeout_s,
            cores=rank_cores(worker) if worker.cores else (),
            threads=worker.threads,
            arguments=service.vllm_args,
        )


ENGINES: dict[str, ServedEngine] = {"baton": BatonWorkers(), "vllm": VllmWorkers()}
