"""The hooks in vLLM's scheduler, over the real link: what vLLM does, and what the leader says."""

import time
from types import SimpleNamespace as Made

import pytest
from tests.core.build import drawn, key

from baton.core.effects import Evict, Notice, TellEngine
from baton.core.events import GuestAllocated, GuestComputes, GuestFinished, GuestScheduled
from baton.core.ids import Page
from baton.vllm.guest_link import LeaderEnd, SchedulerEnd
from baton.vllm.names import FULL, key_of
from baton.vllm.scheduler_side import SchedulerSide, StepNotes

ROOM = {"room": key().room, "epoch": 1}


def request(name="r", params=ROOM, tokens=100, said=()):
    return Made(
        request_id=name, kv_transfer_params=params, num_tokens=tokens, output_token_ids=list(said)
    )


def scheduled(new=(), old=(), tokens=None, preempted=(), resumed=()):
    """What vLLM's scheduler hands to the hook. new: (name, blocks, computed); old: the same"""
    return Made(
        scheduled_new_reqs=[
            Made(req_id=name, block_ids=(blocks,), num_computed_tokens=start)
            for name, blocks, start in new
        ],
        scheduled_cached_reqs=Made(
            req_ids=[name for name, _, _ in old],
            new_block_ids=[(blocks,) if blocks is not None else None for _, blocks, _ in old],
            num_computed_tokens=[start for _, _, start in old],
            resumed_req_ids=set(resumed),
        ),
        num_scheduled_tokens=tokens or {},
        preempted_req_ids=set(preempted),
    )


class Pair:
    """The scheduler's side and the leader's end."""

    def __init__(self, *, producer: bool) -> None:
        self.leader, self.now = LeaderEnd(), 0.0
        self.side = SchedulerSide(
            producer=producer, block_tokens=32, patience_s=5.0, clock=lambda: self.now
        )
        self.side.connect(SchedulerEnd(self.leader.address))

    def heard(self, count: int) -> list:
        """What the leader has heard since the last call: so many events."""
        last = GuestFinished(key(98), None)  # what was said in order has come when the last has
        self.side._say(last)
        found, until = [], time.monotonic() + 10
        while last not in found and time.monotonic() < until:
            found += self.leader.events()
        assert found.pop() == last
        assert len(found) == count
        return found

    def tell(self, notice: Notice, number: int = 1) -> StepNotes:
        """The leader says something; what the next step tells the ranks."""
        self.leader.tell(TellEngine(key(number), notice))
        last = key(99)  # what is said in order has come when the last has
        self.leader.tell(TellEngine(last, Notice.MAY_LOAD))
        until = time.monotonic() + 10
        while last not in self.side._said and time.monotonic() < until:
            self.leader.events()
            self.side._hear()
        del self.side._said[last]
        return self.side.step(scheduled())

    def close(self) -> None:
        self.side.close()
        self.leader.close()


@pytest.fixture
def prefill():
    pair = Pair(producer=True)
    yield pair
    pair.close()


@pytest.fixture
def decode():
    pair = Pair(producer=False)
    yield pair
    pair.close()


def test_chunks_of_a_prompt_are_said_with_the_pages_they_got(prefill: Pair) -> None:
    assert prefill.side.matched(request(), 0) == (0, False)
    first = prefill.side.step(scheduled(new=[("r", [4, 5], 32)], tokens={"r": 30}))
    assert first.computed == {key(): 62}
    second = prefill.side.step(scheduled(old=[("r", [7], 62)], tokens={"r": 38}))
    assert second.computed == {key(): 100}
    assert prefill.heard(4) == [
        GuestAllocated(key(), {FULL: (Page(4), Page(5))}, 32, True),
        GuestScheduled({key(): (32, 62)}, {FULL: (Page(5),)}),
        GuestAllocated(key(), {FULL: (Page(7),)}, 62, False),
        GuestScheduled({key(): (62, 100)}, {FULL: (Page(7),)}),
    ]


def test_a_prompt_keeps_its_pages_until_it_is_released(prefill: Pair) -> None:
    prefill.side.matched(request(), 0)
    prefill.side.step(scheduled(new=[("r", [4], 0)], tokens={"r": 10}))
    assert prefill.side.finished(request(said=[77]))
    assert prefill.heard(3)[-1] == GuestFinished(key(), drawn(77))
    assert prefill.side.step(scheduled()).released == []
    notes = prefill.tell(Notice.RELEASED)
    assert (notes.released, notes.ended) == (["r"], [key()])
    assert prefill.tell(Notice.RELEASED).released == [], "once"


