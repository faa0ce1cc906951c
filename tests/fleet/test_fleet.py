"""Fleets on a virtual clock: every request is answered, nothing stays behind, times are the sums of
the profile's parts, and steps in succession change nothing."""

import random

import msgspec
import pytest
from tests.fleet.build import (
    MESSAGE_US,
    STEP_US,
    TOKEN_US,
    mix,
    one,
    profile,
    rest,
    serve,
    split,
    times,
)

from baton.core.ids import TokenId
from baton.dev.fleet.fleet import Fleet, FleetRequest, FleetSettings
from baton.dev.fleet.profile import DraftGain, MachineProfile, in_proportion

UNIFIED = ("unified", "unified")
ROLES = [UNIFIED, split(1, 1), split(1, 2), split(2, 1)]


@pytest.mark.parametrize("roles", ROLES)
@pytest.mark.parametrize("most_steps", [1, 64])
def test_every_answer_has_its_tokens_and_every_page_comes_back(roles, most_steps):
    requests = mix(40, rate=6, prompt=300, answer=40)
    fleet, served = serve(roles, requests, profile(), most_steps=most_steps)
    assert [(s.tokens, s.failure) for s in served] == [(r.output_tokens, "") for r in requests]
    assert all(s.first is not None and s.at < s.first <= s.last for s in served)
    rest(fleet)
    for worker in fleet.workers.values():
        books = worker.leader.worker
        books.ledger.audit()
        assert books.ledger.clean
        assert not books.rooms
        assert worker.leader.kept() == {}
        assert worker.rank.kept() == {}


@pytest.mark.parametrize("roles", ROLES)
def test_too_small_pools_delay_requests_and_lose_none(roles):
    requests = mix(40, rate=6, prompt=300, answer=60)
    fleet, served = serve(roles, requests, profile(pages=60))
    assert [s.tokens for s in served if not s.failure] == [
        r.output_tokens for r, s in zip(requests, served, strict=True) if not s.failure
    ]
    assert sum(not s.failure for s in served) > 20
    rest(fleet)
    assert all(worker.leader.worker.ledger.clean for worker in fleet.workers.values())


def generating_us(machine: MachineProfile, prompt: int, answer: int) -> float:
    """Of all tokens after the first, one step each."""
    t = machine.steps
    contexts = [prompt + n for n in range(1, answer)]
    return sum(STEP_US + TOKEN_US + t.row_us + t.context_us * context for context in contexts)


def prompt_us(machine: MachineProfile, start: int, end: int) -> float:
    """Of one chunk of a prompt."""
    return STEP_US + (end - start) * (TOKEN_US + machine.steps.pair_us * (start + end) / 2)


def test_one_unified_request_takes_the_sum_of_its_parts():
    machine, (prompt, answer) = profile(step_tokens=512), (1200, 50)
    _, (served,) = serve(("unified",), one(prompt, answer), machine)
    chunks = [(0, 512), (512, 1024), (1024, 1200)]
    ttft = MESSAGE_US + sum(prompt_us(machine, a, b) for a, b in chunks) + MESSAGE_US
    assert served.ttft_us == pytest.approx(ttft, abs=1)
    assert served.tpot_us * (answer - 1) == pytest.approx(
        generating_us(machine, prompt, answer), abs=2
    )


def test_one_request_that_is_handed_over_takes_the_last_read_besides():
    """All but the last chunk's state is read while that chunk is computed."""
    machine, (prompt, answer) = profile(), (1200, 50)
    fleet, (served,) = serve(split(1, 1), one(prompt, answer), machine)
    last = machine.last_chunk_tokens
    chunks = [(0, prompt - last), (prompt - last, prompt)]
    ttft = MESSAGE_US + sum(prompt_us(machine, a, b) for a, b in chunks) + MESSAGE_US
    assert served.ttft_us == pytest.approx(ttft, abs=1)
    assert fleet.network.nbytes == prompt * machine.memory.token_bytes
    nbytes = last * machine.memory.token_bytes
    handoff = MESSAGE_US + 1e6 * nbytes / machine.wire.bytes_per_s + machine.wire.read_us
    after_first = handoff + generating_us(machine, prompt, answer)
    assert served.last - served.first == pytest.approx(after_first, abs=2)


def test_what_decode_has_cached_is_not_read_again():
    machine, request = profile(), one(1200, 4)[0]
    later = type(request)(5_000_000, request.prompt, request.output_tokens)
    fleet, served = serve(split(1, 1), [request, later], machine)
    assert served[1].ttft_us < served[0].ttft_us
    assert fleet.network.nbytes < 1.1 * 1200 * machine.memory.token_bytes


def test_reads_of_one_worker_share_its_wire():
    machine = profile(tokens_us=in_proportion(10.0, 0.01), pair_us=0.0)
    prompts = [type(r)(0, (n + 1,) * 1600, 2) for n, r in enumerate(one(1600, 2) * 4)]
    fleet, served = serve(split(1, 4), prompts, machine)
    once = 1e6 * fleet.network.nbytes / machine.wire.bytes_per_s
    assert max(s.last for s in served) - served[0].at > once


