"""Baton's own workers: `baton worker`."""

from baton.cli.deploy.kubernetes import layout
from baton.cli.deploy.kubernetes.scaling import ScaledBy, wanted
from baton.cli.deploy.settings import DeploySettings, WorkerGroup

LWS_NODES, LWS_INDEX = "$(LWS_GROUP_SIZE)", "$(LWS_WORKER_INDEX)"  # set in each pod of a group
LWS_LEADER = "$(LWS_LEADER_ADDRESS)"


class BatonEngine:
    """Implements DeployedEngine."""

    port = layout.HEALTH_PORT
    ready_path = "/ready"

    def scaled_by(self, group: WorkerGroup) -> ScaledBy:
        return wanted(group)

    def require(self, settings: DeploySettings) -> None:
        pass

    def fetches(self, model: str) -> bool:
        return needs_fetching(model)

    def command(self, settings: DeploySettings, group: WorkerGroup, *, leader: bool) -> list[str]:
        """The pod's address is given, so that no name must resolve before the worker starts."""
        here = group.tp // group.nodes
        flags = {
            "--role": group.role.value,
            "--name": layout.POD_NAME,
            "--served-model-name": layout.literal(settings.served_name),
            "--secret": layout.SECRET_FILE,
            "--fabric-host": layout.POD_IP,
            "--bind": f"tcp://{layout.POD_IP}:0",
            "--health-host": "0.0.0.0",
            "--health-port": str(self.port),
            "--tp": str(group.tp),
            "--threads": str(settings.cpu // here),
            "--drain-timeout": f"{settings.shutdown_timeout_s:g}",
            "--log-format": "json",
        }
        if group.nodes > 1:
            # The leader's own name need not resolve yet when it starts.
            host = layout.POD_IP if leader else LWS_LEADER
            flags |= {
                "--nnodes": LWS_NODES,
                "--node-rank": LWS_INDEX,
                "--rendezvous": f"{host}:{layout.RENDEZVOUS_PORT}",
            }
        gateways = [f"--gateway={address}" for address in layout.gateway_addresses(settings)]
        model = layout.literal(settings.model)
        return ["baton", "worker", model, *gateways, *(f"{k}={v}" for k, v in flags.items())]


def needs_fetching(model: str) -> bool:
    """Whether Baton finds the model only after `baton models pull`."""
    return not model.startswith("/") or model.lower().endswith(".gguf")
