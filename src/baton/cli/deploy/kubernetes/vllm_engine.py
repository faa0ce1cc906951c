"""vLLM's engines with Baton's connector: `vllm serve` (docs/vllm.md)."""

from baton.cli.deploy.kubernetes import layout
from baton.cli.deploy.kubernetes.scaling import ScaledBy, waiting
from baton.cli.deploy.settings import TRIAL, DeploySettings, WorkerGroup
from baton.cli.vllm_command import serve_arguments
from baton.core.errors import ConfigError


class VllmEngine:
    """Implements DeployedEngine."""

    port = 8100
    ready_path = "/health"

    def scaled_by(self, group: WorkerGroup) -> ScaledBy:
        return waiting()

    def require(self, settings: DeploySettings) -> None:
        if settings.image is None:
            raise ConfigError(
                "--engine vllm needs --image: one that has vLLM, and beside it baton-llm[vllm]"
            )
        if settings.model == TRIAL or settings.model.lower().endswith(".gguf"):
            raise ConfigError(
                f"MODEL {settings.model}: vLLM gets it from Baton in no form that it reads; give "
                "an id of the Hugging Face Hub, or the folder of a checkpoint"
            )
        for group in settings.groups:
            if group.nodes > 1:
                raise ConfigError(
                    f"--{group.role.value}-nodes {group.nodes}: with --engine vllm a worker is one "
                    "pod; leave the flag out, or give --engine baton"
                )

    def fetches(self, model: str) -> bool:
        return False  # vLLM fetches it itself

    def command(self, settings: DeploySettings, group: WorkerGroup, *, leader: bool) -> list[str]:
        name = layout.literal(settings.served_name)
        connector = {
            "name": layout.POD_NAME,
            "url": f"http://{layout.POD_IP}:{self.port}",
            "gateways": layout.gateway_addresses(settings),
            "bind": f"tcp://{layout.POD_IP}:*",
            "host": layout.POD_IP,
            "secret": layout.SECRET_FILE,
            "served_model_name": name,
        }
        flags = {
            "--served-model-name": name,
            "--port": str(self.port),
            "--tensor-parallel-size": str(group.tp),
        }
        model = layout.literal(settings.model)
        return ["vllm", *serve_arguments(model, flags, role=group.role, connector=connector)]
