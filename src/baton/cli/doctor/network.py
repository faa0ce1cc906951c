"""Finds the transport between two hosts: tries NIXL again without shared memory.

UCX chooses transport and device when it connects, from what both ends have, so this can only be
found by trying. The answer is about this host; the other host must have the same transports.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from baton.cli.doctor.finding import Finding, ok, warning
from baton.cli.doctor.probe import Tried

NO_SHARED_MEMORY: Mapping[str, str] = MappingProxyType({"UCX_TLS": "^sm"})
ANYWHERE = "0.0.0.0"  # not loopback, where NIXL would keep to the device lo
WHAT = "other hosts"


def other_hosts(tried: Tried, *, rdma: Sequence[str], interfaces: Sequence[str]) -> Finding:
    """Report the protocol and device with which NIXL would read from another host."""
    if tried.found.why:
        return warning(
            "fabrics",
            WHAT,
            f"nixl without shared memory: {tried.found.why}",
            "name its network device with --fabric-device",
        )
    protocol, _, device = tried.transport.partition("/")
    if not protocol:
        return ok(
            "fabrics", WHAT, "nixl reads without shared memory too, and does not say over what"
        )
    over = f"nixl would read over {protocol} on {device}"
    if device == "lo":
        over = (
            f"nixl would read over {protocol}, on the interface of the route: "
            f"{', '.join(interfaces) or 'there is none but lo'}"
        )
    said = f"{over} ({tried.found.gbytes_s:.1f} GB/s from this host to itself)"
    if rdma and protocol == "tcp":
        remedy = (
            "name the RDMA device with --fabric-device, and see that it is up and that "
            "this user may lock memory"
        )
        return warning("fabrics", WHAT, f"{said}, though there is {', '.join(rdma)}", remedy)
    return ok("fabrics", WHAT, said)


def rdma_devices(root: Path = Path("/")) -> list[str]:
    """Return UCX's names (mlx5_0:1) of the RDMA ports
    that are up. `root` is where sys/ is found."""
    states = sorted((root / "sys/class/infiniband").glob("*/ports/*/state"))
    return [f"{s.parents[2].name}:{s.parent.name}" for s in states if "ACTIVE" in s.read_text()]


def interfaces(root: Path = Path("/")) -> list[str]:
    """Return the network interfaces that are up, without loopback."""
    states = sorted((root / "sys/class/net").glob("*/operstate"))
    return [
        s.parent.name for s in states if s.parent.name != "lo" and s.read_text().strip() == "up"
    ]
