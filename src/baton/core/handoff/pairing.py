"""Which prefill workers a decode worker can read from.

gateway ──Introduce──▶ decode ──ConnectOrder (plan), Dial──▶ ranks connect, session comes up ──Hello──▶ prefill
                          └──Paired | Unpaired──▶ every gateway ◀── HelloBack | Refused ──────────┘

A worker that is introduced is paired within a stated time or forgotten, with the connections and
the link to it: it may have ended before it was dialled. A gateway repeats the introduction for as
long as it knows the worker.
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
    """A prefill worker that is paired or being paired."""

    manifest: Manifest
    plan: PairPlan
    fabric: str
    connected: set[Rank]  # our ranks that have connected
    until: Micros  # it is given up if it is not paired by then
    session: bool = False
    asked: bool = False
    paired: bool = False

    @property
    def lacks(self) -> str:
        """Why it is not paired yet."""
        if not self.session:
            return "its leader has not answered"
        return (
            "not all ranks have connected to it" if not self.asked else "it has not answered Hello"
        )


class Partners:
    """The prefill workers that this decode worker knows."""

    def __init__(self, ours: Manifest) -> None:
        self._ours = ours
        self._placements: list[Placement] = [ours.placement(r.rank) for r in ours.ranks]
        self._known: dict[Boot, Partner] = {}

    def introduce(
        self, manifest: Manifest, plans: Plans, *, until: Micros
    ) -> tuple[ConnectOrder | None, str]:
        """Return the connection to order from the ranks, or the reason why there can be none. A
        worker that is known already needs neither.

        until: when it is given up if it is not paired
        """
        if manifest.boot in self._known:
            return None, ""
        try:
            require_fit(self._ours, manifest)
            plan = plans.pair(
                [manifest.placement(r.rank) for r in manifest.ranks], self._placements
            )
            fabric = choose_fabric(self._ours, manifest)
        except BatonError as error:  # any reason why two workers do not fit
            return None, str(error)
        self._known[manifest.boot] = Partner(manifest, plan, fabric, set(), until)
        return ConnectOrder(manifest, fabric), ""

    def find(self, boot: Boot) -> Partner | None:
        """Return a worker; None if it is not known."""
        return self._known.get(boot)

    def forget(self, boot: Boot) -> Partner | None:
        """Forget a worker. Returns what was known of it."""
        return self._known.pop(boot, None)

    def ready_to_ask(self, boot: Boot) -> Partner | None:
        """Return the worker if its Hello is due now: its session is up, all our ranks are
        connected, and it has not been asked yet."""
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
        """Whether a worker was sent Hello and has not answered."""
        partner = self._known.get(boot)
        return partner is not None and partner.asked and not partner.paired

    def confirm(self, boot: Boot, digest: str) -> Partner | None:
        """A worker has answered our Hello. Returns None if no answer was due.

        Raises:
            Mismatch: its plan differs from ours
        """
        partner = self._known.get(boot)
        if partner is None or not self.owes_answer(boot):
            return None
        if partner.plan.digest != digest:
            raise Mismatch("plan digest", partner.plan.digest, digest)
        partner.paired = True
        return partner

    def paired(self) -> list[Partner]:
        """Return the workers whose rooms we take."""
        return [p for p in self._known.values() if p.paired]

    def overdue(self, now: Micros) -> list[Partner]:
        """Return the workers that are not paired although their time is over."""
        return [p for p in self._known.values() if not p.paired and now >= p.until]

    def timer(self) -> Micros | None:
        """Return when `overdue` has something next; None if no worker is being paired."""
        return min((p.until for p in self._known.values() if not p.paired), default=None)
