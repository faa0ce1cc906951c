"""The flags that `serve` gives its children lead to the settings it planned."""

import msgspec
import pytest

from baton.cli import given, main, processes
from baton.cli import options as opt
from baton.cli.processes import gateway_flags, rank_cores, worker_flags
from baton.cli.serve import Crew, Keys, plan_gateway, plan_workers
from baton.core.errors import ConfigError
from baton.ports.fabric_settings import FabricSettings
from baton.shell.settings import Role, WorkerSettings

WORK = given.Work(dtype="half", index_dtype="fp8_e4m3", max_model_len=None, max_batched_tokens=256, max_num_seqs=7)
MEMORY = given.Memory(block_size=16, page_size=64, kv_pages=None, kv_memory="3MiB", fabric="auto", seal=opt.Switch.ON)
FABRIC = FabricSettings(
    host="127.0.0.2",
    devices=("a", "b"),
    nixl_backend="B",
    nixl_params={"x": "y=z", "k": "a,b"},
    mooncake_protocol="rdma",
    tcp_streams=3,
)
CREW = Crew(roles=(Role.PREFILL, Role.DECODE, Role.DECODE), page_sizes={Role.PREFILL: None, Role.DECODE: None}, threads=None)


def service(model, **changes):
    base = given.Service(
        model=str(model), served_model_name="m", gateways=("tcp://127.0.0.1:7",), secret=None, log_level=opt.LogLevel.INFO
    )
    return msgspec.structs.replace(base, **changes)


def plan(model, *, work=WORK, memory=MEMORY, crew=CREW, cores=(0,), **changes):
    return plan_workers(service(model, **changes), work, memory, crew, cores=cores)


@pytest.fixture
def composed(monkeypatch):
    """Settings handed to the composition roots, in order."""
    seen = []
    monkeypatch.setattr(processes, "run_worker", seen.append)
    monkeypatch.setattr(processes, "run_gateway", seen.append)
    return seen


CHANGES = [
    {},
    {"work": msgspec.structs.replace(WORK, dtype="auto", max_model_len=99)},
    {"memory": msgspec.structs.replace(MEMORY, host_kv_memory="auto")},
    {"memory": msgspec.structs.replace(MEMORY, host_kv_memory="auto/5")},
    {"memory": msgspec.structs.replace(MEMORY, host_kv_memory="2GiB")},
    {"memory": msgspec.structs.replace(MEMORY, kv_pages=5, kv_memory=None, fabric="nixl", seal=opt.Switch.OFF)},
    {"crew": msgspec.structs.replace(CREW, page_sizes={Role.PREFILL: 16, Role.DECODE: 128}, threads=2), "cores": (1, 3, 5, 8)},
    {"served_model_name": "--odd name", "secret": "/s", "gateways": ("tcp://127.0.0.1:7", "tcp://127.0.0.1:8")},
    {
        "crew": Crew(roles=(Role.UNIFIED,), page_sizes={}, threads=None),
        "log_level": opt.LogLevel.DEBUG,
        "log_format": opt.LogFormat.JSON,
    },
    {"record": "/logs"},
    {"memory": msgspec.structs.replace(MEMORY, prefix_caching=False)},
    {"memory": msgspec.structs.replace(MEMORY, cache_verify_interval_s=2.5)},
    {"work": msgspec.structs.replace(WORK, prefill_ahead=0.125)},
    {"work": msgspec.structs.replace(WORK, watchdog_s=2.5, watchdog_first_s=0.0)},
    {
        "crew": msgspec.structs.replace(CREW, layouts={Role.PREFILL: given.Parallel(2, 3), Role.DECODE: given.Parallel(pp=2)}),
        "cores": (0, 1, 2, 3, 4, 5, 6, 7, 8, 9),
    },
    {"memory": msgspec.structs.replace(MEMORY, fabric="tcp", fabric_settings=FABRIC)},
]


@pytest.mark.parametrize("changes", CHANGES)
def test_a_worker_gets_the_settings_planned(changes, checkpoint, composed):
    workers = plan(checkpoint, **changes)
    for settings in workers:
        assert main.run(["worker", *worker_flags(settings)]) == 0
    assert composed == list(workers)


@pytest.mark.parametrize(
    ("changes", "keys"),
    [
        ({}, ()),
        ({"secret": "/s", "served_model_name": "-x"}, ("-key", "another")),
        ({"log_level": opt.LogLevel.ERROR, "log_format": opt.LogFormat.JSON, "record": "/x y"}, ("k",)),
    ],
)
def test_a_gateway_gets_the_settings_planned(changes, keys, checkpoint, composed, free_port, tmp_path):
    file = tmp_path / "keys"
    file.write_text("from a file\n")
    folder = tmp_path / "a folder"
    folder.mkdir()
    (folder / "generation_config.json").write_text("{}")
    known = Keys(given=keys, files=(str(file),) if keys else ())
    sampling = given.sampling(str(folder), '{"top_k": 5}') if keys else given.Sampling()
    edge = given.Edge(request_timeout_s=7.5, queue_timeout_s=0.25, max_queued=9, shutdown_timeout_s=0) if keys else given.Edge()
    settings = plan_gateway(
        service(checkpoint, **changes), WORK, edge, sampling, host="127.0.0.1", port=free_port, keys=known, warms_up=not keys
    )
    assert main.run(["gateway", *gateway_flags(settings)]) == 0
    assert composed == [settings]


