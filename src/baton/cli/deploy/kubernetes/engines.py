"""The engines that can be deployed: what a worker's container runs."""

from typing import Protocol

from baton import __version__
from baton.cli.deploy.kubernetes.baton_engine import BatonEngine
from baton.cli.deploy.kubernetes.scaling import ScaledBy
from baton.cli.deploy.kubernetes.vllm_engine import VllmEngine
from baton.cli.deploy.settings import DeploySettings, WorkerGroup


class DeployedEngine(Protocol):
    """What manifests of workers ask an engine."""

    @property
    def port(self) -> int:
        """Port on which the container answers probes."""

    @property
    def ready_path(self) -> str:
        """Path that is answered with 200 when requests may come."""

    def scaled_by(self, group: WorkerGroup) -> ScaledBy:
        """Return the metric by which an autoscaler changes the number of these workers."""

    def require(self, settings: DeploySettings) -> None:
        """Raise ConfigError for settings that this engine does not serve."""

    def fetches(self, model: str) -> bool:
        """Whether the model must be fetched before the container starts."""

    def command(self, settings: DeploySettings, group: WorkerGroup, *, leader: bool) -> list[str]:
        """Return the command line of a worker's container; `leader`: of its first pod."""


ENGINES: dict[str, DeployedEngine] = {"baton": BatonEngine(), "vllm": VllmEngine()}


def engine_of(settings: DeploySettings) -> DeployedEngine:
    """Return the engine. Raises ConfigError for settings that it does not serve."""
    engine = ENGINES[settings.engine]
    engine.require(settings)
    return engine


def image_of(settings: DeploySettings) -> str:
    """Return the image of all containers."""
    return settings.image or f"baton:{__version__}"
