"""By what autoscalers change the number of workers."""

from collections.abc import Mapping
from typing import NamedTuple

from baton.cli.deploy.settings import WorkerGroup


class ScaledBy(NamedTuple):
    """A metric of the gateways.

    Attributes:
        labels: of the series that counts
        each: the value that one worker is enough for
    """

    metric: str
    labels: Mapping[str, str]
    each: int


def wanted(group: WorkerGroup) -> ScaledBy:
    """Scale by what the gateways say that the load asks for."""
    return ScaledBy("baton:wanted_workers", {"role": group.role.value}, 1)


def waiting() -> ScaledBy:
    """Scale by the requests that wait at the gateways, which know no more of these workers."""
    return ScaledBy("baton:queue_length", {}, 4)
