"""Guest roles: another engine gives out pages and computes; what is handed over is what it has
computed, and nothing stays behind."""

import numpy as np
import pytest
from tests.core.build import KV, B, key, submit, ticket
from tests.core.guest_world import GuestWorld
from tests.core.world import World, expected

from baton.core.door import Fail, Finish
from baton.core.effects import Issue, Notice, Send, TellEngine
from baton.core.events import GuestAllocated, GuestScheduled, MessageReceived
from baton.core.ids import Boot, Page
from baton.core.messages import Clear, FailCode, Failed, FirstToken, LedgerView, Offer, Ticket
from baton.core.scheduler.guest_prefill import GIVEN_UP
from baton.core.work import ReadOutcome

P, D = Boot(2), Boot(3)
PROMPT = tuple(range(1, 12))  # two whole blocks and three positions


def worlds(**prefill) -> GuestWorld:
    world = GuestWorld()
    world.add_guest("prefill", P, **prefill)
    world.add_guest("decode", D)
    world.run()
    return world


def failures(world: GuestWorld) -> list[str]:
    return [m.detail for _, _, m in world.log if isinstance(m, Failed)]


@pytest.mark.parametrize("chunk", [1, 3, 4, 5, 8, 64])
@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
def test_tokens_are_right_whatever_the_chunks(chunk: int, length: int) -> None:
    world = worlds(chunk=chunk)
    world.submit(submit(1, PROMPT[:length]))
    world.run()
    assert world.tokens() == expected(PROMPT[:length], 4)
    assert failures(world) == []
    assert world.at_rest


def test_blocks_are_offered_while_later_ones_are_computed() -> None:
    world = worlds(chunk=4)
    world.submit(submit(1, PROMPT))
    world.run()
    offers = [m for _, _, m in world.log if isinstance(m, Offer)]
    assert [sorted((r.start, r.end) for r in o.runs.values()) for o in offers] == [
        *([], [(0, 1)], [(1, 2)], [(2, 3)], [])
    ]
    assert [o.record is not None for o in offers] == [False] * 4 + [True]


def test_what_the_engine_had_cached_is_sealed_and_offered_too() -> None:
    world = worlds(chunk=4)
    for number in (1, 2):
        world.submit(submit(number, PROMPT))
        world.run()
    assert world.tokens(1) == world.tokens(2) == expected(PROMPT, 4)
    second = [
        m for _, _, m in world.log if isinstance(m, Offer) and m.key.room == key(2).room and m.runs
    ]
    assert (second[0].runs[KV].start, second[0].runs[KV].end) == (0, 3)
    assert world.at_rest


def rot(world: GuestWorld, prompt: tuple[int, ...]) -> int:
    """A bit of a page in prefill's memory changes, the last one of this beginning."""
    host = world.hosts[P]
    page = host.cached[prompt]
    host.engine.pool[host.engine._at(np.array([page]), 1, 0, 1, 2)][3] ^= 4
    return page


@pytest.mark.parametrize("first", [1, 2])
def test_a_cached_page_that_rots_is_computed_again(first: int) -> None:
    world = worlds(chunk=4)
    world.submit(submit(1, PROMPT))
    world.run()
    rotten = rot(world, PROMPT[: first * B])
    world.submit(submit(2, PROMPT))
    world.run()
    assert failures(world) == [
        f"blocks [{first - 1}] of group full changed in prefill's own memory after they were computed"
    ]
    assert world.tokens(2) == expected(PROMPT, 4)
    assert rotten not in world.hosts[P].cached.values()
    assert world.at_rest


def test_a_rotten_page_that_the_engine_goes_on_using_never_becomes_a_token() -> None:
    """The retries hit the same page, and each of them fails."""
    world = worlds(chunk=64)
    world.hosts[P].obeys = False
    world.submit(submit(1, PROMPT))
    world.run()
    rot(world, PROMPT[:B])
    for number in (2, 3):
        world.submit(submit(number, PROMPT))
        world.run()
        assert world.tokens(number) == []
        end = world.end(number)
        assert isinstance(end, Fail)
        assert (end.code, "changed in prefill's own memory" in end.detail) == (
            FailCode.HANDOFF_FAILED,
            True,
        )
    other = tuple(range(60, 71))
    world.submit(submit(4, other))
    world.run()
    assert world.tokens(4) == expected(other, 4)
    assert world.at_rest


def test_a_page_that_rots_after_its_seal_is_not_served_to_the_retry() -> None:
    world = worlds(chunk=4)
    world.hosts[P].obeys = False
    world.freeze_reads = True
    world.submit(submit(1, PROMPT))
    world.run()
    rot(world, PROMPT[:B])
    world.freeze_reads = False
    world.advance(5_000)
    assert world.tokens() == expected(PROMPT, 1), "drawn before"
    assert "own memory" in failures(world)[0]
    assert all("after they were computed" in why for why in failures(world)[2:])
    assert isinstance(world.end(), Fail)


