"""Who may connect to the pods, and how many of them may be evicted at once."""

from collections.abc import Sequence

from baton.cli.deploy.kubernetes import layout
from baton.cli.deploy.kubernetes.api import (
    ClusterObject,
    DisruptionBudgetSpec,
    IngressRule,
    LabelSelector,
    NetworkPolicy,
    NetworkPolicySpec,
    PodDisruptionBudget,
    PolicyPeer,
    PolicyPort,
)
from baton.cli.deploy.settings import DeploySettings


def network_policies(settings: DeploySettings) -> Sequence[ClusterObject]:
    """Let the pods of the service in to each other at all ports, and anybody to gateways' HTTP.

    Fabrics take free ports, and ranks of several pods talk without encryption.
    """
    own = LabelSelector(match_labels=layout.labels(settings))
    gateways = LabelSelector(match_labels=layout.labels(settings, layout.GATEWAY))
    peers = IngressRule(from_=[PolicyPeer(pod_selector=own)])
    clients = IngressRule(ports=[PolicyPort(port=layout.HTTP)])
    return [
        _policy(settings, None, "-peers", own, peers),
        _policy(settings, layout.GATEWAY, "-clients", gateways, clients),
    ]


def _policy(
    settings: DeploySettings,
    component: str | None,
    suffix: str,
    pods: LabelSelector,
    rule: IngressRule,
) -> NetworkPolicy:
    return NetworkPolicy(
        metadata=layout.metadata(settings, component, suffix),
        spec=NetworkPolicySpec(pod_selector=pods, policy_types=["Ingress"], ingress=[rule]),
    )


def disruption_budgets(settings: DeploySettings) -> Sequence[ClusterObject]:
    """Let one pod of each component be evicted at a time."""
    components = [layout.GATEWAY, *(group.role.value for group in settings.groups)]
    return [_budget(settings, component) for component in components]


def _budget(settings: DeploySettings, component: str) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=layout.metadata(settings, component, f"-{component}"),
        spec=DisruptionBudgetSpec(
            max_unavailable=1,
            selector=LabelSelector(match_labels=layout.labels(settings, component)),
        ),
    )
