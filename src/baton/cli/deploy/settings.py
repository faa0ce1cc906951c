"""The settings of `baton deploy kubernetes`, and what of them cannot be."""

import re
from math import ceil
from typing import Annotated, Literal

import msgspec

from baton.core.errors import ConfigError
from baton.engine.hub import is_id
from baton.ports.flag import (
    ENGINE,
    HTTP,
    ONE_OR_MORE,
    PROCESSES,
    Flag,
    NumberLimits,
    require_limits,
)
from baton.ports.written import pair, size
from baton.shell.settings import DAY_S, PORT, Role

CLUSTER = "Cluster"  # panel of --help
NAME_CHARS = 40  # Kubernetes appends to it: its labels end at 63
NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
OBJECT = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
OBJECT_CHARS = 253
NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAMESPACE_CHARS = 63
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MODELS = "/models"  # where --model-claim is mounted
TRIAL = "smollm2"
GRACE_S = 15  # after the drain, for what is left to be closed
LEAVE_S = 5  # until no Service leads to a pod that ends


class WorkerGroup(msgspec.Struct, frozen=True, kw_only=True):
    """The workers of one role.

    Attributes:
        count: how many there are, at first
        most: how many an autoscaler may make of them; None = none scales them
        tp: ranks of each
        nodes: pods that the ranks of each are divided over
    """

    role: Role
    count: int
    most: int | None
    tp: int
    nodes: int


class DeploySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifests are made of."""

    model: str
    engine: Annotated[
        Literal["baton", "vllm"],
        Flag("What computes: Baton itself, or vLLM with Baton's connector.", ENGINE),
    ] = "baton"
    prefill: Annotated[int, Flag("Number of prefill workers.", PROCESSES, limits=ONE_OR_MORE)] = 1
    decode: Annotated[int, Flag("Number of decode workers.", PROCESSES, limits=ONE_OR_MORE)] = 1
    gateways: Annotated[int, Flag("Number of gateways.", PROCESSES, limits=ONE_OR_MORE)] = 1
    max_prefill: Annotated[
        int | None,
        Flag(
            "Prefill workers that an autoscaler may start while requests wait.",
            PROCESSES,
            default="no autoscaler",
        ),
    ] = None
    max_decode: Annotated[
        int | None, Flag("The same for decode workers.", PROCESSES, default="no autoscaler")
    ] = None
    tp: Annotated[
        int,
        Flag(
            "Ranks that each layer of a worker is divided over.",
            PROCESSES,
            ("--tp", "--tensor-parallel-size", "--tp-size"),
            limits=ONE_OR_MORE,
        ),
    ] = 1
    prefill_tp: Annotated[
        int | None,
        Flag("For prefill workers alone.", PROCESSES, default="--tp", limits=ONE_OR_MORE),
    ] = None
    decode_tp: Annotated[
        int | None, Flag("For decode workers alone.", PROCESSES, default="--tp", limits=ONE_OR_MORE)
    ] = None
    prefill_nodes: Annotated[
        int, Flag("Pods that each prefill worker is divided over.", PROCESSES, limits=ONE_OR_MORE)
    ] = 1
    decode_nodes: Annotated[
        int, Flag("Pods that each decode worker is divided over.", PROCESSES, limits=ONE_OR_MORE)
    ] = 1
    served_model_name: Annotated[
        str | None, Flag("The name that clients use.", HTTP, default="MODEL")
    ] = None
    port: Annotated[int, Flag("Port of the Service that clients use.", HTTP, limits=PORT)] = 8000
    api_key_secret: Annotated[
        str | None,
        Flag("Secret whose value 'keys' has a key of clients on each line.", HTTP, metavar="NAME"),
    ] = None
    shutdown_timeout_s: Annotated[
        float,
        Flag(
            "Seconds that open requests may go on when a gateway is told to end.",
            HTTP,
            limits=NumberLimits(0, DAY_S, "seconds"),
        ),
    ] = 60.0
    name: Annotated[str, Flag("Name of the service; all objects begin with it.", CLUSTER)] = "baton"
    namespace: Annotated[
        str | None, Flag("Namespace of all objects.", CLUSTER, default="that of kubectl")
    ] = None
    image: Annotated[
        str | None, Flag("Image of all containers.", CLUSTER, default="baton: and the version")
    ] = None
    secret_name: Annotated[
        str | None,
        Flag(
            "Secret whose value 'key' is a file made by 'baton secret new'.",
            CLUSTER,
            default="the name, and -key",
            metavar="NAME",
        ),
    ] = None
    hub_token_secret: Annotated[
        str | None,
        Flag("Secret whose value 'token' is one of the Hugging Face Hub.", CLUSTER, metavar="NAME"),
    ] = None
    model_claim: Annotated[
        str | None,
        Flag(
            f"PersistentVolumeClaim with models; it is mounted at {MODELS}.",
            CLUSTER,
            metavar="NAME",
        ),
    ] = None
    cpu: Annotated[
        int, Flag("Cores of each worker's pod; its threads.", CLUSTER, limits=ONE_OR_MORE)
    ] = 4
    memory: Annotated[
        int, Flag("Memory of each worker's pod.", CLUSTER, read=size, default="8GiB")
    ] = 8 << 30
    gpus: Annotated[
        int,
        Flag("GPUs of each worker's pod (nvidia.com/gpu).", CLUSTER, limits=NumberLimits(0)),
    ] = 0
    env: Annotated[
        dict[str, str],
        Flag(
            "Variable of all containers, e.g. BATON_KV_MEMORY=4GiB; may be repeated.",
            CLUSTER,
            ("--env",),
            read=pair,
            repeated=True,
            metavar="KEY=VALUE",
        ),
    ] = {}

    @property
    def groups(self) -> tuple[WorkerGroup, ...]:
        """The workers, by role."""
        return (
            WorkerGroup(
                role=Role.PREFILL,
                count=self.prefill,
                most=self.max_prefill,
                tp=self.prefill_tp or self.tp,
                nodes=self.prefill_nodes,
            ),
            WorkerGroup(
                role=Role.DECODE,
                count=self.decode,
                most=self.max_decode,
                tp=self.decode_tp or self.tp,
                nodes=self.decode_nodes,
            ),
        )

    @property
    def drain_s(self) -> int:
        """Seconds from the moment a gateway is told to end until its last request has ended."""
        return LEAVE_S + ceil(self.shutdown_timeout_s)

    @property
    def key_secret(self) -> str:
        """Name of the Secret with the key of the cluster."""
        return self.secret_name or f"{self.name}-key"

    @property
    def served_name(self) -> str:
        """The name that clients use."""
        return self.served_model_name or self.model

    def __post_init__(self) -> None:
        require_limits(self)
        _require_name("--name", self.name, NAME, NAME_CHARS)
        _require_name("--namespace", self.namespace, NAMESPACE, NAMESPACE_CHARS)
        for flag, name in (
            ("--secret-name", self.secret_name),
            ("--api-key-secret", self.api_key_secret),
            ("--hub-token-secret", self.hub_token_secret),
            ("--model-claim", self.model_claim),
        ):
            _require_name(flag, name, OBJECT, OBJECT_CHARS)
        for variable in self.env:
            if VARIABLE.fullmatch(variable) is None:
                raise ConfigError(
                    f"--env {variable}: a variable has letters, digits and _ only, e.g. "
                    "--env BATON_KV_MEMORY=4GiB"
                )
        for group in self.groups:
            _require_group(group, self.cpu)
        _require_model(self.model, self.model_claim)


def _require_name(flag: str, name: str | None, form: re.Pattern[str], most: int) -> None:
    if name is None or (form.fullmatch(name) is not None and len(name) <= most):
        return
    first = "a letter" if form is NAME else "a letter or digit"
    raise ConfigError(
        f"{flag} {name}: Kubernetes takes small letters, digits and - in such a name, {first} "
        f"first, at most {most} characters; this one has {len(name)}"
    )


def _require_group(group: WorkerGroup, cpu: int) -> None:
    role = group.role.value
    if group.most is not None and group.most < group.count:
        raise ConfigError(
            f"--max-{role} {group.most}: it must be at least {group.count}, the number of --{role} "
            "that is there at first"
        )
    if group.tp % group.nodes:
        raise ConfigError(
            f"--{role}-nodes {group.nodes}: {group.tp} ranks cannot be divided evenly over them; "
            f"give a multiple with --{role}-tp, e.g. {group.nodes}"
        )
    if group.tp // group.nodes > cpu:
        raise ConfigError(
            f"--cpu {cpu}: a pod of a {role} worker has {group.tp // group.nodes} ranks, and each "
            f"needs a core; give --cpu {group.tp // group.nodes} or more"
        )


def _require_model(model: str, claim: str | None) -> None:
    if claim is not None and not model.startswith(f"{MODELS}/"):
        raise ConfigError(
            f"MODEL {model}: --model-claim is mounted at {MODELS}, so write {MODELS}/ and the path "
            "within the volume"
        )
    if not (model == TRIAL or model.startswith("/") or is_id(model)):
        raise ConfigError(
            f"MODEL {model}: pods do not see the files of this machine; give an id of the Hugging "
            f"Face Hub (owner/model), a path below {MODELS} with --model-claim, or an absolute "
            "path in the image"
        )
