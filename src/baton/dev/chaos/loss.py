"""Packets that are lost: a share of those that arrive at a machine, drawn at random by its kernel.

The rule stands in the network of the machine that receives: the sender learns nothing of it.
"""

import re

from baton.dev.chaos.network import NetworkNamespace

TABLE = ("inet", "baton_chaos")
RULES = """
table inet baton_chaos {{
    chain arriving {{
        type filter hook prerouting priority raw;
        iifname "{device}" numgen random mod 1000 < {permille} counter drop
    }}
}}
"""
DROPPED = re.compile(r"counter packets (\d+)")


class Loss:
    """Of the packets that arrive at a machine.

    Args:
        network: of the machine
        device: by which they arrive
    """

    KIND = "loss"
    NEEDS = "a kernel with nf_tables and its expression numgen"

    def __init__(self, network: NetworkNamespace, device: str) -> None:
        self._network, self._device = network, device

    def begin(self, share: float) -> None:
        """Drop this share of them, less than 1, from now on."""
        rules = RULES.format(device=self._device, permille=round(1000 * share))
        self._network.run("nft", "-f", "-", package="nftables", given=rules)

    def end(self) -> int:
        """Drop none any more. Returns how many were dropped."""
        said = self._network.run("nft", "list", "table", *TABLE, package="nftables")
        self._network.run("nft", "delete", "table", *TABLE, package="nftables")
        return sum(int(count) for count in DROPPED.findall(said))