def test_what_was_computed_above_a_rotten_page_is_not_used_either() -> None:
    """The second request reads the rotten page while it computes the third block."""
    world = worlds(chunk=4)
    host = world.hosts[P]
    host.obeys = False
    world.submit(submit(1, PROMPT[:9]))
    world.run()
    rot(world, PROMPT[: 2 * B])
    world.submit(submit(2, (*PROMPT, 12, 13)))
    while not failures(world):
        world.step()
    above = host.cached[(*PROMPT, 12)]
    sums = host.node.leader.worker.ledger.sums
    assert sums.wrong(KV, [above], {}) == [0]


def test_what_the_engine_goes_on_computing_from_a_rotten_page_is_not_used_either() -> None:
    """The engine hears late that the epoch has failed: it computes the rest of the prompt, and all
    of that follows from the rotten page."""
    world = worlds(chunk=4, pages=20)
    host = world.hosts[P]
    world.submit(submit(1, PROMPT))
    world.run()
    rot(world, PROMPT[:B])
    long = (*PROMPT, *range(40, 60))
    world.submit(submit(2, long))
    while not failures(world):
        world.step()
    (request,) = [r for r in host.requests.values() if r.state == "computing"]
    while request.state == "computing":
        host.step()
    late = request.pages[-4:-1]  # the last one is not full, so it is in no cache
    ledger = host.node.leader.worker.ledger
    assert set(late) <= set(host.cached.values())
    assert ledger.sums.wrong(KV, late, {}) == [0, 1, 2]
    world.run()
    assert not set(late) & set(host.cached.values())
    assert world.tokens(2) == expected(long, 4)
    assert not ledger.tainted
    assert world.at_rest


def test_the_engine_hears_of_damaged_pages_though_no_room_is_left() -> None:
    """The engine ends a request later than the leader, and the next epoch goes elsewhere."""
    world = worlds(chunk=4, pages=20)
    host, leader = world.hosts[P], world.nodes[P].leader
    world.submit(submit(1, PROMPT))
    world.run()
    rot(world, PROMPT[:B])
    world.submit(submit(2, (*PROMPT, *range(40, 60))))
    while not failures(world):
        world.step()
    world.hold = lambda source, target, message: target == P and isinstance(message, Ticket)
    (request,) = [r for r in host.requests.values() if r.state == "computing"]
    abort, host.abort = host.abort, lambda key: None
    while leader.worker.rooms:
        world.step()
    late = set(request.pages[3:-1]) & set(host.cached.values())
    assert late
    abort(request.key)
    world.step()
    assert not late & set(host.cached.values())
    assert "condemned pages" not in leader.kept()


def test_a_page_that_is_computed_anew_has_new_sums() -> None:
    """Requests without a room write to pages of which sums are known."""
    world = worlds(chunk=64, pages=5)
    world.submit(submit(1, PROMPT))
    world.run()
    other = tuple(range(60, 80))
    world.hosts[P].compute_alone(other)
    assert set(world.hosts[P].cached.values()) == set(range(5)), "every page was written to"
    world.submit(submit(2, other[:19]))
    world.run()
    assert world.tokens(2) == expected(other[:19], 4)
    assert failures(world) == []
    rot(world, other[:B])
    world.submit(submit(3, other[:19]))
    world.run()
    assert len(failures(world)) == 1, "the second request has made its sums known"
    assert world.tokens(3) == expected(other[:19], 4)
    assert world.at_rest


def test_many_requests_share_few_pages_and_nothing_is_lost() -> None:
    world = GuestWorld()
    world.add_guest("prefill", P, pages=7, chunk=3)
    world.add_guest("decode", D, pages=9)
    world.run()
    prompts = {n: tuple(range(n, n + 5 + n % 7)) for n in range(1, 13)}
    for number, prompt in prompts.items():
        world.submit(submit(number, prompt))
    world.advance(20_000)
    assert {n: world.tokens(n) for n in prompts} == {n: expected(p, 4) for n, p in prompts.items()}
    assert set(failures(world)) <= {"the engine has taken its pages back for other requests"}
    assert world.at_rest


@pytest.mark.parametrize("after", range(0, 60, 1))
def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind(after: int) -> None:
    world = worlds(chunk=3)
    world.submit(submit(1, PROMPT))
    for _ in range(after):
        world.step()
    world.cancel(1)
    world.run()
    assert world.at_rest
    world.submit(submit(2, PROMPT))
    world.run()
    assert world.tokens(2) == expected(PROMPT, 4)
    assert world.at_rest


