"""A connection to a Ray cluster: where the programs of a service are placed, and their start.

Workers are bundles of one placement group: the ranks of a worker share a bundle, so they are on one
node, and Ray spreads the bundles over the nodes. The gateway is on the node of the driver, where
the user expects its port and has its files, and takes no CPUs of the cluster.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import msgspec
import ray
from ray.exceptions import RayError
from ray.util import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from baton.core.errors import ConfigError, PeerError
from baton.launch.actor import CALLS, ProcessActor
from baton.launch.raylet import LOST, Raylet
from baton.launch.run import Document, RemoteRun, Seat, brief
from baton.shell.child import Program, Running

PLACED_WITHIN_S = 600.0  # machines may start late
WAIT_S = 1.0

Say = Callable[[str], None]
FROM_START = {"max_restarts": -1, "max_concurrency": CALLS, "enable_task_events": False}


class Demand(msgspec.Struct, frozen=True):
    """One worker: its processes, and what each of them takes of a node."""

    name: str
    ranks: int
    cpus: float
    gpus: float

    @property
    def bundle(self) -> dict[str, float]:
        """What the whole worker takes of its node."""
        both = {"CPU": self.cpus * self.ranks, "GPU": self.gpus * self.ranks}
        return {kind: amount for kind, amount in both.items() if amount}


class RayCluster:
    """One service in a Ray cluster. `close` ends its actors.

    Attributes:
        here: the address of this node, at which other nodes reach it
    """

    def __init__(self, address: str | None, say: Say) -> None:
        """Connect to the cluster at `address`; None = the one that this machine belongs to.

        Raises:
            ConfigError: `address` is not that of a cluster, or this machine belongs to none
            PeerError: the cluster cannot be reached
        """
        self._say = say
        connect(address, say)
        self._node = ray.get_runtime_context().get_node_id()
        own = next(node for node in nodes() if node["NodeID"] == self._node)
        self.here = str(own["NodeManagerAddress"])
        try:
            self._raylet = Raylet.at(own["RayletSocketName"])
        except OSError as error:
            raise PeerError(f"{LOST}: {error.strerror}") from error
        self._group: Any = None
        self._seats: dict[str, tuple[Seat, ...]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def cpus_of_nodes(self) -> tuple[int, ...]:
        """Return the CPUs of each node."""
        return tuple(int(node["Resources"].get("CPU", 0)) for node in nodes())

    def place(self, workers: Sequence[Demand]) -> dict[str, str]:
        """Reserve a node for every worker; returns the node's address by the worker's name.

        Raises:
            PeerError: the cluster has no room for them
        """
        self._group = placement_group([w.bundle for w in workers], strategy="SPREAD")
        until, wanted = time.monotonic() + PLACED_WITHIN_S, _wanted(workers)
        while not self._group.wait(timeout_seconds=WAIT_S):
            if time.monotonic() > until:
                raise PeerError(f"Ray has found no nodes for {wanted}; {_offered()}")
            self._say(f"Ray looks for nodes for {wanted}; {_offered()}")
        for index, worker in enumerate(workers):
            self._seats[worker.name] = tuple(
                Seat(self._maker(worker, index)) for _ in range(worker.ranks)
            )
        found = placement_group_table(self._group)["bundles_to_node_id"]
        addresses = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in nodes()}
        return {w.name: addresses[found[i]] for i, w in enumerate(workers)}

    def place_here(self, name: str) -> None:
        """Have a program run on this node."""
        where = NodeAffinitySchedulingStrategy(self._node, soft=False)
        self._seats[name] = (Seat(lambda: _actor(where, cpus=0, gpus=0)),)

    def start(self, program: Program, document: Document) -> Running:
        """Start a program in the actors of its place; returns at once.

        `program.argv` lacks the interpreter, which is that of its node.

        Raises:
            PeerError: the raylet of this node has ended, so Ray starts nothing for this process
        """
        if self._raylet.ended:
            raise PeerError(LOST)
        seats = self._seats[program.name]
        return RemoteRun(program.name, program.argv, seats, document, self._raylet)

    def close(self) -> None:
        """End all actors and the connection."""
        for seat in (seat for seats in self._seats.values() for seat in seats):
            seat.leave()
        if self._group is not None:
            remove_placement_group(self._group)
        ray.shutdown()

    def _maker(self, worker: Demand, index: int) -> Callable[[], Any]:
        where = PlacementGroupSchedulingStrategy(self._group, index)
        return lambda: _actor(where, cpus=worker.cpus, gpus=worker.gpus)


def connect(address: str | None, say: Say) -> None:
    """Connect this process to Ray. The first attempt on a cold machine may time out, so there are
    two.

    None is started here: Ray listens on every interface and lets whoever reaches it run programs,
    so that is for the user to decide.

    Raises:
        ConfigError: `address` is a Ray Client's, or there is no cluster on this machine
        PeerError: the cluster does not answer
    """
    if address is not None and address.startswith("ray://"):
        raise ConfigError(
            f"--ray-address {address}: Baton must run on a node of the cluster, not behind Ray "
            "Client; start it there, e.g. with ray job submit, and without --ray-address"
        )
    for more in (1, 0):
        try:
            ray.init(address=address or "auto", log_to_driver=False, logging_level="ERROR")
            return
        except (ConnectionError, RuntimeError, RayError, TimeoutError) as error:
            ray.shutdown()
            why = brief(error)
            if address is None and isinstance(error, ConnectionError):
                raise ConfigError(
                    "--on ray: this machine belongs to no Ray cluster; start one with ray start "
                    "--head, or name one by --ray-address"
                ) from error
            if not more:
                raise PeerError(f"Ray is not there: {why}") from error
            say(f"Ray did not answer ({why}); trying once more")


def nodes() -> list[Mapping[str, Any]]:
    """Return the nodes that are alive."""
    return [node for node in ray.nodes() if node["Alive"]]


def _actor(where: Any, *, cpus: float, gpus: float) -> Any:
    made = ray.remote(**FROM_START, num_cpus=cpus, num_gpus=gpus)(ProcessActor)
    return made.options(scheduling_strategy=where).remote()


def _wanted(workers: Sequence[Demand]) -> str:
    return ", ".join(f"{w.name} ({_amounts(w.bundle)})" for w in workers)


def _offered() -> str:
    each = [f"{n['NodeManagerAddress']} with {_amounts(n['Resources'])}" for n in nodes()]
    return f"the cluster has {', '.join(each)}; some of it may be taken"


def _amounts(resources: Mapping[str, float]) -> str:
    said = [f"{resources[kind]:g} {kind}" for kind in ("CPU", "GPU") if resources.get(kind)]
    return " and ".join(said) or "no CPU"