@pytest.mark.parametrize("pages", [4000, 120])
@pytest.mark.parametrize("roles", [("unified",), UNIFIED, split(1, 1)])
def test_steps_in_succession_change_nothing(roles, pages):
    requests = mix(50, rate=5, prompt=400, answer=80)
    single, each = serve(roles, requests, profile(pages=pages), most_steps=1)
    several, served = serve(roles, requests, profile(pages=pages), most_steps=64)
    for a, b in zip(times(each), times(served), strict=True):
        assert a == pytest.approx(b, abs=2)
    engines = [[w.engine for w in fleet.workers.values()] for fleet in (single, several)]
    assert [e.steps for e in engines[0]] == [e.steps for e in engines[1]]
    assert sum(e.turns for e in engines[1]) < sum(e.turns for e in engines[0]) / 2


@pytest.mark.parametrize("most_steps", [1, 64])
@pytest.mark.parametrize("roles", [("unified",), split(1, 1)])
def test_drafts_make_tokens_cheaper_and_prompts_not(roles, most_steps):
    machine, (prompt, answer) = profile(), (400, 60)
    drafting = msgspec.structs.replace(
        machine, drafts=DraftGain(accepted_per_step=1.5, step_cost=1.25)
    )
    _, (plain,) = serve(roles, one(prompt, answer), machine, most_steps=most_steps)
    _, (drafted,) = serve(roles, one(prompt, answer), drafting, most_steps=most_steps)
    assert drafted.ttft_us == plain.ttft_us
    saved = generating_us(machine, prompt, answer) * (1 - 1.25 / 2.5)
    assert plain.last - drafted.last == pytest.approx(saved, abs=answer)


@pytest.mark.parametrize("seed", range(6))
def test_workers_come_and_go_and_no_request_notices(seed):
    chance = random.Random(seed)
    machine = profile(pages=chance.choice([200, 4000]))
    requests = mix(60, rate=8, prompt=300, answer=60, seed=seed)
    fleet = Fleet(split(2, 2), machine, FleetSettings(most_steps=chance.choice([1, 64])))
    first = list(fleet.workers)
    for number, boot in enumerate(chance.sample(first, 2)):
        role, at = fleet.workers[boot].role, chance.randint(1_500_000, 6_000_000)
        fleet.clock.at(at, fleet.add, role)
        fleet.clock.at(at + 500_000 * number, fleet.drain, boot)
    served = fleet.serve(requests)
    assert [(s.tokens, s.failure) for s in served] == [(r.output_tokens, "") for r in requests]
    rest(fleet)
    assert len(fleet.workers) == 4
    assert sum(boot not in first for boot in fleet.workers) == 2
    assert {w.manifest.role for w in fleet.front.workers()} == {"prefill", "decode"}
    assert len(list(fleet.front.workers())) == 4
    for worker in fleet.workers.values():
        worker.leader.worker.ledger.audit()
        assert worker.leader.worker.ledger.clean
        assert worker.leader.kept() == worker.rank.kept() == {}


def test_one_seed_gives_one_run():
    requests = mix(40, rate=8, prompt=400, answer=40)
    first, second = (serve(split(1, 2), requests, profile())[1] for _ in range(2))
    assert first == second


def test_what_a_gateway_refuses_is_said():
    requests = mix(60, rate=1000, prompt=2000, answer=300)
    _, served = serve(("unified",), requests, profile(pages=400))
    refused = [s for s in served if s.failure]
    assert refused
    assert all(s.first is None or s.tokens < s.asked for s in refused)


def drawn(chance: random.Random) -> list[FleetRequest]:
    """Requests of all kinds, some with a beginning in common."""
    at, found = 0.0, []
    for number in range(chance.randint(5, 25)):
        at += chance.expovariate(chance.choice([2, 40]))
        shared = (TokenId(chance.randint(1, 3)),) * chance.choice([0, 64, 200])
        own = (TokenId(100 + number),) * chance.randint(1, 300)
        asked = chance.choice([1, 2, chance.randint(1, 120)])
        found.append(FleetRequest(round(at * 1e6), shared + own, asked))
    return found


@pytest.mark.parametrize("seed", range(16))
def test_whatever_comes_is_answered_and_leaves_nothing_behind(seed):
    chance = random.Random(seed)
    roles = chance.choice([("unified",), UNIFIED, split(1, 1), split(1, 2), split(2, 1)])
    machine = profile(
        pages=chance.choice([40, 60, 100, 4000]), step_tokens=chance.choice([64, 512, 2048])
    )
    requests, cached, found = drawn(chance), chance.random() < 0.7, []
    for most_steps in (1, 64):
        fleet, served = serve(roles, requests, machine, most_steps=most_steps, prefix_cache=cached)
        assert all(s.tokens == s.asked for s in served if not s.failure)
        rest(fleet)
        for worker in fleet.workers.values():
            worker.leader.worker.ledger.audit()
            assert worker.leader.worker.ledger.clean
            assert worker.leader.kept() == worker.rank.kept() == {}
        found.append(list(times(served)))
    if roles in (("unified",), split(1, 1)):  # else the gateway has a choice, by what it heard when
        for one, other in zip(*found, strict=True):
            assert one == pytest.approx(other, abs=2)
