"""What the pods of gateways and workers have in common: user, folders, variables, probes, end."""

from collections.abc import Mapping, Sequence

from baton.cli.deploy.kubernetes import layout
from baton.cli.deploy.kubernetes.api import (
    Container,
    ContainerPort,
    ContainerSecurity,
    DroppedCapabilities,
    ExecAction,
    FieldRef,
    HealthProbe,
    HttpGet,
    Lifecycle,
    LifecycleHandler,
    Metadata,
    PodSecurity,
    PodSpec,
    PodTemplate,
    Resources,
    SeccompProfile,
    SecretKeyRef,
    ValueSource,
    Variable,
)
from baton.cli.deploy.kubernetes.engines import image_of
from baton.cli.deploy.kubernetes.folders import Folder
from baton.cli.deploy.settings import GRACE_S, DeploySettings

USER = 10001  # any that is not root; the image gives none of them a right that others lack
START_S, LOOK_S, ANSWER_S = 1800, 10, 5  # a large model loads for long


def pod(
    settings: DeploySettings,
    component: str,
    main: Container,
    *,
    folders: Sequence[Folder],
    fetches: bool,
    stop_s: int,
) -> PodTemplate:
    """Return the pod of a container.

    Args:
        component: for the labels
        main: its container
        folders: those that `main` mounts
        fetches: whether the model is fetched before it starts
        stop_s: seconds that `main.lifecycle` and the container's own end may take
    """
    return PodTemplate(
        metadata=Metadata(labels=layout.labels(settings, component)),
        spec=PodSpec(
            # Of a Service named `baton` Kubernetes would make a variable BATON_PORT.
            enable_service_links=False,
            automount_service_account_token=False,
            termination_grace_period_seconds=stop_s + GRACE_S,
            security_context=PodSecurity(
                run_as_non_root=True,
                run_as_user=USER,
                run_as_group=USER,
                fs_group=USER,
                seccomp_profile=SeccompProfile(type="RuntimeDefault"),
            ),
            init_containers=[_fetching(settings, main)] if fetches else None,
            containers=[main],
            volumes=[folder.volume for folder in folders],
        ),
    )


def _fetching(settings: DeploySettings, main: Container) -> Container:
    """Return the container that fetches the model into the pod's cache."""
    return Container(
        name="model",
        image=main.image,
        command=["baton"],
        args=["models", "pull", layout.literal(settings.model)],
        env=main.env,
        resources=main.resources,
        security_context=main.security_context,
        volume_mounts=main.volume_mounts,
    )


def container(
    settings: DeploySettings,
    name: str,
    command: Sequence[str],
    *,
    folders: Sequence[Folder],
    ports: Mapping[str, int],
    ready_path: str,
    resources: Resources,
    wait_s: int,
) -> Container:
    """Return a container.

    Args:
        name: of the container
        command: its command line
        folders: what it may read and write
        ports: by name; the first answers probes
        ready_path: path that is answered with 200 when requests may come
        resources: what it needs
        wait_s: seconds from the moment its pod ends until it gets SIGTERM
    """
    program, *args = command
    probed = next(iter(ports))
    waiting = ExecAction(command=["sleep", str(wait_s)])
    return Container(
        name=name,
        image=image_of(settings),
        command=[program],
        args=args,
        env=variables(settings),
        ports=[ContainerPort(name=name, container_port=port) for name, port in ports.items()],
        startup_probe=_probe("/health", probed, failures=START_S // LOOK_S),
        liveness_probe=_probe("/health", probed, failures=6),
        readiness_probe=_probe(ready_path, probed, failures=2),
        lifecycle=Lifecycle(pre_stop=LifecycleHandler(exec=waiting)),
        resources=resources,
        security_context=ContainerSecurity(
            allow_privilege_escalation=False,
            read_only_root_filesystem=True,
            capabilities=DroppedCapabilities(drop=["ALL"]),
        ),
        volume_mounts=[folder.mount for folder in folders],
    )


def _probe(path: str, port: str, *, failures: int) -> HealthProbe:
    return HealthProbe(
        http_get=HttpGet(path=path, port=port),
        period_seconds=LOOK_S,
        timeout_seconds=ANSWER_S,
        failure_threshold=failures,
    )


def variables(settings: DeploySettings) -> list[Variable]:
    """Return the variables of every container. Those of --env may use the pod's own."""
    found = [
        _of_field("POD_IP", "status.podIP"),
        _of_field("POD_NAME", "metadata.name"),
        Variable(name="HOME", value=layout.HOME),
    ]
    if settings.hub_token_secret is not None:
        source = SecretKeyRef(name=settings.hub_token_secret, key="token")
        found.append(Variable(name="HF_TOKEN", value_from=ValueSource(secret_key_ref=source)))
    return found + [Variable(name=name, value=value) for name, value in settings.env.items()]


def _of_field(name: str, path: str) -> Variable:
    return Variable(name=name, value_from=ValueSource(field_ref=FieldRef(field_path=path)))
