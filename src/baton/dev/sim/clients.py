"""Clients, and the oracle of what they must see: every index once, in order and right; one end; no
failure without an excuse."""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from baton.core.door import Emit, Fail, Finish, Heard, RequestId, Submit
from baton.core.ids import Key, TokenId, TokenIndex
from baton.core.messages import Drawn, FinishReason, Grammar, Limits, Sampling, Ticket
from baton.core.prompt_scores import PromptScores, pack_scores
from baton.dev.sim import content
from baton.dev.sim.grammar import allowed, refused


class Client(msgspec.Struct):
    """One request, and what its client has heard."""

    submit: Submit
    gateway: str
    sent_at: int
    probe: bool
    repeats: bool
    tight: bool
    big: bool
    tokens: list[TokenId] = msgspec.field(default_factory=list)
    end: Finish | Fail | None = None
    gone: str = ""  # why nothing more is to be heard: the client left, or its gateway ended
    ended_at: int = 0

    @property
    def name(self) -> str:
        """The name in stories."""
        return f"request {self.submit.request}"

    @property
    def open(self) -> bool:
        """Whether its end is still to come."""
        return self.end is None and not self.gone


def ends_with(answer: Sequence[TokenId], word: Sequence[TokenId]) -> bool:
    """Whether these tokens end with those of the word."""
    return len(answer) >= len(word) and tuple(answer[-len(word) :]) == tuple(word)


def right_answer(
    prompt: tuple[TokenId, ...],
    sampling: Sampling,
    limits: Limits,
    grammar: Grammar | None = None,
) -> tuple[list[TokenId], FinishReason]:
    """Return what a right system generates. It is computed without pages, workers or handoffs."""
    history = content.histories(prompt)[-1]
    found: list[TokenId] = []
    ends = (*limits.eos_token_ids, *limits.stop_token_ids)
    words = sampling.shaping.bad_words if sampling.shaping is not None else ()
    while True:
        may = allowed(grammar, found) if grammar is not None else None
        barred: tuple[TokenId, ...] = ()
        if grammar is not None and may is None:
            barred = limits.eos_token_ids  # an answer that has no part of its grammar has not ended
        if len(found) < limits.min_tokens:
            barred = ends
        token = content.next_token(
            history,
            sampling,
            TokenIndex(len(found)),
            prompt=prompt,
            answer=found,
            barred=barred,
            allowed=may,
            bad=[word[-1] for word in words if ends_with((*found, word[-1]), word)],
        )
        found.append(token)
        if token in ends:
            return found, FinishReason.STOP
        if len(found) >= limits.max_tokens:
            return found, FinishReason.LENGTH
        history = content.scramble(history * 31 + token + 1 & content.MASK)


def right_scores(ticket: Ticket) -> PromptScores | None:
    """Return the scores of a prompt that its prefill worker computes in this epoch; None if it
    computes none."""
    top = ticket.sampling.prompt_logprobs
    if top is None or not ticket.scores_prompt:
        return None
    author = content.attempt(ticket.prefill, ticket.key.epoch)
    following = zip(content.histories(ticket.prompt), ticket.prompt[1:], strict=False)
    return pack_scores(top, [content.token_score(h, t, top, author) for h, t in following])


def _is_of(ticket: Ticket, submit: Submit) -> bool:
    """Whether a ticket belongs to that request. Each request has a seed of its own."""
    return ticket.sampling.seed == submit.sampling.seed


class Oracle:
    """Judges what clients hear. tickets: all tickets that workers were given, by epoch"""

    def __init__(self, violate: Callable[[str, str], None], tickets: Mapping[Key, Ticket]) -> None:
        self._violate, self._tickets = violate, tickets
        self.clients: dict[RequestId, Client] = {}
        # the right answers that were needed so far
        self._answers: dict[RequestId, tuple[list[TokenId], FinishReason]] = {}

    def hear(self, heard: Heard, now: int) -> Client:
        """Judge what was said to a client. Returns the client."""
        client = self.clients[heard.request]
        if client.end is not None or client.gone:
            self._violate("one_end", f"{client.name} heard {type(heard).__name__} after its end")
        match heard:
            case Emit():
                self._emit(client, heard)
            case Finish():
                client.end, client.ended_at = heard, now
                expected, reason = self._answer(client.submit)
                if client.tokens != expected or heard.reason is not reason:
                    self._violate(
                        "right_tokens",
                        f"{client.name} ended {heard.reason.value} with "
                        f"{client.tokens}; {expected} was due",
                    )
            case Fail():
                client.end, client.ended_at = heard, now
        return client

    def _emit(self, client: Client, emit: Emit) -> None:
        if emit.start != len(client.tokens):
            self._violate(
                "no_gap",
                f"{client.name} heard index {emit.start} after {len(client.tokens)} tokens",
            )
        tokens = [d.token for d in emit.drawn]
        if wrong := refused(client.submit.grammar, client.tokens, tokens):
            self._violate("follows_grammar", f"{client.name} heard {wrong}")
        client.tokens += tokens
        expected = self._answer(client.submit)[0]
        if client.tokens != expected[: len(client.tokens)]:
            self._violate(
                "right_tokens", f"{client.name} heard {client.tokens}; {expected} was due"
            )
        for index, drawn in enumerate(emit.drawn, start=emit.start):
            self._logprobs(client, index, drawn)
        self._prompt_logprobs(client, emit)

    def _prompt_logprobs(self, client: Client, emit: Emit) -> None:
        """Check that the first token, and no other, comes with the prompt's logprobs, if they are
        wanted: those of the epoch that draws it."""
        wanted = client.submit.sampling.prompt_logprobs is not None and emit.start == 0
        due = right_scores(self._drawn_in(client.submit, 0)) if wanted else None
        if emit.scores != due:
            what = (
                f"{client.name} heard with index {emit.start} logprobs of its prompt {emit.scores}"
            )
            self._violate("right_prompt_logprobs", f"{what}; {due} were due")

    def _drawn_in(self, submit: Submit, index: int) -> Ticket:
        """Return the ticket of the epoch that draws a token: the last one that begins at this index
        or before."""
        return max(
            (t for t in self._tickets.values() if _is_of(t, submit) and len(t.said) <= index),
            key=lambda t: t.key.epoch,
        )

    def _logprobs(self, client: Client, index: int, drawn: Drawn) -> None:
        """Check that logprobs are those of one epoch: the last one whose ticket begins at this
        index or before."""
        submit, heard = client.submit, (drawn.logprob, drawn.top)
        if submit.sampling.logprobs is None:
            if heard != (None, ()):
                self._violate(
                    "right_logprobs",
                    f"{client.name} wanted no logprobs, and heard {heard} with index {index}",
                )
            return
        ticket = self._drawn_in(submit, index)
        boot = ticket.prefill if index == len(ticket.said) else ticket.decode
        history = content.histories((*submit.prompt, *client.tokens[:index]))[-1]
        due = content.logprobs(
            history, submit.sampling.logprobs, content.attempt(boot, ticket.key.epoch)
        )
        if heard != due:
            what = f"{client.name} heard logprobs {heard} with index {index}"
            self._violate(
                "right_logprobs",
                f"{what}; in epoch {ticket.key.epoch}, which draws it, boot {boot} has {due}",
            )

    def _answer(self, submit: Submit) -> tuple[list[TokenId], FinishReason]:
        if submit.request not in self._answers:
            self._answers[submit.request] = right_answer(
                submit.prompt, submit.sampling, submit.limits, submit.grammar
            )
        return self._answers[submit.request]
