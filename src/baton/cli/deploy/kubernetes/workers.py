"""The workers of a role: a Deployment, or a LeaderWorkerSet if each of them is several pods."""

from math import ceil

from baton.cli.deploy.kubernetes import layout
from baton.cli.deploy.kubernetes.api import (
    AutoscalerSpec,
    Deployment,
    DeploymentSpec,
    HorizontalPodAutoscaler,
    LabelSelector,
    LeaderWorkerSet,
    LeaderWorkerSetSpec,
    LeaderWorkerTemplate,
    MetricName,
    MetricSpec,
    MetricTarget,
    ObjectMetric,
    ObjectReference,
    PodTemplate,
    Resources,
)
from baton.cli.deploy.kubernetes.engines import engine_of
from baton.cli.deploy.kubernetes.folders import worker_folders
from baton.cli.deploy.kubernetes.pods import container, pod
from baton.cli.deploy.settings import DeploySettings, WorkerGroup

END_S = 15  # for a worker to end after SIGTERM


def workers(settings: DeploySettings, group: WorkerGroup) -> Deployment | LeaderWorkerSet:
    """Return the workers of a role. Raises ConfigError for what the engine does not serve."""
    return _sets_of_pods(settings, group) if group.nodes > 1 else _pods(settings, group)


def autoscaler(settings: DeploySettings, group: WorkerGroup) -> HorizontalPodAutoscaler:
    """Return what changes the number of a group's workers, from `count` to `most`."""
    assert group.most is not None
    scaled = workers(settings, group)
    name = f"{settings.name}{_suffix(group)}"
    kind = str(type(scaled).__struct_config__.tag)
    by = engine_of(settings).scaled_by(group)
    metric = ObjectMetric(
        described_object=ObjectReference(api_version="v1", kind="Service", name=settings.name),
        metric=MetricName(
            name=by.metric,
            selector=LabelSelector(match_labels=dict(by.labels)) if by.labels else None,
        ),
        target=MetricTarget(type="AverageValue", average_value=str(by.each)),
    )
    return HorizontalPodAutoscaler(
        metadata=layout.metadata(settings, group.role.value, _suffix(group)),
        spec=AutoscalerSpec(
            scale_target_ref=ObjectReference(api_version=scaled.api_version, kind=kind, name=name),
            min_replicas=group.count,
            max_replicas=group.most,
            metrics=[MetricSpec(type="Object", object=metric)],
        ),
    )


def _suffix(group: WorkerGroup) -> str:
    return f"-{group.role.value}"


def _replicas(group: WorkerGroup) -> int | None:
    """None if an autoscaler decides: applying the manifest again would undo what it decided."""
    return group.count if group.most is None else None


def _pods(settings: DeploySettings, group: WorkerGroup) -> Deployment:
    role = group.role.value
    return Deployment(
        metadata=layout.metadata(settings, role, _suffix(group)),
        spec=DeploymentSpec(
            replicas=_replicas(group),
            selector=LabelSelector(match_labels=layout.labels(settings, role)),
            template=_template(settings, group, leader=True),
        ),
    )


def _sets_of_pods(settings: DeploySettings, group: WorkerGroup) -> LeaderWorkerSet:
    return LeaderWorkerSet(
        metadata=layout.metadata(settings, group.role.value, _suffix(group)),
        spec=LeaderWorkerSetSpec(
            replicas=_replicas(group),
            leader_worker_template=LeaderWorkerTemplate(
                size=group.nodes,
                restart_policy="RecreateGroupOnPodRestart",  # ranks end with their leader
                leader_template=_template(settings, group, leader=True),
                worker_template=_template(settings, group, leader=False),
            ),
        ),
    )


def _template(settings: DeploySettings, group: WorkerGroup, *, leader: bool) -> PodTemplate:
    """Return a worker's pod.

    It goes on as before while a gateway that ends at the same time drains, as all of them do when
    the service is deleted: requests that wait there still need a worker. Then it drains itself.
    """
    engine, folders = engine_of(settings), worker_folders(settings)
    main = container(
        settings,
        "worker",
        engine.command(settings, group, leader=leader),
        folders=folders,
        ports={layout.HEALTH: engine.port},
        ready_path=engine.ready_path,
        resources=_resources(settings),
        wait_s=settings.drain_s,
    )
    return pod(
        settings,
        group.role.value,
        main,
        folders=folders,
        fetches=engine.fetches(settings.model),
        stop_s=settings.drain_s + ceil(settings.shutdown_timeout_s) + END_S,
    )


def _resources(settings: DeploySettings) -> Resources:
    """Return what each pod gets. A limit of cores would stop threads in the middle of a step."""
    memory = {"memory": quantity(settings.memory)}
    gpus = {"nvidia.com/gpu": str(settings.gpus)} if settings.gpus else {}
    return Resources(requests={"cpu": str(settings.cpu)} | memory | gpus, limits=memory | gpus)


def quantity(nbytes: int) -> str:
    """Return bytes as Kubernetes writes them, in the largest unit that leaves no rest."""
    units = ((30, "Gi"), (20, "Mi"), (10, "Ki"))
    for shift, unit in units:
        if nbytes % (1 << shift) == 0:
            return f"{nbytes >> shift}{unit}"
    return str(nbytes)
