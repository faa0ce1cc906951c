"""Which prefill workers a decode worker can read from.

gateway ──Introduce──▶ decode ──ConnectOrder (plan), Dial──▶ ranks connect, session comes up ──Hello──▶ prefill
                          └──Paired | Unpaired──▶ every gateway ◀── HelloBack | Refused ──────────┘

A worker that is introduced is paired within a stated time or forgotten, with its connections and
the link that was dialled to it: it may have ended before it was dialled. Its gateway introduces it
again for as long as it knows it.
"""

import msgspec

from baton.core.agreement import ConnectOrder
from baton.core.errors import BatonError, Mismatch
from baton.core.handoff.plan import PairPlan
from baton.core.handoff.plans import Plans
from baton.core.ids import Boot, Micros, Rank
from baton.core.manifest import Manifest, choose_fabric, require_fit
from baton.core.memory.state import Placement


class Partner(msgspec.Struct):
    """A prefill worker, paired or on its way to that."""

    manifest: Manifest
    plan: PairPlan
    fabric: str
    connected: set[Rank]  # our ranks that have connected
    until: Micros  # it is paired by then, or given up
    session: bool = False
    asked: bool = False
    paired: bool = False

    @property
    def lacks(self) -> str:
        """What it is not paired for."""
        if not self.session:
            return "its leader has not answered"
        return (
            "not all ranks have connected to it" if not self.asked else "it has not answered Hello"
        )


class Partners:
    """All prefill workers this decode worker knows."""

    def __init__(self, ours: Manifest) -> None:
        self._ours = ours
        self._placements: list[Placement] = [ours.placement(r.rank) for r in ours.ranks]
        self._known: dict[Boot, Partner] = {}

    def introduce(
        self, manifest: Manifest, plans: Plans, *, until: Micros
    ) -> tuple[ConnectOrder | None, str]:
        """The connection to order from the ranks, or why there can be none. until: when it is given
        up if it is not paired."""
        if manifest.boot in self._known:
            return None, ""
        try:
            require_fit(self._ours, manifest)
            plan = plans.pair(
                [manifest.placement(r.rank) for r in manifest.ranks], self._placements
            )
            fabric = choose_fabric(self._ours, manifest)
        except BatonError as error:  # every reason of ours why two workers do not fit
            return None, str(error)
        self._known[manifest.boot] = Partner(manifest, plan, fabric, set(), until)
        return ConnectOrder(manifest, fabric), ""

    def find(self, boot: Boot) -> Partner | None:
        """A known worker."""
        return self._known.get(boot)

    def forget(self, boot: Boot) -> Partner | None:
        """Drop a worker; returns what was known of it."""
        return self._known.pop(boot, None)

    def ready_to_ask(self, boot: Boot) -> Partner | None:
        """The worker if its Hello is due now: session up, all our ranks connected, not asked
        yet."""
        partner = self._known.get(boot)
        if (
            partner is None
            or partner.asked
            or not partner.session
            or len(partner.connected) < len(self._ours.ranks)
        ):
            return None
        partner.asked = True
        return partner

    def owes_answer(self, boot: Boot) -> bool:
        """Whether a worker was said Hello, and has not answered."""
        partner = self._known.get(boot)
        return partner is not None and partner.asked and not partner.paired

    def confirm(self, boot: Boot, digest: str) -> Partner | None:
        """The worker answered our Hello; None where no answer is due. Raises Mismatch if its plan
        is another."""
        partner = self._known.get(boot)
        if partner is None or not self.owes_answer(boot):
            return None
        if partner.plan.digest != digest:
            raise Mismatch("plan digest", partner.plan.digest, digest)
        partner.paired = True
        return partner

    def paired(self) -> list[Partner]:
        """Workers whose rooms we take."""
        return [p for p in self._known.values() if p.paired]

    def overdue(self, now: Micros) -> list[Partner]:
        """Workers whose time to be paired is over."""
        return [p for p in self._known.values() if not p.paired and now >= p.until]

    def timer(self) -> Micros | None:
        """When `overdue` has something next."""
        return min((p.until for p in self._known.values() if not p.paired), default=None)
