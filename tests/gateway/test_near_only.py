"""What `/ready` says of workers that other machines do not reach."""

import pytest
from tests.core.build import manifest

from baton.core.messages import Register
from baton.gateway.front_door import near_only


def workers(address):
    return [
        Register("prefill-0", address, manifest("prefill", 1)),
        Register("decode-0", None, manifest("decode", 2)),
    ]


@pytest.mark.parametrize(
    "control", ["tcp://0.0.0.0:5500", "tcp://10.0.0.1:5500", "tcp://gw:5500", "tcp://[::]:5500"]
)
def test_a_worker_on_loopback_is_named_with_its_flag_where_workers_may_come_from_elsewhere(control):
    (said,) = near_only(workers("tcp://127.0.0.3:4711"), control=control)
    assert "prefill-0" in said
    assert "tcp://127.0.0.3:4711" in said
    assert "--bind tcp://IP:0" in said


@pytest.mark.parametrize(
    "control",
    ["tcp://127.0.0.1:5500", "tcp://localhost:5500", "tcp://[::1]:5500", "ipc:///run/gateway"],
)
def test_on_one_machine_loopback_is_where_all_listen(control):
    assert near_only(workers("tcp://127.0.0.3:4711"), control=control) == []


@pytest.mark.parametrize(
    "address", ["tcp://10.0.0.2:4711", "tcp://[fd00::2]:4711", "tcp://worker:4711", None]
)
def test_a_worker_that_others_reach_is_not_named(address):
    assert near_only(workers(address), control="tcp://0.0.0.0:5500") == []