@pytest.mark.parametrize("steps", range(2, 14))
def test_a_prompt_whose_pages_the_engine_takes_back_is_computed_in_another_epoch(
    steps: int,
) -> None:
    world = worlds(chunk=2)
    world.submit(submit(1, PROMPT))
    for _ in range(steps):
        world.step()
    preempted = world.hosts[P].preempt()
    world.advance(5_000)
    assert world.tokens() == expected(PROMPT, 4)
    assert len(failures(world)) == preempted
    assert world.at_rest


def test_an_engine_that_gives_pages_away_too_early_is_found_out_by_the_seal() -> None:
    """As an engine without a guest does: another request writes to the pages before decode has
    read them."""
    world = GuestWorld()
    world.add_guest("prefill", P, pages=3, chunk=64, early=True)
    world.add_guest("decode", D)
    world.run()
    world.freeze_reads = True
    world.submit(submit(1, PROMPT))
    world.run()
    world.submit(submit(2, tuple(range(50, 61))))
    world.run()
    world.freeze_reads = False
    world.advance(5_000)
    assert failures(world), "the bytes were others"
    for number, prompt in ((1, PROMPT), (2, tuple(range(50, 61)))):
        assert world.tokens(number) == expected(prompt, 4) or isinstance(world.end(number), Fail)


def test_a_torn_read_never_becomes_a_token() -> None:
    world = worlds(chunk=64)
    torn = []

    def land(read, node) -> ReadOutcome:
        if not torn:
            torn.append(read)
            node.engine.pool[read.copies[0].target[0]] ^= 1
        return ReadOutcome.OK

    world.on_landed = land
    world.submit(submit(1, PROMPT))
    world.run()
    assert torn
    assert world.tokens() == expected(PROMPT, 4)
    assert world.at_rest


def test_when_decode_dies_the_request_goes_on_elsewhere_and_prefill_keeps_nothing() -> None:
    world = worlds(chunk=4)
    world.add_guest("decode", 4)
    world.run()
    world.submit(submit(1, PROMPT, max_tokens=6))
    while len(world.tokens()) < 2:
        world.step()
    loading = next(boot for boot in (D, Boot(4)) if world.nodes[boot].leader.worker.rooms)
    world.lose(loading)
    world.run()
    assert world.tokens() == expected(PROMPT, 6)
    assert isinstance(world.end(), Finish)
    assert world.at_rest


def test_when_prefill_dies_the_request_goes_on_elsewhere_and_decode_keeps_nothing() -> None:
    world = worlds(chunk=2)
    world.add_guest("prefill", 4, chunk=2)
    world.run()
    world.submit(submit(1, PROMPT))
    while not any(isinstance(m, Offer) and m.number == 2 for _, _, m in world.log):
        world.step()
    computing = next(boot for boot in (P, Boot(4)) if world.nodes[boot].leader.worker.rooms)
    world.lose(computing)
    world.run()
    assert world.tokens() == expected(PROMPT, 4)
    assert world.at_rest


def test_a_request_that_is_faster_than_its_ticket_waits_for_it() -> None:
    world = worlds(chunk=4)
    world.hold = lambda source, target, message: isinstance(message, Ticket) and target == P
    world.submit(submit(1, PROMPT))
    world.run()
    assert world.tokens() == []
    world.release()
    world.run()
    assert world.tokens() == expected(PROMPT, 4)
    assert failures(world) == []
    assert world.at_rest


def test_a_request_whose_ticket_never_comes_is_released() -> None:
    """Somebody sends a request with a room that no gateway has drawn."""
    world = worlds()
    host, leader = world.hosts[P], world.nodes[P].leader
    host.begin(ticket(9, length=9))
    world.run()
    assert leader.kept() == {"early requests": 1}
    world.advance(2_000)
    assert world.at_rest


def test_a_ticket_that_comes_too_late_fails_at_once_and_the_next_epoch_goes_on() -> None:
    world = worlds(chunk=4)
    late = []

    def hold(source, target, message) -> bool:
        late.append(isinstance(message, Ticket) and target == P and message.key.epoch == 1)
        return late[-1]

    world.hold = hold
    world.submit(submit(1, PROMPT))
    world.run()
    world.advance(1_500)
    assert any(late)
    world.release()
    world.run()
    assert failures(world) == [LATE]
    assert world.tokens() == expected(PROMPT, 4)
    assert world.at_rest


