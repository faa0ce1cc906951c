"""Pairs a decode worker with the prefill workers that it takes rooms from: those that a gateway
introduces and that fit (handoff/pairing.py)."""

from collections.abc import Callable

from baton.core.agreement import Report
from baton.core.effects import Dial, HangUp
from baton.core.errors import Mismatch
from baton.core.handoff.pairing import Partners
from baton.core.ids import Boot, GroupName, Micros
from baton.core.manifest import Manifest
from baton.core.marks import Mark
from baton.core.messages import (
    Hello,
    HelloBack,
    Introduce,
    Lends,
    Paired,
    Refused,
    Ticket,
    Unpaired,
)
from baton.core.scheduler.decode_room import DecodeRoom
from baton.core.scheduler.stage import Handlers, Stage
from baton.core.scheduler.worker import Worker


class Pairing(Stage[DecodeRoom]):
    """The prefill workers of one decode worker, from their introduction to their end."""

    def __init__(
        self,
        worker: Worker[DecodeRoom],
        partners: Partners,
        *,
        lends: Callable[[Manifest, str], Lends | None],
    ) -> None:
        """lends: returns how a worker with that manifest may read from this one over that fabric;
        None if it may not"""
        super().__init__(worker)
        self.partners, self._lends = partners, lends

    def handlers(self) -> Handlers:
        return {
            Introduce: self._on_introduce,
            HelloBack: self._on_hello_back,
            Refused: self._on_refused,
        }

    def refuse(self, ticket: Ticket) -> str:
        if ticket.prefill == ticket.decode:
            return ""  # it computes the prompt itself
        partner = self.partners.find(ticket.prefill)
        paired = partner is not None and partner.paired
        return "" if paired else f"not paired with prefill worker {ticket.prefill:x}"

    def gateway_up(self, boot: Boot) -> None:
        """Tell a new gateway our pairs."""
        for partner in self.partners.paired():
            self.worker.send(boot, Paired(partner.manifest.boot, partner.fabric))

    def source_blocks(self, boot: Boot, group: GroupName) -> int:
        """Return the number of blocks in a page of the group on a prefill worker."""
        partner = self.partners.find(boot)
        return partner.manifest.blocks_per_page(group) if partner is not None else 1

    def timer(self) -> Micros | None:
        return self.partners.timer()

    def on_timer(self) -> None:
        """Unpair prefill workers that were not paired in time. One that ended before it was dialled
        is noticed in no other way."""
        for partner in self.partners.overdue(self.worker.now):
            self.worker.marks[Mark.NOT_PAIRED] += 1
            self.unpair(
                partner.manifest.boot,
                f"not paired in {self.worker.settings.pair_ms} ms: {partner.lacks}",
            )

    def _on_introduce(self, sender: Boot, message: Introduce) -> None:
        partner = self.partners.find(message.prefill)
        if partner is not None and partner.paired:
            self.worker.send(sender, Paired(message.prefill, partner.fabric))
            return
        until = Micros(self.worker.now + self.worker.settings.pair_ms * 1000)
        connection, why = self.partners.introduce(message.manifest, self.worker.plans, until=until)
        if why:
            self.worker.send(sender, Unpaired(message.prefill, why))
        if connection is not None:
            self.worker.draft.connect.append(connection)
            self.worker.effects.append(Dial(message.address, message.prefill))

    def peer_up(self, boot: Boot) -> None:
        partner = self.partners.find(boot)
        if partner is not None:
            partner.session = True
            self._ask(boot)

    def _ask(self, boot: Boot) -> None:
        partner = self.partners.ready_to_ask(boot)
        if partner is not None:
            lends = self._lends(partner.manifest, partner.fabric)
            self.worker.send(boot, Hello(self.worker.manifest, partner.plan.digest, lends))

    def _on_hello_back(self, sender: Boot, message: HelloBack) -> None:
        try:
            partner = self.partners.confirm(sender, message.plan)
        except Mismatch as error:
            self.unpair(sender, str(error))
            return
        if partner is not None:
            for gateway in self.worker.gateways:
                self.worker.send(gateway, Paired(sender, partner.fabric))

    def _on_refused(self, sender: Boot, message: Refused) -> None:
        if self.partners.owes_answer(sender):
            self.unpair(sender, f"the prefill worker refused: {message.why}")

    def unpair(self, boot: Boot, why: str) -> None:
        """Forget a prefill worker and the connections to it, and tell the gateways why."""
        if self.partners.forget(boot) is None:
            return
        self.worker.draft.disconnect.append(boot)
        self.worker.effects.append(HangUp(boot))
        self.worker.marks[Mark.UNPAIRED] += 1
        for gateway in self.worker.gateways:
            self.worker.send(gateway, Unpaired(boot, why))

    def peer_lost(self, boot: Boot, why: str) -> None:
        partner = self.partners.find(boot)
        self.worker.marks[Mark.NOT_THERE] += partner is not None and not partner.session
        self.unpair(boot, why)

    def report(self, report: Report) -> None:
        """A rank has connected to workers, or has failed to reach them."""
        for result in report.connected:
            partner = self.partners.find(result.peer)
            if partner is None:
                continue
            if result.why:
                self.unpair(
                    result.peer,
                    f"rank {report.rank} cannot reach it over {partner.fabric}: {result.why}",
                )
            else:
                partner.connected.add(report.rank)
                self._ask(result.peer)
