"""`--kv-events-config`: what is taken, what is refused and how, and the ports of several workers."""

import json
from typing import Any

import pytest

from baton.core.errors import ConfigError
from baton.ports.kv_events_config import FLAG, KvEventsConfig


def read(**said: Any) -> KvEventsConfig:
    return KvEventsConfig.read(FLAG, json.dumps(said))


def test_the_defaults_are_vllms_but_for_the_address() -> None:
    off, on = read(), read(enable_kv_cache_events=True)
    assert not off.on
    assert on.on
    assert (on.endpoint, on.replay_endpoint) == ("tcp://127.0.0.1:5557", None)
    assert (on.buffer_steps, on.hwm, on.max_queue_size, on.topic) == (10_000, 100_000, 100_000, "")
    assert not read(enable_kv_cache_events=True, publisher="null").on
    assert not read(publisher="zmq").on


def test_all_of_vllms_keys_are_taken() -> None:
    said = {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://[::1]:6557",
        "buffer_steps": 10,
        "hwm": 20,
        "max_queue_size": 30,
        "topic": "kv@pod@m",
    }
    assert json.loads(json.dumps(said)).items() <= vars_of(read(**said)).items()


def vars_of(config: KvEventsConfig) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config.__struct_fields__}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", ["this is not JSON", "write e.g.", '"enable_kv_cache_events": true']),
        ("[]", ["write a JSON object"]),
        ('{"endpont": "x"}', ["'endpont' is no key", "replay_endpoint"]),
        ('{"publisher": "kafka"}', ["publisher 'kafka'", "zmq, null"]),
        ('{"hwm": "many"}', ["Expected `int`", "$.hwm"]),
        ('{"hwm": 0}', ["hwm 0", "between 1 and 10000000"]),
        ('{"max_queue_size": 0}', ["max_queue_size 0"]),
        ('{"buffer_steps": -1}', ["buffer_steps -1", "between 0"]),
        ('{"endpoint": "tcp://router:5557"}', ["'tcp://router:5557'", "subscribers connect"]),
        ('{"endpoint": "ipc:///tmp/x"}', ["tcp://ADDRESS:PORT"]),
        ('{"endpoint": "tcp://*:0"}', ["between 1 and 65535"]),
        ('{"endpoint": "tcp://1.2.3:5557"}', ["an IP address of this machine"]),
        ('{"replay_endpoint": "tcp://*:70000"}', ["replay_endpoint tcp://*:70000", "a lower one"]),
        ('{"replay_endpoint": "tcp://127.0.0.1:5557"}', ["are both", "a port of its own"]),
    ],
)
def test_what_cannot_work_is_refused_with_value_limit_and_remedy(
    text: str, names: list[str]
) -> None:
    with pytest.raises(ConfigError) as refused:
        KvEventsConfig.read(FLAG, text)
    message = str(refused.value)
    assert message.startswith(FLAG)
    assert all(name in message for name in names), message


def test_each_worker_has_the_next_port() -> None:
    config = read(
        enable_kv_cache_events=True, endpoint="tcp://*:5557", replay_endpoint="tcp://[::1]:5560"
    )
    found = [(c.endpoint, c.replay_endpoint) for c in config.for_workers(3)]
    assert found == [
        ("tcp://*:5557", "tcp://[::1]:5560"),
        ("tcp://*:5558", "tcp://[::1]:5561"),
        ("tcp://*:5559", "tcp://[::1]:5562"),
    ]


def test_workers_whose_ports_would_meet_are_refused() -> None:
    said = {"enable_kv_cache_events": True, "replay_endpoint": "tcp://127.0.0.1:5558"}
    assert len(read(**said).for_workers(1)) == 1
    with pytest.raises(ConfigError, match=r"5557 to 5558.*5558 to 5559.*127\.0\.0\.1:5559"):
        read(**said).for_workers(2)
    with pytest.raises(ConfigError, match="between 1 and 65535"):
        read(enable_kv_cache_events=True, endpoint="tcp://*:65535").for_workers(2)
    off = read(endpoint="tcp://*:65535")
    assert off.for_workers(2) == (off, off)
