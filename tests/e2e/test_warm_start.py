"""What a first request would have to pay for has been paid when /ready says yes: nothing happens
for the first time in it.

Times are measured by tools/first_request.py; here it is counted what takes the time: connections,
mappings, threads, code made by a compiler, and kinds of lines in the log, of which there is one for
each step of a handoff.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.e2e.service import Footprint, Service, split

from baton.gateway.warm_up import PROMPT_TOKENS

pytestmark = pytest.mark.slow
TOLD = ("--kv-pages", "200", "--log-level", "debug")
STANDING = ("files", "threads", "sockets", "shared_mappings", "compiled_bytes")
OF_CLIENTS = {"request.ended"}  # the gateway's own requests do not come by HTTP
PROMPT = list(range(1, 18))  # of a length that none of the gateway's own has


@pytest.fixture
def service(tmp_path: Path, tiny: Path) -> Iterator[Service]:
    with split(tmp_path, tiny, prefill=TOLD, decode=TOLD, warm=True) as s:
        yield s


def kinds(service: Service, name: str) -> set[str]:
    """All kinds of lines in a log."""
    return set(re.findall(r"event=(\S+)", service.log(name)))


def test_the_first_request_does_nothing_for_the_first_time(service: Service) -> None:
    assert {"admitted", "read_ended", "hash_ended", "received", "step_started"} <= kinds(
        service, "decode"
    )
    assert len(PROMPT) not in PROMPT_TOKENS
    before = {name: Footprint(p.pid) for name, p in service.processes.items()}
    told = {name: kinds(service, name) for name in service.processes}
    assert len(service.ids(PROMPT, max_tokens=8, temperature=0.7, seed=1)) == 8
    service.wait_clean()
    for name, process in service.processes.items():
        after = Footprint(process.pid)
        changed = {what: (getattr(before[name], what), getattr(after, what)) for what in STANDING}
        assert not {what: pair for what, pair in changed.items() if pair[0] != pair[1]}, name
        assert kinds(service, name) - told[name] <= OF_CLIENTS, name
