"""What `baton status`, `baton drain` and `baton role` make of a gateway's answers."""

from typing import Any

import httpx
import pytest
from rich.console import Console

from baton.cli import operate
from baton.core.errors import BatonError
from baton.shell.settings import Role


def worker(name: str, role: str, boot: int) -> dict[str, Any]:
    return {"name": name, "role": role, "rooms": [], "ranks": [{"boot": f"{boot:x}", "pid": boot}]}


def books(*workers: dict[str, Any], draining: str = "", missing: str = "") -> dict[str, Any]:
    credits = {
        "running": 3,
        "waiting": 1,
        "free_pages": {"full": 6, "window": 1},
        "total_pages": {"full": 8, "window": 2},
    }
    return {
        "workers": list(workers),
        "missing": [missing] if missing else [],
        "credits": {w["name"]: credits | {"draining": w["name"] == draining} for w in workers},
        "open_requests": 4,
        "queue": {"length": 2},
    }


OLD, AWAY, NEW = (
    books(worker("d", "decode", 1), worker("p", "prefill", 2)),
    books(worker("p", "prefill", 2)),
    books(worker("d", "prefill", 3), worker("p", "prefill", 2)),
)


class Service:
    """A gateway whose ledger is another one at each look; the last one stays."""

    def __init__(self, *ledgers: dict[str, Any]) -> None:
        self.ledgers, self.orders = list(ledgers), list[str]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            self.orders.append(request.url.raw_path.decode())
            unknown = "worker=x" in self.orders[-1]
            fault = {"error": {"message": "no worker is called 'x'"}}
            return httpx.Response(400 if unknown else 200, json=fault if unknown else {})
        if request.url.path == "/ready":
            return httpx.Response(503, json={"ready": False, "why": "no pair"})
        found = self.ledgers.pop(0) if len(self.ledgers) > 1 else self.ledgers[0]
        return httpx.Response(200, json=found)


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Any:
    real = httpx.Client
    monkeypatch.setattr(operate, "LOOK_S", 0.001)

    def serve(service: Any) -> None:
        transport = httpx.MockTransport(service)
        monkeypatch.setattr(httpx, "Client", lambda **more: real(transport=transport, **more))

    return serve


def test_a_worker_is_drained_when_its_boot_has_gone(ask: Any, capsys: Any) -> None:
    service = Service(OLD, OLD, OLD, AWAY)
    ask(service)
    operate.drain("d")
    assert service.orders == ["/drain?worker=d"]
    assert capsys.readouterr().out == "d has left\n"
    assert len(service.ledgers) == 1


def test_it_has_left_even_if_it_is_there_again(ask: Any, capsys: Any) -> None:
    ask(Service(OLD, books(worker("d", "decode", 9))))
    operate.drain("d")
    assert capsys.readouterr().out == "d has left\n"


def test_a_role_is_changed_when_the_worker_is_back_in_it(ask: Any, capsys: Any) -> None:
    service = Service(OLD, OLD, AWAY, AWAY, books(worker("d", "decode", 9)), NEW)
    ask(service)
    operate.role("d", Role.PREFILL)
    assert service.orders == ["/drain?worker=d&role=prefill"]
    assert capsys.readouterr().out == "d is a prefill worker\n"
    assert service.ledgers == [NEW]


def test_what_takes_too_long_goes_on_by_itself(ask: Any) -> None:
    ask(Service(OLD))
    with pytest.raises(BatonError, match=r"not done after 0\.05 s"):
        operate.drain("d", timeout=0.05)


def test_what_the_gateway_refuses_is_said_in_its_words(ask: Any) -> None:
    ask(Service(OLD))
    with pytest.raises(BatonError, match="no worker is called 'x'"):
        operate.drain("x")


def test_a_service_that_is_not_there_is_named() -> None:
    with pytest.raises(BatonError, match=r"127\.0\.0\.1:1.*--url"):
        operate.status("http://127.0.0.1:1", once=True)


def test_the_table_says_what_each_worker_does_and_who_is_silent() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        found = books(
            worker("d", "decode", 1), worker("p", "prefill", 2), draining="d", missing="q"
        )
        console.print(operate.table_of(found))
    lines = [
        [cell.strip() for cell in line.strip("│").split("│")]
        for line in captured.get().splitlines()
        if line.startswith("│")
    ]
    assert lines == [
        ["d", "decode", "draining", "3", "1", "3 of 10", "1", "1"],
        ["p", "prefill", "up", "3", "1", "3 of 10", "1", "2"],
        ["q", "-", "silent", "-", "-", "-", "-", "-"],
    ]


def test_status_says_whether_requests_are_served_now(ask: Any, capsys: Any) -> None:
    ask(Service(OLD))
    operate.status(once=True)
    said = capsys.readouterr().out
    assert said.startswith("not ready: no pair\n4 requests open, 2 of them wait here\n")
