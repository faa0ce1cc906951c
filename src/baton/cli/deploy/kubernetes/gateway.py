"""The gateways: a StatefulSet, as workers name each of them, and two Services.

NAME            ClusterIP: one address for clients, of the gateways that are ready
NAME-gateway    headless: NAME-gateway-0.NAME-gateway is a gateway, ready or not, since it gets
                ready only after workers have found it
"""

from collections.abc import Sequence

from baton.cli.deploy.kubernetes import layout
from baton.cli.deploy.kubernetes.api import (
    ClusterObject,
    ClusterService,
    Container,
    LabelSelector,
    PodTemplate,
    Resources,
    ServicePort,
    ServiceSpec,
    StatefulSet,
    StatefulSetSpec,
)
from baton.cli.deploy.kubernetes.baton_engine import needs_fetching
from baton.cli.deploy.kubernetes.folders import gateway_folders
from baton.cli.deploy.kubernetes.pods import container, pod
from baton.cli.deploy.settings import LEAVE_S, DeploySettings

RESOURCES = Resources(
    requests={"cpu": "1", "memory": "1Gi"},  # it tokenizes and streams; it computes nothing
    limits={"memory": "2Gi"},
)
SUFFIX = f"-{layout.GATEWAY}"


def gateway_manifests(settings: DeploySettings) -> Sequence[ClusterObject]:
    """Return all that gateways need but budgets and policies."""
    return [_clients_service(settings), _workers_service(settings), _gateways(settings)]


def command(settings: DeploySettings) -> list[str]:
    """Return the command line of a gateway."""
    flags = {
        "--served-model-name": layout.literal(settings.served_name),
        "--host": "0.0.0.0",
        "--port": str(layout.HTTP_PORT),
        "--control": f"tcp://0.0.0.0:{layout.CONTROL_PORT}",
        "--secret": layout.SECRET_FILE,
        "--shutdown-timeout": f"{settings.shutdown_timeout_s:g}",
        "--log-format": "json",
    }
    if settings.api_key_secret is not None:
        flags["--api-key-file"] = layout.API_KEY_FILE
    model = layout.literal(settings.model)
    return ["baton", "gateway", model, *(f"{k}={v}" for k, v in flags.items())]


def _clients_service(settings: DeploySettings) -> ClusterService:
    port = ServicePort(name=layout.HTTP, port=settings.port, target_port=layout.HTTP)
    return ClusterService(
        metadata=layout.metadata(settings, layout.GATEWAY, ""),
        spec=ServiceSpec(
            type="ClusterIP", selector=layout.labels(settings, layout.GATEWAY), ports=[port]
        ),
    )


def _workers_service(settings: DeploySettings) -> ClusterService:
    port = ServicePort(name=layout.CONTROL, port=layout.CONTROL_PORT, target_port=layout.CONTROL)
    return ClusterService(
        metadata=layout.metadata(settings, layout.GATEWAY, SUFFIX),
        spec=ServiceSpec(
            type="ClusterIP",
            cluster_ip="None",
            publish_not_ready_addresses=True,
            selector=layout.labels(settings, layout.GATEWAY),
            ports=[port],
        ),
    )


def _gateways(settings: DeploySettings) -> StatefulSet:
    return StatefulSet(
        metadata=layout.metadata(settings, layout.GATEWAY, SUFFIX),
        spec=StatefulSetSpec(
            service_name=settings.name + SUFFIX,
            replicas=settings.gateways,
            pod_management_policy="Parallel",
            selector=LabelSelector(match_labels=layout.labels(settings, layout.GATEWAY)),
            template=_template(settings),
        ),
    )


def _template(settings: DeploySettings) -> PodTemplate:
    return pod(
        settings,
        layout.GATEWAY,
        _container(settings),
        folders=gateway_folders(settings),
        fetches=needs_fetching(settings.model),
        stop_s=settings.drain_s,
    )


def _container(settings: DeploySettings) -> Container:
    return container(
        settings,
        layout.GATEWAY,
        command(settings),
        folders=gateway_folders(settings),
        ports={layout.HTTP: layout.HTTP_PORT, layout.CONTROL: layout.CONTROL_PORT},
        ready_path="/ready",
        resources=RESOURCES,
        wait_s=LEAVE_S,
    )
