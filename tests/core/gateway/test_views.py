"""What people who watch a gateway are shown of its core: requests and pairs."""

from tests.core.build import manifest, submit
from tests.core.driven import DrivenFront

from baton.core.door import PairView, RequestId
from baton.core.events import MessageReceived, PeerLost
from baton.core.gateway.front import Front
from baton.core.gateway.request import FrontSettings
from baton.core.ids import Boot, Micros
from baton.core.messages import Admitted, Credits, Paired, Register, Unpaired

GATEWAY, P, D = Boot(1), Boot(2), Boot(3)
WORKERS = {P: "prefill", D: "decode", Boot(4): "decode", Boot(5): "unified"}


def front(*workers: Boot) -> DrivenFront:
    found = DrivenFront(Front(GATEWAY, FrontSettings()))
    for boot in workers:
        role = WORKERS[boot]
        hear(found, boot, Register(f"{role}-{boot}", f"tcp://{boot}", manifest(role, boot)))
    return found


def hear(front: DrivenFront, sender: Boot, message: object, now: int = 0) -> None:
    front.step(MessageReceived(sender, message), now)


def pairs(front: DrivenFront, most: int = 9) -> tuple[PairView, ...]:
    return front.view([], most_pairs=most, now=Micros(0)).pairs


def test_a_pair_is_not_ready_then_used_then_refused_with_the_reason() -> None:
    service = front(P, D)
    (pair,) = pairs(service)
    assert (pair.prefill, pair.decode, pair.fabric) == ("prefill-2", "decode-3", "")
    assert "not connected" in pair.why
    hear(service, D, Paired(P, "shm"))
    assert pairs(service) == (PairView("prefill-2", "decode-3", "shm"),)
    hear(service, D, Unpaired(P, "dtype differs: float32, bfloat16"))
    (pair,) = pairs(service)
    assert (pair.fabric, pair.why) == ("", "dtype differs: float32, bfloat16")
    service.step(PeerLost(P, "gone"), 0)
    assert pairs(service) == ()


def test_a_pair_of_a_worker_that_drains_says_so() -> None:
    service = front(P, D)
    hear(service, D, Paired(P, "shm"))
    hear(service, D, Credits(1, D, {}, {}, 0, 0, draining=True))
    assert pairs(service) == (PairView("prefill-2", "decode-3", why="decode-3 drains"),)


def test_refused_pairs_come_first_and_what_is_left_out_is_counted() -> None:
    service = front(P, D, Boot(4), Boot(5))
    hear(service, D, Paired(P, "shm"))
    hear(service, Boot(4), Unpaired(P, "weights differ"))
    view = service.view([], most_pairs=2, now=Micros(0))
    assert [(p.prefill, p.decode, p.why) for p in view.pairs] == [
        ("prefill-2", "decode-4", "weights differ"),
        ("unified-5", "unified-5", ""),
    ]
    assert view.pairs_left_out == 1
    assert len(pairs(service)) == 3


def test_a_request_is_shown_where_it_is_and_not_when_it_has_ended() -> None:
    service = front(P, D)
    service.submit(submit(1), 1_000)
    one = RequestId(1)
    view = service.view([one, RequestId(7)], most_pairs=0, now=Micros(3_001_000))
    (request,) = view.requests.values()
    assert (request.state, request.age_ms, request.prefill, request.epoch) == (
        "waiting",
        3_000,
        "",
        0,
    )
    hear(service, D, Paired(P, "shm"), 4_000)
    key = service.key_of(one)
    request = service.view([one], most_pairs=0, now=Micros(5_001_000)).requests[one]
    assert (request.state, request.prefill, request.decode) == ("given", "prefill-2", "decode-3")
    assert (request.room, request.epoch, request.age_ms) == (key.room, key.epoch, 5_000)
    hear(service, D, Admitted(key))
    assert service.view([one], most_pairs=0, now=Micros(0)).requests[one].state == "admitted"


def test_looking_changes_nothing() -> None:
    service = front(P, D)
    hear(service, D, Paired(P, "shm"))
    service.submit(submit(1), 0)
    service.effects()
    before = service.next_wake(), service.credits(), service.open_requests
    service.view([RequestId(1)], most_pairs=9, now=Micros(10**9))
    assert (service.next_wake(), service.credits(), service.open_requests) == before
    assert service.effects() == []