def test_a_page_that_rots_before_its_ticket_comes_is_known_from_another_handoff() -> None:
    """The engine has computed the prompt before its ticket came. Another request has been handed
    over with these pages, so what they were is known."""
    world = worlds(chunk=4)
    first = key(1).room
    world.hold = lambda source, target, message: (
        isinstance(message, Ticket) and target == P and message.key.room == first
    )
    world.submit(submit(1, PROMPT))
    world.run()
    world.submit(submit(2, PROMPT))
    world.run()
    assert world.tokens(2) == expected(PROMPT, 4)
    rot(world, PROMPT[: 2 * B])
    world.release()
    world.run()
    assert failures(world) == [
        "blocks [1] of group full changed in prefill's own memory after they were computed"
    ]
    assert world.tokens(1) == expected(PROMPT, 4)
    assert world.at_rest


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("steps", range(13))
def test_a_prompt_that_decode_computes_itself_ends_the_handoff_and_no_epoch(
    steps: int, frozen: bool
) -> None:
    """Wherever prefill is with it by then. The answer takes longer than a room may wait."""
    world = worlds(chunk=2)
    prefill, decode = world.hosts[P], world.hosts[D]
    prefill.frozen = frozen
    world.submit(submit(1, PROMPT))
    for _ in range(steps):
        world.step()
    decode.patient = False
    while not world.tokens():
        world.step()
    decode.frozen = True
    world.advance(40_000)
    assert world.end() is None
    assert not world.nodes[P].leader.worker.rooms, "prefill has no part in it any more"
    decode.frozen = prefill.frozen = False
    world.run()
    assert failures(world) == []
    assert world.tokens() == expected(PROMPT, 4)
    assert isinstance(world.end(), Finish)
    assert world.at_rest


def test_a_client_that_leaves_while_decode_computes_the_prompt_leaves_nothing_behind() -> None:
    world = worlds(chunk=2)
    world.hosts[D].patient = False
    world.submit(submit(1, PROMPT))
    while not world.tokens():
        world.step()
    world.cancel(1)
    world.run()
    assert world.at_rest


LATE = "its ticket came more than 1000 ms after the engine had begun with it"


@pytest.mark.parametrize("others", [0, GIVEN_UP])
def test_pages_of_a_later_chunk_never_count_as_the_first_ones(others: int) -> None:
    """The request's first chunk was given up, and so were many others since, more than are
    remembered."""
    world = worlds()
    leader = world.nodes[P].leader
    for numbers in ((1,), range(2, others + 2)):
        for number in numbers:
            leader.step(GuestAllocated(key(number), {KV: (Page(1),)}, 0, True), world.now)
            leader.step(GuestScheduled({key(number): (0, 4)}, {}), world.now)
        world.advance(1_500)
    second = GuestAllocated(key(1), {KV: (Page(2),)}, 4, False)
    rows = GuestScheduled({key(1): (4, 5)}, {})
    for event in (second, rows):
        leader.step(event, world.now)
    leader.step(MessageReceived(world.GATEWAY, ticket()), world.now)
    for event in (second, rows):
        leader.step(event, world.now)
    world.run()
    assert not [m for _, _, m in world.log if isinstance(m, Offer)]
    assert failures(world) == [LATE]
    assert leader.kept() == {"epochs": 1}, "nobody has closed the room"


def test_pages_for_a_room_that_decode_does_not_know_are_given_back_at_once() -> None:
    world = worlds()
    leader = world.nodes[D].leader
    leader.step(GuestAllocated(key(9), {KV: (Page(1),)}, 0, True), world.now)
    told = {e.notice for e in leader.effects() if isinstance(e, TellEngine)}
    assert told == {Notice.FAILED}
    world.run()
    assert world.at_rest


@pytest.mark.parametrize("boot", [P, D])
def test_pools_of_another_engine_are_never_cleared_and_the_answer_says_so(boot: Boot) -> None:
    world = worlds()
    leader = world.nodes[boot].leader
    leader.step(MessageReceived(World.GATEWAY, Clear(7)), world.now)
    effects = leader.effects()
    assert not [e for e in effects if isinstance(e, Issue)], "no rank is ordered to do it"
    (answer,) = [e.message for e in effects if isinstance(e, Send)]
    assert isinstance(answer, LedgerView)
    assert (answer.question, answer.cleared) == (7, ())


def test_a_step_that_leaves_out_a_part_of_the_prompt_ends_the_epoch() -> None:
    world = worlds(chunk=4)
    world.submit(submit(1, PROMPT))
    host = world.hosts[P]
    while not any(r.done for r in host.requests.values()):
        world.step()
    (request,) = host.requests.values()
    request.done += 1  # it computes from one position later on
    world.advance(5_000)
    assert any("computes from position" in why for why in failures(world))
    assert world.at_rest


def test_an_answer_of_one_token_does_not_fail_on_decode_before_the_gateway_hears_its_end() -> None:
    """Its end comes from prefill, on a connection of its own."""
    world = worlds()
    world.hold = lambda source, target, message: isinstance(message, FirstToken)
    world.submit(submit(1, PROMPT, max_tokens=1))
    world.run()
    assert world.tokens(1) == expected(PROMPT, 1), "decode has it too"
    world.release()
    world.run()
    assert failures(world) == []
    assert world.clean
