"""Invariants of a room across processes: the order in which memory is taken, and what leaders tell
a gateway.

    prefill holds pages for the whole prompt ──▶ decode holds pages for the whole prompt       so no circle can form

Checked: memory of a room is taken at once, in all groups, and on decode after prefill. An epoch
that has ended on a worker does not begin there again. Every token that a leader sends is the right
one, and so are the logprobs of a prompt, whatever the gateway does with them. An epoch fails only
if a fault explains it. (Where single frames are lost, a handoff may stall without one; there only
whole requests are judged.)
"""

from collections.abc import Callable, Mapping

from baton.core.agreement import Hold, StepPlan
from baton.core.frames import Said
from baton.core.ids import Boot, Key, TokenId, is_loan
from baton.core.manifest import Manifest
from baton.core.memory.state import Unit, Window
from baton.core.messages import (
    Drawn,
    FailCode,
    Failed,
    FirstToken,
    PromptLogprobs,
    Ticket,
    Tokens,
)
from baton.dev.sim.clients import right_answer, right_scores
from baton.dev.sim.excuses import MISTAKEN, InjectedFault, excuse
from baton.dev.sim.grammar import refused


class Handoffs:
    """Judges the orders and messages of leaders."""

    def __init__(
        self,
        tickets: Mapping[Key, Ticket],
        faults: list[InjectedFault],
        concerned: Mapping[str, set[str]],
        violate: Callable[[str, str], None],
        *,
        lossy: bool,
    ) -> None:
        self._tickets, self._faults, self._concerned, self._violate = (
            tickets,
            faults,
            concerned,
            violate,
        )
        self._lossy = lossy
        self._held: set[tuple[Boot, Key]] = set()
        self._dropped: set[tuple[Boot, Key]] = set()
        self._taken_back: set[Key] = set()
        self._answers: dict[Key, list[TokenId]] = {}  # the right answers that were needed so far

    def ordered(self, worker: Manifest, plan: StepPlan) -> None:
        """A leader has issued a plan."""
        for hold in plan.hold:
            if not is_loan(hold.key):
                self._hold(worker, hold)
        self._dropped.update((worker.boot, key) for key in plan.drop)

    def _hold(self, worker: Manifest, hold: Hold) -> None:
        if (worker.boot, hold.key) in self._dropped:
            self._violate(
                "ended_once", f"{_short(hold.key)} is given pages by a worker on which it has ended"
            )
        ticket = self._tickets[hold.key]
        if (worker.boot, hold.key) in self._held:
            return  # it grows
        self._held.add((worker.boot, hold.key))
        self._order(worker, hold, ticket)
        if worker.guest:
            return  # vLLM gives out pages chunk by chunk
        length = len(ticket.prompt) + len(ticket.said)
        for group in worker.table.groups:
            room = len(hold.pages.get(group.name, ()))
            tokens = (
                worker.page_blocks * worker.table.block_tokens
                if group.unit is Unit.PAGE
                else length
            )
            due = min(length, group.extent.tokens) if isinstance(group.extent, Window) else length
            if room * tokens < due:
                self._violate(
                    "all_at_once",
                    f"{_short(hold.key)} was given {room} of group "
                    f"{group.name} for {length} tokens",
                )

    def _order(self, worker: Manifest, hold: Hold, ticket: Ticket) -> None:
        if worker.boot == ticket.decode and (ticket.prefill, hold.key) not in self._held:
            self._violate(
                "memory_order", f"{_short(hold.key)} holds pages of decode before those of prefill"
            )

    def taken_back(self, key: Key) -> None:
        """A leader fails an epoch, because the engine has taken its pages back for others. What the
        other side says of that may come to the gateway first."""
        self._taken_back.add(key)

    def told(self, message: Said) -> None:
        """A leader has sent a gateway a message."""
        match message:
            case PromptLogprobs():
                due = right_scores(self._tickets[message.key])
                if message.scores != due:
                    self._violate(
                        "right_prompt_logprobs",
                        f"{_short(message.key)} tells {message.scores}; {due} were due",
                    )
            case FirstToken():
                self._right(message.key, message.index, (message.drawn,))
            case Tokens():
                self._right(message.key, message.start, message.drawn)
            case Failed() if message.key in self._taken_back:
                pass  # the other side does not know the epoch any more, and has said why
            case Failed() if (
                message.code in (FailCode.HANDOFF_FAILED, FailCode.WORKER_LOST) and not self._lossy
            ):
                concerned = frozenset(self._concerned[message.key.room])
                if excuse(message.code, self._faults, concerned, also=MISTAKEN) is None:
                    why = (
                        f"{_short(message.key)} failed without an excuse: "
                        f"{message.code.value}: {message.detail}"
                    )
                    self._violate("no_spurious_failure", why)
            case _:
                pass

    def _right(self, key: Key, start: int, drawn: tuple[Drawn, ...]) -> None:
        if key not in self._answers:
            ticket = self._tickets[key]
            self._answers[key] = right_answer(
                ticket.prompt, ticket.sampling, ticket.limits, ticket.grammar
            )[0]
        answer, told = self._answers[key], [d.token for d in drawn]
        if wrong := refused(self._tickets[key].grammar, answer[:start], told):
            self._violate("follows_grammar", f"{_short(key)} tells {wrong}")
        due = answer[start : start + len(drawn)]
        if told != due:
            self._violate(
                "right_tokens", f"{_short(key)} tells {told} from index {start} on; {due} was due"
            )


def _short(key: Key) -> str:
    return f"{key.room[-4:]}.{key.epoch}"