def test_every_setting_of_a_worker_has_a_flag_or_a_fixed_value():
    """A field that no flag carries would silently fall back to its default in the child."""
    fabric = msgspec.structs.replace(FABRIC, nixl_params={"k": "v"})
    memory = msgspec.structs.replace(MEMORY, fabric_settings=fabric)
    planned = plan("/m", memory=memory, work=CHANGES[1]["work"], cores=(1, 2), secret="/s", record="/l")[0]
    carried = len(worker_flags(msgspec.structs.replace(planned, tp=2, rank=1, rendezvous="h:1")))
    either = {"kv_pages or kv_bytes", "host_kv_bytes or host_kv_sharers"}
    fields = len(WorkerSettings.__struct_fields__) - len(either)
    assert carried == fields + len(FabricSettings.__struct_fields__) - 1


def test_the_plan_of_a_crew(checkpoint):
    crew = msgspec.structs.replace(CREW, page_sizes={Role.PREFILL: 16, Role.DECODE: None})
    prefill, first, second = plan(checkpoint, crew=crew, cores=(0, 1, 2, 3))
    assert [w.name for w in (prefill, first, second)] == ["prefill-0", "decode-0", "decode-1"]
    assert [w.page_tokens for w in (prefill, first, second)] == [16, 64, 64]
    assert [w.cores for w in (prefill, first, second)] == [(0, 1), (2,), (3,)]
    assert [w.threads for w in (prefill, first, second)] == [2, 1, 1]
    assert {w.dtype for w in (prefill, first, second)} == {"float16"}
    assert {w.kv_bytes for w in (prefill, first, second)} == {3 << 20}


@pytest.mark.parametrize(
    ("said", "sharers", "nbytes"),
    [("auto", [1, 2, 2], [None] * 3), ("auto/3", [3, 6, 6], [None] * 3), ("1GiB", [1, 1, 1], [1 << 30] * 3)],
)
def test_workers_that_generate_on_one_machine_share_its_free_memory(checkpoint, said, sharers, nbytes):
    workers = plan(checkpoint, memory=msgspec.structs.replace(MEMORY, host_kv_memory=said))
    assert [w.host_kv_sharers for w in workers] == sharers
    assert [w.host_kv_bytes for w in workers] == nbytes
    alone = plan(checkpoint, crew=msgspec.structs.replace(CREW, roles=(Role.PREFILL, Role.PREFILL, Role.DECODE)))
    assert {w.host_kv_sharers for w in alone} == {1}, "prefill keeps nobody's state"


def test_cores_are_divided_over_ranks_and_a_worker_has_those_of_its_own(checkpoint):
    crew = Crew(roles=(Role.PREFILL, Role.DECODE), page_sizes={}, threads=None, layouts={Role.PREFILL: given.Parallel(2, 2)})
    prefill, decode = plan(checkpoint, crew=crew, cores=tuple(range(10)))
    assert (prefill.cores, prefill.threads) == ((0, 1, 2, 3, 4, 5, 6, 7), 2)
    assert (decode.cores, decode.threads) == ((8, 9), 2)
    assert rank_cores(prefill) == ((0, 1), (2, 3), (4, 5), (6, 7))
    third = msgspec.structs.replace(prefill, rank=2, rendezvous="h:1", cores=(4, 5))
    assert rank_cores(third)[0] == (4, 5)
    assert (list(prefill.others_here), list(third.others_here)) == ([1, 2, 3], [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tp": 3, "nnodes": 2, "rendezvous": "h:1"}, r"3 ranks \(tp 3 x pp 1\) cannot be divided evenly over 2 nodes"),
        ({"tp": 2, "nnodes": 2, "node_rank": 2, "rendezvous": "h:1"}, "node rank 2: .* between 0 and 1"),
        ({"tp": 2, "nnodes": 2}, "2 nodes need an address .* --rendezvous"),
        ({"tp": 2, "rank": 2, "rendezvous": "h:1"}, "rank 2 of 2"),
        ({"tp": 0}, "tensor parallel width is 0"),
        ({"pp": -1}, "pipeline parallel width is -1"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(changes, said, checkpoint):
    with pytest.raises(ConfigError, match=said):
        msgspec.structs.replace(plan(checkpoint)[0], **changes).__post_init__()


@pytest.mark.parametrize("seconds", [-1.0, 0.5, 86_401.0, float("nan")])
def test_an_interval_in_which_nothing_can_be_verified_is_refused(seconds, checkpoint):
    with pytest.raises(
        ConfigError, match=f"--cache-verify-interval {seconds:g}: .* between 1 and 86400 seconds; 0 switches it off"
    ):
        plan(checkpoint, memory=msgspec.structs.replace(MEMORY, cache_verify_interval_s=seconds))


def test_ranks_of_a_machine():
    second = msgspec.structs.replace(plan("/m")[0], tp=2, pp=2, nnodes=2, node_rank=1, rendezvous="h:1")
    assert (second.own_rank, second.ranks_here, list(second.others_here)) == (2, 2, [3])


def test_a_worker_on_its_own_uses_all_cores_it_may(checkpoint, composed):
    from baton.shell.threads import available_cores

    assert main.run(["worker", "--gateway=tcp://127.0.0.1:1", str(checkpoint)]) == 0
    (settings,) = composed
    assert settings.cores == ()
    assert settings.threads == len(available_cores())
    assert settings.role is Role.UNIFIED
    assert settings.kv_bytes == 1 << 30
    assert settings.served_model_name == str(checkpoint)


@pytest.mark.parametrize(
    ("flags", "kept"),
    [
        ([], True),
        (["--enable-prefix-caching"], True),
        (["--no-enable-prefix-caching"], False),
        (["--disable-radix-cache"], False),
    ],
)
def test_the_prefix_cache_is_on_unless_switched_off(flags, kept, composed, checkpoint):
    assert main.run(["worker", str(checkpoint), "--gateway=tcp://127.0.0.1:7", *flags]) == 0
    assert composed[0].prefix_caching == kept
