"""What all manifests of one service agree on: names, labels, ports and paths."""

from baton.cli.deploy.kubernetes.api import Labels, Metadata
from baton.cli.deploy.settings import DeploySettings

GATEWAY = "gateway"
HTTP, CONTROL, HEALTH = "http", "control", "health"  # names of ports
HTTP_PORT, CONTROL_PORT, HEALTH_PORT, RENDEZVOUS_PORT = 8000, 5555, 8081, 29500
SECRET_FOLDER, API_KEY_FOLDER = "/etc/baton/secret", "/etc/baton/api-keys"
SECRET_FILE, API_KEY_FILE = f"{SECRET_FOLDER}/key", f"{API_KEY_FOLDER}/keys"
HOME = "/cache"  # models, kernels
POD_IP, POD_NAME = "$(POD_IP)", "$(POD_NAME)"  # Kubernetes puts the value of the variable there


def labels(settings: DeploySettings, component: str | None = None) -> Labels:
    """Return the labels of a component's pods; None = of all pods of the service."""
    common = {"app.kubernetes.io/name": "baton", "app.kubernetes.io/instance": settings.name}
    return common if component is None else common | {"app.kubernetes.io/component": component}


def metadata(settings: DeploySettings, component: str | None, suffix: str) -> Metadata:
    """Return the metadata of an object; its name is the service's with the suffix."""
    return Metadata(
        name=settings.name + suffix,
        namespace=settings.namespace,
        labels=labels(settings, component),
    )


def gateway_addresses(settings: DeploySettings) -> list[str]:
    """Return the control address of each gateway, by its name in the headless Service."""
    name = f"{settings.name}-{GATEWAY}"
    return [f"tcp://{name}-{i}.{name}:{CONTROL_PORT}" for i in range(settings.gateways)]


def literal(text: str) -> str:
    """Return an argument in which Kubernetes replaces no variable."""
    return text.replace("$(", "$$(")