def test_a_prompt_that_vllm_preempts_is_over_and_says_nothing_more(prefill: Pair) -> None:
    prefill.side.matched(request(), 0)
    prefill.side.step(scheduled(new=[("r", [4], 0)], tokens={"r": 10}))
    prefill.heard(2)
    prefill.side.step(scheduled(preempted=["r"]))
    assert prefill.heard(1) == [GuestFinished(key(), None, preempted=True)]
    assert prefill.tell(Notice.RELEASED).released == [], "vLLM has not ended it"
    prefill.side.step(scheduled(old=[("r", [9], 0)], tokens={"r": 10}, resumed=["r"]))
    prefill.side.step(scheduled(old=[("r", None, 10)], tokens={"r": 10}))
    assert prefill.side.finished(request(said=[77])), "its pages stay until the leader answers"
    assert prefill.heard(2) == [
        GuestScheduled({}, {FULL: (Page(9),)}),
        GuestFinished(key(), drawn(77)),
    ]
    assert prefill.tell(Notice.RELEASED).released == ["r"]


def test_decode_waits_until_it_may_load(decode: Pair) -> None:
    assert decode.side.matched(request(), 32) == (None, False)
    decode.tell(Notice.MAY_LOAD)
    assert decode.side.matched(request(), 32) == (68, True)
    decode.side.allocated(request(), [1, 2, 3, 4], 68)
    decode.side.allocated(request(), [1, 2, 3, 4, 5], 0)  # vLLM says it again after the load
    assert decode.heard(1) == [
        GuestAllocated(key(), {FULL: (Page(1), Page(2), Page(3), Page(4))}, 32, True)
    ]
    notes = decode.tell(Notice.LOADED)
    assert (notes.loaded, notes.failed) == (["r"], [])
    assert not decode.side.finished(request())
    assert decode.heard(1) == [GuestFinished(key(), None)]


def test_a_request_that_vllm_preempts_after_its_load_is_computed_here(decode: Pair) -> None:
    """vLLM resets what is computed to what its own cache has, and asks again: also about tokens
    that it has generated meanwhile. It does so each time that the request gets pages."""
    decode.side.matched(request(), 0)
    decode.tell(Notice.MAY_LOAD)
    decode.side.allocated(request(), [1, 2], 100)
    decode.heard(1)
    assert decode.tell(Notice.LOADED).loaded == ["r"]
    for longer in (103, 140):
        decode.side.step(scheduled(preempted=["r"]))
        resumed = request(tokens=longer)
        assert decode.side.matched(resumed, 32) == (0, False)
        decode.side.allocated(resumed, [5, 6, 7], 0)
        decode.side.step(scheduled(old=[("r", [5, 6, 7], 32)], tokens={"r": 71}, resumed=["r"]))
    decode.heard(0)
    assert not decode.side.finished(request())
    assert decode.heard(1) == [GuestFinished(key(), None)]
    assert decode.side._said == {}


def test_a_load_that_fails_is_said_once_and_then_computed_here(decode: Pair) -> None:
    decode.side.matched(request(), 0)
    decode.tell(Notice.MAY_LOAD)
    decode.side.allocated(request(), [1], 100)
    notes = decode.tell(Notice.FAILED)
    assert (notes.loaded, notes.failed) == ([], ["r"])
    assert decode.tell(Notice.FAILED).failed == []
    assert decode.side.matched(request(), 0) == (0, False)


def test_a_request_that_ends_while_it_is_loaded_is_held_until_nothing_is_read(decode: Pair) -> None:
    decode.side.matched(request(), 0)
    decode.tell(Notice.MAY_LOAD)
    decode.side.allocated(request(), [1], 100)
    assert not decode.side.finished(request()), "vLLM waits by itself"
    assert decode.tell(Notice.FAILED).failed == ["r"]


def test_a_room_that_fails_before_its_pages_are_given_is_computed_here(decode: Pair) -> None:
    decode.side.matched(request(), 0)
    assert decode.tell(Notice.FAILED).failed == [], "vLLM does not wait for it"
    assert decode.side.matched(request(), 0) == (0, False)


def test_a_request_that_nobody_hands_over_does_not_wait_for_ever(decode: Pair) -> None:
    assert decode.side.matched(request(), 0) == (None, False)
    decode.now = 4.9
    assert decode.side.matched(request(), 0) == (None, False)
    decode.now = 5.0
    for _ in range(2):  # vLLM asks again while it has no pages for it
        assert decode.side.matched(request(), 0) == (0, False)
    decode.heard(0)
    for _ in range(2):  # again after it was preempted
        decode.side.allocated(request(), [1], 0)
        assert decode.side.matched(request(), 0) == (0, False)
    assert decode.heard(1) == [GuestComputes(key())]
    decode.tell(Notice.MAY_LOAD)
    assert decode.heard(1) == [GuestComputes(key())], "the leader did not know it before"
    assert decode.side.matched(request(), 0) == (0, False)
    assert not decode.side.finished(request())
    assert decode.heard(1) == [GuestFinished(key(), None)]
    assert decode.side._own == set()


