"""Runs of the in-process world that are worth a journal: the tests of the roles, played in a
recorded world."""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tests.core.build import submit
from tests.core.driven import T0
from tests.core.scheduler import test_roles as roles
from tests.core.world import expected
from tests.trace.rig import RecordedWorld

from baton.core.events import ReadRefused
from baton.core.ids import Boot
from baton.core.messages import Admitted, Offer, Tokens
from baton.core.work import ReadEnded, ReadOutcome, Released


class Lazy(deque[Any]):
    """An engine's answers, which nobody sees before they are `ready`."""

    ready = False

    def __bool__(self) -> bool:
        return self.ready and len(self) > 0


def slow_engine() -> None:
    """A room is dropped while prefill computes it; the next one waits for its pages."""
    world = roles.split(pages=6)
    engine = world.nodes[Boot(roles.P)].engine
    engine.done = lazy = Lazy()
    world.submit(submit(1, roles.prompt(14)))
    world.run()
    assert len(lazy) == 1
    world.cancel(1)
    world.submit(submit(2, roles.prompt(18, 2)))
    world.run()
    assert world.tokens(2) == []
    lazy.ready = True
    world.run()
    assert world.tokens(2) == expected(roles.prompt(18, 2), 4)
    assert world.clean


def late_admitted() -> None:
    """The gateway hears the first token before it hears `Admitted`."""
    world = roles.split()
    world.hold = lambda source, target, message: (
        isinstance(message, Admitted) and target == world.GATEWAY
    )
    world.submit(submit(1, roles.prompt(5)))
    world.run()
    world.release()
    world.run()
    assert world.tokens() == expected(roles.prompt(5), 4)


def unknown_read() -> None:
    """A read ends unknown, and its room with it; only when it is released the pages come back. One
    more is refused."""
    world = roles.split()
    world.freeze_reads = True
    world.submit(submit(1, roles.prompt(9)))
    world.submit(submit(2, roles.prompt(9, 1)))
    world.run()
    node = world.nodes[Boot(roles.D)]
    (first, _), (second, _) = list(node.reads.items())[:2]
    del node.reads[first], node.reads[second]
    world._perform(node, node.rank.step(ReadRefused(second, "too many"), T0))
    world._perform(node, node.rank.step(ReadEnded(first, ReadOutcome.UNKNOWN, "who knows"), T0))
    world.freeze_reads = False
    world.run()
    assert not world.clean
    assert world.tokens(2) == expected(roles.prompt(9, 1), 4)
    world._perform(node, node.rank.step(Released(first), T0))
    world.run()
    assert world.tokens(1) == expected(roles.prompt(9), 4)
    assert world.clean


SCENARIOS: Mapping[str, Callable[[], Any]] = {
    "chunks and pages": lambda: roles.test_tokens_are_right_whatever_chunks_and_pages(
        23, 3, (2, 3)
    ),
    "unified": roles.test_unified_draws_the_same_tokens,
    "eight requests": roles.test_requests_share_the_workers,
    "tight pools": roles.test_tight_pools_give_way_and_everything_still_ends_right,
    "too large": roles.test_a_request_larger_than_the_pool_is_refused_by_name,
    "one token": roles.test_ending_at_the_first_token_never_enters_decode,
    "flipped bit": roles.test_a_flipped_bit_is_fetched_again,
    "doubt": roles.test_damage_that_goes_on_is_doubted_and_found_intact_at_the_source,
    "damage that stays": roles.test_damage_that_persists_ends_with_a_typed_error_and_nothing_left,
    "damaged source": roles.test_damage_in_the_sources_pages_is_found_by_its_birth_sum_and_opens_a_new_epoch,
    "failed read": roles.test_a_read_that_fails_is_tried_again,
    **{
        f"abort at {n}": lambda n=n: roles.test_an_abort_at_any_step_leaves_nothing(n)
        for n in range(0, 60, 10)
    },
    **{
        f"{'prefill' if lost == roles.P else 'decode'} lost at {n}": lambda n=n, lost=lost: (
            roles.test_a_worker_lost_at_any_step_leaves_nothing_on_the_others(n, lost)
        )
        for n in range(0, 60, 12)
        for lost in (roles.P, roles.D)
    },
    "gateway lost": lambda: roles.test_a_lost_gateway_leaves_the_workers_clean(20),
    "late offers": lambda: roles.test_late_messages_change_nothing_but_time(Offer),
    "late tokens": lambda: roles.test_late_messages_change_nothing_but_time(Tokens),
    "an offer that never comes": lambda: (
        roles.test_an_offer_that_never_comes_ends_the_request_in_bounded_time(1)
    ),
    "cancelled reads": roles.test_reads_that_never_end_are_cancelled_with_the_request,
    "offer before its ticket": roles.test_an_offer_before_its_ticket_waits_without_pages_and_is_answered_stale,
    "session cut": roles.test_a_session_cut_between_prefill_and_decode_ends_the_rooms_of_both,
    "slow engine": slow_engine,
    "late admitted": late_admitted,
    "unknown read": unknown_read,
    "random aborts": roles.test_many_requests_with_random_aborts_leave_nothing,
    "old epoch": roles.test_a_higher_epoch_ends_the_lower_and_an_old_one_changes_nothing,
}


def journals(name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What the processes of a scenario wrote, by process."""
    made: list[RecordedWorld] = []

    def world(**front: int) -> RecordedWorld:
        made.append(RecordedWorld(**front))
        return made[-1]

    monkeypatch.setattr(roles, "World", world)
    SCENARIOS[name]()
    return {
        f"{i}.{process}": data for i, w in enumerate(made) for process, data in w.finished().items()
    }
