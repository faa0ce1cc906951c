"""Offers before their ticket: kept for a while, bounded, and only those of the worker that the
ticket names."""

from tests.core.build import key

from baton.core.handoff import early
from baton.core.handoff.early import LIFE, EarlyOffers
from baton.core.ids import Boot, Micros
from baton.core.messages import Offer

P, OTHER = Boot(2), Boot(9)


def offer(number: int = 0, room: int = 1) -> Offer:
    return Offer(key(room), number, {}, (), None)


def test_the_ticket_finds_the_offers_of_the_worker_it_names():
    table = EarlyOffers()
    assert all(table.keep(P, offer(n), Micros(0)) for n in (1, 0))
    assert sorted(table.take(key(1), P)) == [0, 1]
    assert table.take(key(1), P) == {}


def test_offers_of_another_worker_are_not_the_rooms_and_keep_none_of_it_out():
    table = EarlyOffers()
    assert table.keep(OTHER, offer(1), Micros(0))
    assert table.keep(P, offer(0), Micros(0))
    assert list(table.take(key(1), P)) == [0]
    assert table.timer() is None, "those of others have gone with it"


def test_their_time_is_over_once():
    table = EarlyOffers()
    table.keep(P, offer(), Micros(10))
    assert table.timer() == 10 + LIFE
    assert table.expired(Micros(9 + LIFE)) == []
    assert table.expired(Micros(10 + LIFE)) == [(key(1), P)]
    assert table.expired(Micros(10 + LIFE)) == []
    assert table.timer() is None


def test_a_lost_worker_takes_its_offers_along():
    table = EarlyOffers()
    table.keep(P, offer(room=1), Micros(0))
    table.keep(OTHER, offer(room=2), Micros(0))
    table.lost(P)
    assert table.take(key(1), P) == {}
    assert list(table.take(key(2), OTHER)) == [0]


def test_who_offered_may_take_it_back():
    table = EarlyOffers()
    table.keep(P, offer(room=1), Micros(0))
    table.withdraw(key(1), OTHER)
    table.withdraw(key(2), P)
    assert list(table.take(key(1), P)) == [0]
    table.keep(P, offer(room=1), Micros(0))
    table.withdraw(key(1), P)
    assert table.take(key(1), P) == {}
    assert table.timer() is None


def test_the_table_is_bounded_in_rooms_and_in_offers_of_a_room(monkeypatch):
    monkeypatch.setattr(early, "ROOMS", 2)
    monkeypatch.setattr(early, "OFFERS", 3)
    table = EarlyOffers()
    assert [table.keep(P, offer(room=r), Micros(0)) for r in (1, 2, 3)] == [True, True, False]
    assert [table.keep(P, offer(n), Micros(0)) for n in (1, 2, 3)] == [True, True, False]
