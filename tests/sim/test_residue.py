"""What may be left at rest: every table is looked at, whatever it is called, and peers are those
that live."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.core.build import KV, manifest, settings
from tests.core.driven import Driven
from tests.core.handoff.test_pairing import DECODE, GATEWAY, PREFILL, introduced, met, said

from baton.core.events import MessageReceived, PeerConnected
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings
from baton.core.ids import Boot, Micros
from baton.core.messages import HelloBack
from baton.core.scheduler.leader import Leader
from baton.dev.sim.residue import JUSTIFIED, Live, left

DEAD = Boot(77)
SOURCES = Path(__file__).parents[2] / "src" / "baton"


def live(role: str = "decode", *, prefill: Boot = PREFILL, gateway: Boot = GATEWAY) -> Live:
    return Live(
        frozenset({gateway}),
        frozenset({prefill}),
        frozenset({DECODE}),
        frozenset(),
        Micros(0),
        role,
        0,
        (DECODE,),
    )


def kept(core: object, whom: Live) -> list[str]:
    return [
        what.split(":")[0]
        for what in left(
            SimpleNamespace(core=core.core if isinstance(core, Driven) else core), whom
        )
    ]


def paired() -> Leader:
    """A decode leader with the one prefill worker there is."""
    leader = introduced()
    leader.step(PeerConnected(PREFILL), Micros(1))
    met(leader, 1)
    (hello,) = said(leader)
    leader.step(MessageReceived(PREFILL, HelloBack(hello.plan)), Micros(2))
    leader.effects()
    return leader


def test_a_leader_that_knows_who_lives_keeps_nothing():
    assert kept(paired(), live()) == []


@pytest.mark.parametrize(
    ("whom", "what"),
    [
        (live(prefill=DEAD), ["Partners._known"]),
        (live(gateway=DEAD), ["CacheNews._gateways", "CreditNews._tickets", "Worker.gateways"]),
    ],
)
def test_a_dead_peer_that_is_kept_and_a_live_one_that_is_not_known_are_found(whom, what):
    assert sorted(kept(paired(), whom)) == sorted(what)


def test_who_is_not_paired_is_found():
    assert "Partners._known" in kept(introduced(), live())


def test_a_table_that_nobody_wrote_down_is_looked_at_and_so_is_one_inside_of_it():
    front = Front(GATEWAY, FrontSettings())
    assert sorted(kept(front, live("gateway"))) == [
        "KnownCaches._workers",
        "Router._all",
        "WorkerChoice._workers",
        "WorkerPairs._workers",
    ]
    front._seen_lately = {DEAD: Leader(manifest("decode", DECODE), settings(), {KV: 4})}
    front._seen_lately[DEAD].worker.orders._open[4] = None
    found = kept(front, live("gateway"))
    assert "Front._seen_lately" in found
    assert "OpenOrders._open" in found


@pytest.mark.parametrize("role", ["prefill", "decode", "unified"])
def test_every_stage_of_a_leader_is_looked_at(role):
    leader = Leader(manifest(role, DECODE), settings(), {KV: 4})
    for stage in leader._stages:
        stage._seen_lately = {DEAD}
    found = set(kept(leader, live(role)))
    assert {f"{type(stage).__name__}._seen_lately" for stage in leader._stages} <= found


@pytest.mark.parametrize(("owner", "table"), JUSTIFIED)
def test_every_rule_is_about_a_table_that_there_is(owner, table):
    sources = [
        text
        for path in SOURCES.rglob("*.py")
        if re.search(rf"^class {owner}\b", text := path.read_text(), re.MULTILINE)
    ]
    assert any(
        re.search(rf"^ +(self\.)?{table}\b.*[:=]", text, re.MULTILINE) or f", self.{table}" in text
        for text in sources
    )
