"""The part of Kubernetes' API that the manifests use, field by field.

Names are those of the API in Python's spelling. None means that the field is left out.
"""

from typing import Any

import msgspec

Labels = dict[str, str]


class ApiStruct(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of some object."""


class Metadata(ApiStruct, frozen=True, kw_only=True):
    """Name and labels of an object or a pod template."""

    name: str | None = None
    namespace: str | None = None
    labels: Labels | None = None


class LabelSelector(ApiStruct, frozen=True, kw_only=True):
    """All pods with these labels."""

    match_labels: Labels


# ---- containers and pods ------------------------------------------------------------------------


class ContainerPort(ApiStruct, frozen=True, kw_only=True):
    """A port, by a name that probes and Services use."""

    name: str
    container_port: int


class FieldRef(ApiStruct, frozen=True, kw_only=True):
    """A field of the pod itself, e.g. status.podIP."""

    field_path: str


class SecretKeyRef(ApiStruct, frozen=True, kw_only=True):
    """A value of a Secret."""

    name: str
    key: str


class ValueSource(ApiStruct, frozen=True, kw_only=True):
    """Where a variable's value comes from; one of them."""

    field_ref: FieldRef | None = None
    secret_key_ref: SecretKeyRef | None = None


class Variable(ApiStruct, frozen=True, kw_only=True):
    """An environment variable, of a value or a source."""

    name: str
    value: str | None = None
    value_from: ValueSource | None = None


class HttpGet(ApiStruct, frozen=True, kw_only=True):
    """A request that must be answered with 200."""

    path: str
    port: str


class HealthProbe(ApiStruct, frozen=True, kw_only=True):
    """A request, repeated. It has failed after `failure_threshold` answers in a row that are not
    200."""

    http_get: HttpGet
    period_seconds: int
    timeout_seconds: int
    failure_threshold: int


class ExecAction(ApiStruct, frozen=True, kw_only=True):
    """A command in the container."""

    command: list[str]


class LifecycleHandler(ApiStruct, frozen=True, kw_only=True):
    """What is done at a moment of a container's life."""

    exec: ExecAction


class Lifecycle(ApiStruct, frozen=True, kw_only=True):
    """`pre_stop` runs to its end before the container gets SIGTERM."""

    pre_stop: LifecycleHandler


class Resources(ApiStruct, frozen=True, kw_only=True):
    """Quantities by the name of the resource."""

    requests: dict[str, str]
    limits: dict[str, str]


class VolumeMount(ApiStruct, frozen=True, kw_only=True):
    """Where a volume of the pod appears in the container."""

    name: str
    mount_path: str
    read_only: bool | None = None


class DroppedCapabilities(ApiStruct, frozen=True, kw_only=True):
    """Capabilities that the container does without."""

    drop: list[str]


class ContainerSecurity(ApiStruct, frozen=True, kw_only=True):
    """What the container may not do."""

    allow_privilege_escalation: bool
    read_only_root_filesystem: bool
    capabilities: DroppedCapabilities


class Container(ApiStruct, frozen=True, kw_only=True):
    """One container."""

    name: str
    image: str
    command: list[str]
    args: list[str]
    env: list[Variable]
    ports: list[ContainerPort] | None = None
    startup_probe: HealthProbe | None = None
    liveness_probe: HealthProbe | None = None
    readiness_probe: HealthProbe | None = None
    lifecycle: Lifecycle | None = None
    resources: Resources
    security_context: ContainerSecurity
    volume_mounts: list[VolumeMount]


class SeccompProfile(ApiStruct, frozen=True, kw_only=True):
    """Which system calls are allowed."""

    type: str


class PodSecurity(ApiStruct, frozen=True, kw_only=True):
    """The user that containers run as. Files of volumes belong to the group `fs_group`."""

    run_as_non_root: bool
    run_as_user: int
    run_as_group: int
    fs_group: int
    seccomp_profile: SeccompProfile


class SecretSource(ApiStruct, frozen=True, kw_only=True):
    """Files of a Secret; `default_mode` are their permission bits."""

    secret_name: str
    default_mode: int


class ClaimSource(ApiStruct, frozen=True, kw_only=True):
    """What a PersistentVolumeClaim has got."""

    claim_name: str
    read_only: bool


class Volume(ApiStruct, frozen=True, kw_only=True):
    """A volume of one of these sources. An emptyDir ends with its pod."""

    name: str
    empty_dir: dict[str, str] | None = None
    secret: SecretSource | None = None
    persistent_volume_claim: ClaimSource | None = None


class PodSpec(ApiStruct, frozen=True, kw_only=True):
    """A pod. Kubernetes kills it `termination_grace_period_seconds` after it was told to end."""

    enable_service_links: bool
    automount_service_account_token: bool
    termination_grace_period_seconds: int
    security_context: PodSecurity
    init_containers: list[Container] | None = None
    containers: list[Container]
    volumes: list[Volume]


class PodTemplate(ApiStruct, frozen=True, kw_only=True):
    """What pods are made from."""

    metadata: Metadata
    spec: PodSpec


# ---- objects ------------------------------------------------------------------------------------


class ClusterObject(ApiStruct, frozen=True, kw_only=True, tag_field="kind"):
    """An object of the cluster; its kind is the tag of the struct."""

    metadata: Metadata


class DeploymentSpec(ApiStruct, frozen=True, kw_only=True):
    """Pods without an identity."""

    replicas: int | None
    selector: LabelSelector
    template: PodTemplate


class Deployment(ClusterObject, frozen=True, kw_only=True, tag="Deployment"):
    """Pods without an identity."""

    api_version: str = "apps/v1"
    spec: DeploymentSpec


class StatefulSetSpec(ApiStruct, frozen=True, kw_only=True):
    """Pods with names of their own, which the headless Service `service_name` resolves."""

    service_name: str
    replicas: int
    pod_management_policy: str
    selector: LabelSelector
    template: PodTemplate


class StatefulSet(ClusterObject, frozen=True, kw_only=True, tag="StatefulSet"):
    """Pods with names of their own."""

    api_version: str = "apps/v1"
    spec: StatefulSetSpec


class LeaderWorkerTemplate(ApiStruct, frozen=True, kw_only=True):
    """A group of `size` pods, the first of which is its leader."""

    size: int
    restart_policy: str
    leader_template: PodTemplate
    worker_template: PodTemplate


class LeaderWorkerSetSpec(ApiStruct, frozen=True, kw_only=True):
    """Groups of pods that live and end together."""

    replicas: int | None
    leader_worker_template: LeaderWorkerTemplate


class LeaderWorkerSet(ClusterObject, frozen=True, kw_only=True, tag="LeaderWorkerSet"):
    """Groups of pods; the cluster needs the controller of the same name."""

    api_version: str = "leaderworkerset.x-k8s.io/v1"
    spec: LeaderWorkerSetSpec


class ServicePort(ApiStruct, frozen=True, kw_only=True):
    """A port of a Service, and the port of the pods that it leads to."""

    name: str
    port: int
    target_port: str


class ServiceSpec(ApiStruct, frozen=True, kw_only=True):
    """A name for the pods with these labels. With `clusterIP: None` it resolves to the pods."""

    type: str
    cluster_ip: str | None = msgspec.field(default=None, name="clusterIP")
    publish_not_ready_addresses: bool | None = None
    selector: Labels
    ports: list[ServicePort]


class ClusterService(ClusterObject, frozen=True, kw_only=True, tag="Service"):
    """A name for pods."""

    api_version: str = "v1"
    spec: ServiceSpec


class DisruptionBudgetSpec(ApiStruct, frozen=True, kw_only=True):
    """How many pods may be evicted at once."""

    max_unavailable: int
    selector: LabelSelector


class PodDisruptionBudget(ClusterObject, frozen=True, kw_only=True, tag="PodDisruptionBudget"):
    """How many pods may be evicted at once, e.g. when a machine is emptied."""

    api_version: str = "policy/v1"
    spec: DisruptionBudgetSpec


class ObjectReference(ApiStruct, frozen=True, kw_only=True):
    """Another object of the namespace."""

    api_version: str
    kind: str
    name: str


class MetricName(ApiStruct, frozen=True, kw_only=True):
    """A metric of the cluster's custom metrics API; selector: which of its series counts."""

    name: str
    selector: LabelSelector | None = None


class MetricTarget(ApiStruct, frozen=True, kw_only=True):
    """The value to be held; with AverageValue, for each replica."""

    type: str
    average_value: str


class ObjectMetric(ApiStruct, frozen=True, kw_only=True):
    """A metric of one object."""

    described_object: ObjectReference
    metric: MetricName
    target: MetricTarget


class MetricSpec(ApiStruct, frozen=True, kw_only=True):
    """A metric to scale by."""

    type: str
    object: ObjectMetric


class AutoscalerSpec(ApiStruct, frozen=True, kw_only=True):
    """What is scaled, between which numbers, by what."""

    scale_target_ref: ObjectReference
    min_replicas: int
    max_replicas: int
    metrics: list[MetricSpec]


class HorizontalPodAutoscaler(
    ClusterObject, frozen=True, kw_only=True, tag="HorizontalPodAutoscaler"
):
    """Changes the number of replicas by a metric."""

    api_version: str = "autoscaling/v2"
    spec: AutoscalerSpec


class PolicyPeer(ApiStruct, frozen=True, kw_only=True):
    """Pods of the namespace."""

    pod_selector: LabelSelector


class PolicyPort(ApiStruct, frozen=True, kw_only=True):
    """A port of the pods, by its name."""

    port: str


class IngressRule(ApiStruct, frozen=True, kw_only=True):
    """Connections that are let in; None = from anywhere, to any port."""

    from_: list[PolicyPeer] | None = msgspec.field(default=None, name="from")
    ports: list[PolicyPort] | None = None


class NetworkPolicySpec(ApiStruct, frozen=True, kw_only=True):
    """Who may connect to these pods: what no rule lets in is dropped."""

    pod_selector: LabelSelector
    policy_types: list[str]
    ingress: list[IngressRule]


class NetworkPolicy(ClusterObject, frozen=True, kw_only=True, tag="NetworkPolicy"):
    """Who may connect to pods."""

    api_version: str = "networking.k8s.io/v1"
    spec: NetworkPolicySpec


def plain(value: Any) -> Any:
    """Return an object as dicts and lists, without fields that are None."""
    match value:
        case msgspec.Struct():
            return plain(msgspec.to_builtins(value))
        case dict():
            return {key: plain(each) for key, each in value.items() if each is not None}
        case list():
            return [plain(each) for each in value]
        case _:
            return value
