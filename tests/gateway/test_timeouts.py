"""X-Request-Timeout-Ms: what counts, and what is refused."""

import pytest

from baton.core.messages import FinishReason

from .fake_door import FakeDoor
from .models import ids
from .rig import request

PATHS = {
    "/v1/completions": {"prompt": "zz"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


def ask(value: str | None, path: str = "/v1/completions", *, most_ms: int = 5_000):
    """The answer, and the deadline that the core was given."""
    door = FakeDoor()
    door.script = [ids("x"), FinishReason.STOP]
    headers = {} if value is None else {"X-Request-Timeout-Ms": value.encode("latin-1")}
    answer = request(
        door, "POST", path, json=PATHS[path], headers=headers, settings={"deadline_ms": most_ms}
    )
    return answer, [s.limits.deadline_ms for s in door.submitted]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("value", "counts"),
    [(None, 5_000), ("1", 1), ("4999", 4_999), ("5001", 5_000), ("999999999999", 5_000)],
)
def test_a_client_may_ask_for_less_than_the_operator_allows(path, value, counts):
    answer, deadlines = ask(value, path)
    assert (answer.status_code, deadlines) == (200, [counts])


@pytest.mark.parametrize(
    "value",
    ["0", "-5", "1.5", "1e3", "soon", "", " ", "\u0663".encode().decode("latin-1"), "9" * 13],
)
def test_what_is_no_number_of_milliseconds_is_refused(value):
    answer, deadlines = ask(value)
    error = answer.json()["error"]
    assert (answer.status_code, deadlines) == (400, [])
    assert (error["type"], error["param"]) == ("invalid_request_error", "X-Request-Timeout-Ms")
    assert "5000 count at most (--request-timeout)" in error["message"]
