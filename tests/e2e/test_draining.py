"""Workers that drain, end, come back and change their role while clients ask: every answer is the
right one, and no request has to begin again."""

import re
import signal
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest
from tests.e2e.service import Service, wait_for

CLIENTS = 4
PROMPTS = [[1 + (7 * i + 13 * n) % 250 for i in range(20 + 31 * n)] for n in range(6)]
ANSWER = 40
DRAIN = ("--drain-timeout", "60")


@pytest.fixture
def service(tmp_path: Path, tiny: Path) -> Iterator[Service]:
    """2 + 2 workers that take their time for each token."""
    service = Service(tmp_path, tiny)
    try:
        service.start_gateway()
        for role in ("prefill", "decode"):
            for n in range(2):
                service.start_worker(role, *DRAIN, name=f"{role}-{n}")
        service.wait_ready()
        wait_for(partial(has_pairs, service, 4), seconds=30, why="4 pairs")
        yield service
    finally:
        service.close()


class Load:
    """Clients that ask again and again. An answer that differs from the first one of its prompt is
    wrong."""

    def __init__(self, service: Service) -> None:
        self.service, self.right, self.wrong = service, 0, list[Any]()
        self._expected = [service.ids(p, max_tokens=ANSWER, ignore_eos=True) for p in PROMPTS]
        self._stop, self._pool = Event(), ThreadPoolExecutor(CLIENTS)
        self._clients: list[Future[None]] = []

    def __enter__(self) -> "Load":
        self._clients = [self._pool.submit(self._ask, n) for n in range(CLIENTS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for client in self._clients:
            client.result()
        self._pool.shutdown()
        self.service.wait_clean()

    def _ask(self, client: int) -> None:
        n = client
        while not self._stop.is_set():
            n = (n + 1) % len(PROMPTS)
            try:
                found = self.service.complete(PROMPTS[n], max_tokens=ANSWER, ignore_eos=True)
                ids = found.json()["choices"][0]["token_ids"]
            except (httpx.HTTPError, LookupError) as error:
                self.wrong.append(error)
                continue
            if ids == self._expected[n]:
                self.right += 1
            else:
                self.wrong.append((n, ids))

    def goes_on(self) -> None:
        """Wait until every client has had more answers."""
        now = self.right
        wait_for(lambda: self.wrong or self.right > now + 2 * CLIENTS, seconds=60, why="answers")
        assert not self.wrong


def begun_again(service: Service) -> dict[str, float]:
    """How often requests had to begin again: for a failure, and without one."""
    found = re.findall(
        r'^baton:gateway_events_total\{event="(new_epoch|gave_way)"\} (.*)$',
        service.http.get("/metrics").text,
        re.MULTILINE,
    )
    return {event: float(count) for event, count in found}


def worker(service: Service, name: str) -> dict[str, Any] | None:
    return next((w for w in service.ledger()["workers"] if w["name"] == name), None)


def workers_in_use(service: Service) -> dict[str, int]:
    said = service.http.get("/autoscaling").json()
    return {role: demand["workers"] for role, demand in said.items()}


def has_role(service: Service, name: str, role: str) -> bool:
    found = worker(service, name)
    return found is not None and found["role"] == role


def has_rooms(service: Service, name: str) -> bool:
    found = worker(service, name)
    return found is not None and bool(found["rooms"])


def drains(service: Service, name: str) -> bool:
    said = service.ledger()["credits"].get(name)
    return said is not None and said["draining"]


def has_pairs(service: Service, pairs: int) -> bool:
    return f"{pairs} pairs" in service.why_not_ready()


def test_every_worker_is_restarted_in_turn_and_no_request_notices(service: Service) -> None:
    with Load(service) as load:
        load.goes_on()
        for name in ("decode-0", "prefill-1", "decode-1", "prefill-0"):
            process = service.processes[name]
            process.popen.terminate()
            assert process.popen.wait(60) == 0
            load.goes_on()
            service.start_worker(name.split("-")[0], *DRAIN, name=name)
            wait_for(partial(has_pairs, service, 4), seconds=60, why="paired again")
        load.goes_on()
        assert begun_again(service) == {}


def test_a_worker_changes_its_role_and_back(service: Service) -> None:
    pid = service.processes["decode-1"].pid
    with Load(service) as load:
        for role, pairs, prefill in (("prefill", 3, 3), ("decode", 4, 2)):
            answer = service.http.post(f"/drain?worker=decode-1&role={role}")
            assert answer.json() == {"workers": ["decode-1"], "role": role}
            wait_for(
                lambda role=role: (
                    (w := worker(service, "decode-1")) is not None and w["role"] == role
                ),
                seconds=60,
                why=f"a {role} worker",
            )
            wait_for(
                lambda pairs=pairs: f"{pairs} pairs" in service.why_not_ready(),
                seconds=60,
                why=f"{pairs} pairs",
            )
            wait_for(
                lambda prefill=prefill: (
                    workers_in_use(service) == {"prefill": prefill, "decode": 4 - prefill}
                ),
                seconds=10,
                why="the scaling signal counts it",
            )
            load.goes_on()
        assert begun_again(service) == {}
    found = worker(service, "decode-1")
    assert found is not None
    assert found["ranks"][0]["pid"] == pid, "the same process"


def test_of_the_last_worker_of_a_role_only_what_it_has_is_served(service: Service) -> None:
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(service.ids, PROMPTS[0], max_tokens=300, ignore_eos=True)
        wait_for(lambda: service.ledger()["open_requests"], seconds=10, why="it runs")
        for name in ("decode-0", "decode-1"):
            assert service.http.post(f"/drain?worker={name}").status_code == 200
        wait_for(
            lambda: service.complete(PROMPTS[1], max_tokens=1).status_code == 503,
            seconds=5,
            why="new ones are refused",
        )
        assert len(asked.result()) == 300
    for name in ("decode-0", "decode-1"):
        assert service.processes[name].popen.wait(60) == 0
    service.start_worker("decode", *DRAIN, name="decode-0")
    wait_for(lambda: "pairs" in service.why_not_ready(), seconds=60, why="there is one again")
    assert len(service.ids(PROMPTS[1], max_tokens=3)) == 3


def test_what_has_no_time_to_end_goes_on_elsewhere(tmp_path: Path, tiny: Path) -> None:
    """SIGTERM, and the time is over; SIGTERM twice: the answer is whole all the same."""
    service = Service(tmp_path, tiny)
    ask = {"max_tokens": 400, "ignore_eos": True}
    try:
        service.start_gateway()
        service.start_worker("prefill")
        for name, timeout in (("short", "0.2"), ("long", "60"), ("rest", "0")):
            service.start_worker("decode", "--drain-timeout", timeout, name=name)
        service.wait_ready()
        wait_for(partial(has_pairs, service, 3), seconds=30, why="3 pairs")
        expected = service.ids(PROMPTS[1], **ask)
        with ThreadPoolExecutor(6) as pool:
            asked = [pool.submit(service.ids, PROMPTS[1], **ask) for _ in range(6)]

            for name in ("short", "long"):
                wait_for(partial(has_rooms, service, name), seconds=30, why=f"{name} generates")
                service.processes[name].popen.terminate()
            wait_for(partial(drains, service, "long"), seconds=10, why="its gateway knows")
            service.processes["long"].popen.send_signal(signal.SIGTERM)
            for name in ("short", "long"):
                assert service.processes[name].popen.wait(20) == 0
            assert [a.result() for a in asked] == [expected] * 6
        assert begun_again(service).keys() == {"gave_way"}, "it was nobody's doing"
        service.wait_clean()
    finally:
        service.close()