def test_a_request_that_vllm_will_not_load_is_computed_here_as_its_leader_learns(
    decode: Pair,
) -> None:
    """vLLM loads nothing for a request that skips its prefix cache."""
    decode.side.matched(request(), 0)
    decode.tell(Notice.MAY_LOAD)
    assert decode.side.matched(request(), 0) == (100, True)
    decode.side.allocated(request(), [1], 0)
    assert decode.heard(1) == [GuestComputes(key())]


def test_requests_without_a_room_are_none_of_ours_but_for_what_they_write(
    prefill: Pair, decode: Pair
) -> None:
    for pair in (prefill, decode):
        assert pair.side.matched(request(params=None), 0) == (0, False)
        assert not pair.side.finished(request(params=None))
    prefill.side.step(scheduled(new=[("r", [3, 4], 32)], tokens={"r": 10}))
    prefill.side.step(scheduled(old=[("r", [5], 62)], tokens={"r": 10}))
    prefill.side.step(scheduled(old=[("r", [3, 8, 9], 32)], tokens={"r": 10}, resumed=["r"]))
    prefill.side.step(scheduled(old=[("r", None, 62)], tokens={"r": 10}))
    assert prefill.heard(3) == [
        GuestScheduled({}, {FULL: written}) for written in ((4,), (5,), (8, 9))
    ]
    decode.side.step(scheduled(new=[("r", [4], 0)], tokens={"r": 10}))
    decode.heard(0)


def test_damaged_pages_leave_vllms_prefix_cache(prefill: Pair) -> None:
    evicted: list[set[int]] = []
    prefill.side.evicts(evicted.append)
    prefill.leader.tell(Evict({FULL: (Page(3), Page(7))}))
    prefill.tell(Notice.RELEASED)
    assert evicted == [{3, 7}]


def test_a_request_that_arrives_finds_no_page_that_was_found_damaged_before(prefill: Pair) -> None:
    """vLLM asks its prefix cache first, and the connector only then."""
    evicted: list[set[int]] = []
    prefill.side.evicts(evicted.append)
    prefill.leader.tell(Evict({FULL: (Page(3),)}))
    until = time.monotonic() + 10
    while not evicted and time.monotonic() < until:
        prefill.leader.events()
        prefill.side.arrives()
    assert evicted == [{3}]


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"room": "0" * 31, "epoch": 1},
        {"room": "G" * 32, "epoch": 1},
        {"room": 5, "epoch": 1},
        {"room": "0" * 32, "epoch": "1"},
        {"room": "0" * 32},
        {"do_remote_prefill": True, "remote_block_ids": [1]},
    ],
)
def test_what_is_not_a_room_names_none(params) -> None:
    assert key_of(params) is None


def test_a_second_request_that_names_the_same_room_is_computed_by_itself(decode: Pair) -> None:
    """Whoever sends a room twice must not take the state of the first request, which is loaded into
    the pages of that one alone."""
    first, second = request("r"), request("again")
    assert decode.side.matched(first, 0) == (None, False)
    assert decode.side.matched(second, 0) == (0, False)
    decode.tell(Notice.MAY_LOAD)
    decode.side.allocated(second, [8, 9], 0)
    assert decode.side.matched(first, 0) == (100, True)
    assert decode.side.matched(second, 0) == (0, False)
    decode.side.allocated(first, [1, 2], 100)
    assert decode.heard(1) == [GuestAllocated(key(), {FULL: (Page(1), Page(2))}, 0, True)]
    assert decode.tell(Notice.LOADED).loaded == ["r"]
    assert decode.side.finished(second) is False
    assert decode.heard(0) == []
    assert decode.side.finished(first) is False
    assert decode.heard(1) == [GuestFinished(key(), None)]


def test_a_second_prompt_that_names_the_same_room_is_not_handed_over(prefill: Pair) -> None:
    first, second = request("r"), request("again")
    prefill.side.matched(first, 0)
    prefill.side.matched(second, 0)
    tokens = {"r": 64, "again": 64}
    new = [("r", [4, 5], 0), ("again", [6, 7], 0)]
    assert prefill.side.step(scheduled(new=new, tokens=tokens)).computed == {key(): 64}
    pages = {FULL: tuple(map(Page, (4, 5, 6, 7)))}
    assert prefill.heard(2) == [
        GuestAllocated(key(), {FULL: (Page(4), Page(5))}, 0, True),
        GuestScheduled({key(): (0, 64)}, pages),
    ]
    assert prefill.side.finished(second) is False
    assert prefill.side.finished(first) is True
    assert prefill.heard(1) == [GuestFinished(key(), None)]
