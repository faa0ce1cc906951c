"""All manifests of a service, as YAML."""

from collections.abc import Sequence
from typing import Any

import msgspec

from baton.cli.deploy.kubernetes.api import ClusterObject, plain
from baton.cli.deploy.kubernetes.engines import image_of
from baton.cli.deploy.kubernetes.gateway import gateway_manifests
from baton.cli.deploy.kubernetes.policies import disruption_budgets, network_policies
from baton.cli.deploy.kubernetes.workers import autoscaler, workers
from baton.cli.deploy.settings import DeploySettings


def manifests(settings: DeploySettings) -> Sequence[ClusterObject]:
    """Return all objects in the order in which they are made.

    Raises:
        ConfigError: the engine does not serve these settings
    """
    return [
        *network_policies(settings),
        *gateway_manifests(settings),
        *(workers(settings, group) for group in settings.groups),
        *disruption_budgets(settings),
        *(autoscaler(settings, group) for group in settings.groups if group.most is not None),
    ]


def document(manifest: ClusterObject) -> dict[str, Any]:
    """Return an object as a dict, with the keys first by which people know it."""
    found: dict[str, Any] = plain(manifest)
    return {key: found[key] for key in ("apiVersion", "kind")} | found


def written(settings: DeploySettings) -> str:
    """Return the manifests as one YAML stream, with what must be there first as a comment.

    Raises:
        ConfigError: the engine does not serve these settings
    """
    documents = [msgspec.yaml.encode(document(each)).decode() for each in manifests(settings)]
    return "---\n".join([_head(settings), *documents])


def _head(settings: DeploySettings) -> str:
    where = "" if settings.namespace is None else f" --namespace {settings.namespace}"
    lines = [
        f"Image: {image_of(settings)}. Before these objects the key of the cluster must be there:",
        "  baton secret new key",
        f"  kubectl create secret generic {settings.key_secret} --from-file=key=key{where}",
    ]
    return "".join(f"# {line}\n" for line in lines)
