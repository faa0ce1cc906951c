"""Histories made by hand, for checks to judge."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from tests.core.build import GREEDY, KV, drawn, key, limits, manifest, settings, submit, ticket

from baton.core.agreement import Ballot, Fetch, Hold, Report, RowOrder, StepPlan, Suspect, Vote
from baton.core.effects import Issue, Send
from baton.core.events import MessageReceived, RankReported, ReportDue
from baton.core.gateway.request import FrontSettings
from baton.core.ids import Boot, Key, Micros, Page, Rank, RankId, Seq, TokenIndex
from baton.core.manifest import Manifest, RankManifest
from baton.core.messages import BlockRun, Offer, Record, Ticket
from baton.core.parts import FrontParts, LeaderParts, RankParts
from baton.core.rank.rank_effects import Digest, Read
from baton.core.work import Copies, DigestOrder, Handle, Job
from baton.trace.checks.check import Check
from baton.trace.log import CoreKind, Parts, Step

GATEWAY, PREFILL, DECODE = Boot(1), Boot(2), Boot(3)
ONE, TWO = key(1), key(2)


def leader_parts(role: str = "decode", boot: int = 3, ranks: int = 2) -> LeaderParts:
    """A worker of `ranks` ranks with 8 pages of 4 tokens."""
    m = manifest(role, boot, pages=8)
    several = tuple(
        RankManifest(Boot(boot + 10 * r), r, r, 0, m.ranks[0].pools, {}) for r in range(ranks)
    )
    whole = Manifest(
        m.protocol,
        role,
        m.model,
        m.weights,
        m.dtype,
        m.table,
        1,
        ranks,
        1,
        m.max_model_len,
        True,
        several,
    )
    return LeaderParts(whole, settings(), {KV: 8})


def rank_parts() -> RankParts:
    return RankParts(Rank(0), DECODE, (manifest("decode", 3).placement(0),), True)


def front_parts() -> FrontParts:
    return FrontParts(GATEWAY, FrontSettings())


def judged(check: Check, parts: Parts, steps: Iterable[Step]) -> list[str]:
    """All that the check finds wrong."""
    check.made(parts)
    return [what for step in steps for what in check.see(step)]


# ---- into a leader ------------------------------------------------------------------------------


def leads(event: Any, *effects: Any) -> Step:
    return Step(Micros(0), CoreKind.LEADER, event, effects)


def hears(message: Any, *effects: Any, sender: Boot = GATEWAY) -> Step:
    return leads(MessageReceived(sender, message), *effects)


def issues(seq: int, **fields: Any) -> Step:
    """The leader issues a plan, whatever made it do so."""
    return hears(ticket(99), plan(seq, **fields))


def plan(seq: int, **fields: Any) -> Issue:
    return Issue(StepPlan(Seq(seq), **{name: tuple(items) for name, items in fields.items()}))


def hold(k: Key, *pages: int, shared: int = 0) -> Hold:
    return Hold(k, {KV: tuple(Page(p) for p in pages)}, {}, {KV: shared})


def row(k: Key, start: int = 0, tokens: int = 1) -> RowOrder:
    return RowOrder(k, start, (7,) * tokens, {}, start + tokens, GREEDY, TokenIndex(0))


def fetch(
    order: int,
    k: Key,
    start: int,
    end: int,
    *,
    follows: int | None = None,
    only: tuple[Suspect, ...] = (),
) -> Fetch:
    run = BlockRun(start, end, tuple(Page(p) for p in range(end - start)))
    return Fetch(order, follows, only, k, PREFILL, 8, {KV: run}, (), 1)


def report(
    rank: int, applied: int, *, quiet: tuple[Key, ...] = (), ballots: tuple[Ballot, ...] = ()
) -> Report:
    boot = Boot(3 + 10 * rank)
    return Report(Rank(rank), boot, Seq(applied), b"", ballots, quiet, (), (), (), 0)


def reports(rank: int, applied: int, *effects: Any, **fields: Any) -> Step:
    return leads(RankReported(report(rank, applied, **fields)), *effects)


def vote(order: int, what: Vote, *suspects: Suspect) -> tuple[Ballot, ...]:
    return (Ballot(order, what, "", suspects),)


def asks(number: int, *, epoch: int = 1, length: int = 8) -> Step:
    return hears(ticket(number, epoch=epoch, length=length))


def last_offer(k: Key, number: int = 1) -> Step:
    return hears(Offer(k, number, {}, (), Record(8, drawn(5), None)), sender=PREFILL)


# ---- into a rank --------------------------------------------------------------------------------


def ranks(event: Any, *effects: Any) -> Step:
    return Step(Micros(0), CoreKind.RANK, event, effects)


def applies(seq: int, *effects: Any, **fields: Any) -> Step:
    return ranks(plan(seq, **fields).plan, *effects)


def reads(handle: int, *pages: int) -> Read:
    """A read of one whole page each."""
    size = manifest("decode", 3).placement(0).page_bytes(KV)
    target = np.array([p * size for p in pages], dtype=np.int64)
    nbytes = np.full(len(pages), size, dtype=np.int64)
    return Read(
        ONE,
        Handle(handle),
        RankId(PREFILL, PREFILL, Rank(0)),
        "shm",
        (Copies(KV, target, target, nbytes),),
        size * len(pages),
        1,
    )


def hashes(job: int, *slots: int) -> Digest:
    numbers = np.arange(len(slots), dtype=np.int64)
    return Digest(DigestOrder(Job(job), KV, np.array(slots, dtype=np.int64), numbers))


def tells(*quiet: Key) -> Step:
    return ranks(ReportDue(), report(0, 9, quiet=quiet))


# ---- into a gateway -----------------------------------------------------------------------------


def fronts(event: Any, *effects: Any) -> Step:
    return Step(Micros(0), CoreKind.FRONT, event, effects)


def tickets(number: int = 1, *, said: tuple[int, ...] = (), **fields: Any) -> tuple[Send, Send]:
    """The same ticket to both sides."""
    t = ticket(number, **fields)
    full = Ticket(
        t.key, t.stamp, t.gateway, t.prefill, t.decode, t.prompt, said, t.sampling, limits()
    )
    return Send(t.prefill, full), Send(t.decode, full)


request = submit


# ---- judgement ----------------------------------------------------------------------------------

GOOD = None


def expect(found: list[str], why: str | None) -> None:
    """Nothing is wrong, or that alone."""
    if why is GOOD:
        assert found == []
    else:
        assert len(found) == 1, found
        assert why in found[0]
