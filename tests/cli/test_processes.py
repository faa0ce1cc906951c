"""From flags to settings: what a worker and a gateway by hand come to, and what `serve` plans for
its children."""

import msgspec
import pytest

from baton.cli import child, main, processes, serve
from baton.cli.processes import rank_cores
from baton.cli.serve import ServeSettings, plan_workers
from baton.core.errors import ConfigError
from baton.core.handoff.fetch_back import FetchBack
from baton.ports.fabric_settings import FabricSettings, MooncakeSettings, NixlSettings, TcpSettings
from baton.ports.kv_events_config import KvEventsConfig
from baton.shell.gateway_settings import GatewaySettings
from baton.shell.settings import HostKvMemory, Role, WorkerSettings

SHARED = WorkerSettings(
    model="/m",
    served_model_name="m",
    gateways=("tcp://127.0.0.1:7",),
    name="worker",
    bind="tcp://127.0.0.1:0",
    threads=1,
    kv_bytes=3 << 20,
)
TWO_DECODE = ServeSettings(decode=2)
GATEWAY = "--gateway=tcp://127.0.0.1:7"


def plan(service=TWO_DECODE, *, cores=(0,), threads=None, **changes):
    return plan_workers(
        service, msgspec.structs.replace(SHARED, **changes), cores=cores, threads=threads
    )


@pytest.fixture
def composed(monkeypatch):
    """Settings handed to the composition roots, in order."""
    seen = []
    monkeypatch.setattr(processes, "run_worker", seen.append)
    monkeypatch.setattr(processes, "run_gateway", seen.append)
    monkeypatch.setattr(
        serve, "supervise", lambda gateways, workers, _: seen.extend([*gateways, *workers]) or 0
    )
    return seen


def in_words(flags):
    return [f"{flag}={value}" if value is not None else flag for flag, value in flags]


WORKER_FLAGS = [
    ("--gateway", "tcp://127.0.0.1:7"),
    ("--gateway", "tcp://127.0.0.1:8"),
    ("--role", "prefill"),
    ("--bind", "tcp://127.0.0.2:5"),
    ("--name", "p"),
    ("--cores", "0,2"),
    ("--threads", "3"),
    ("--tp", "2"),
    ("--pp", "2"),
    ("--nnodes", "2"),
    ("--node-rank", "1"),
    ("--rendezvous", "h:1"),
    ("--watchdog-timeout", "2.5"),
    ("--watchdog-first-timeout", "0"),
    ("--dtype", "half"),
    ("--index-dtype", "fp8_e4m3"),
    ("--max-model-len", "99"),
    ("--max-num-batched-tokens", "256"),
    ("--max-num-seqs", "7"),
    ("--block-size", "16"),
    ("--page-size", "32"),
    ("--kv-pages", "5"),
    ("--host-kv-memory", "auto/5"),
    ("--fabric", "nixl"),
    ("--fabric-host", "127.0.0.2"),
    ("--fabric-device", "a,b"),
    ("--nixl-backend", "B"),
    ("--nixl-param", "x=y=z"),
    ("--nixl-param", "k=a,b"),
    ("--mooncake-protocol", "rdma"),
    ("--mooncake-allow-unauthenticated", None),
    ("--tcp-streams", "3"),
    ("--seal", "off"),
    ("--prefill-ahead", "0.125"),
    ("--no-enable-prefix-caching", None),
    ("--fetch-back", "never"),
    ("--handoff-timeout", "7"),
    ("--fetch-timeout", "3"),
    ("--cache-verify-interval", "2.5"),
    ("--kv-events-config", '{"enable_kv_cache_events": true, "topic": "kv@w@m"}'),
    ("--served-model-name", "--odd name"),
    ("--secret", "/s"),
    ("--log-level", "error"),
    ("--log-format", "json"),
    ("--record", "/logs"),
]


def every_worker_setting(checkpoint):
    return WorkerSettings(
        model=str(checkpoint),
        served_model_name="--odd name",
        gateways=("tcp://127.0.0.1:7", "tcp://127.0.0.1:8"),
        role=Role.PREFILL,
        bind="tcp://127.0.0.2:5",
        name="p",
        cores=(0, 2),
        threads=3,
        tp=2,
        pp=2,
        nnodes=2,
        node_rank=1,
        rendezvous="h:1",
        watchdog_timeout_s=2.5,
        watchdog_first_timeout_s=0.0,
        dtype="float16",
        index_dtype="fp8",
        max_model_len=99,
        max_batched_tokens=256,
        max_num_seqs=7,
        page_tokens=32,
        kv_pages=5,
        host_kv_memory=HostKvMemory(sharers=5),
        fabrics=("nixl",),
        fabric_settings=FabricSettings(
            host="127.0.0.2",
            devices=("a", "b"),
            nixl=NixlSettings(backend="B", params={"x": "y=z", "k": "a,b"}),
            mooncake=MooncakeSettings(protocol="rdma", allow_unauthenticated=True),
            tcp=TcpSettings(streams=3),
        ),
        seal=False,
        prefill_ahead=0.125,
        prefix_caching=False,
        fetch_back=FetchBack.NEVER,
        handoff_timeout_s=7.0,
        fetch_timeout_s=3.0,
        cache_verify_interval_s=2.5,
        kv_events=KvEventsConfig(enable_kv_cache_events=True, topic="kv@w@m"),
        secret="/s",
        log_level="error",
        log_format="json",
        record="/logs",
    )


def test_every_flag_of_a_worker_reaches_its_setting(checkpoint, composed):
    assert main.run(["worker", str(checkpoint), *in_words(WORKER_FLAGS)]) == 0
    assert composed == [every_worker_setting(checkpoint)]


def test_a_worker_without_flags_has_the_defaults_of_its_struct(checkpoint, composed):
    from baton.shell.threads import available_cores

    assert main.run(["worker", GATEWAY, str(checkpoint)]) == 0
    (settings,) = composed
    assert settings == WorkerSettings(
        model=str(checkpoint),
        served_model_name=str(checkpoint),
        gateways=("tcp://127.0.0.1:7",),
        name="unified",
        bind="tcp://127.0.0.1:0",
        threads=len(available_cores()),
    )
    assert settings.pool_bytes == 1 << 30


def test_every_flag_of_a_gateway_reaches_its_setting(checkpoint, composed, free_port, tmp_path):
    keys, folder = tmp_path / "keys", tmp_path / "a folder"
    keys.write_text("from a file\n")
    folder.mkdir()
    (folder / "generation_config.json").write_text("{}")
    flags = [
        ("--host", "127.0.0.1"),
        ("--port", free_port),
        ("--control", "tcp://127.0.0.1:9"),
        ("--api-key", "-key"),
        ("--api-key", "another"),
        ("--api-key-file", keys),
        ("--skip-server-warmup", None),
        ("--request-timeout", 7.5),
        ("--queue-timeout", 0.25),
        ("--max-queued-requests", 9),
        ("--shutdown-timeout", 0),
        ("--generation-config", folder),
        ("--override-generation-config", '{"top_k": 5}'),
        ("--max-model-len", 99),
        ("--served-model-name", "-x"),
        ("--secret", "/s"),
        ("--log-level", "error"),
        ("--log-format", "json"),
        ("--record", "/x y"),
    ]
    assert main.run(["gateway", str(checkpoint), *in_words(flags)]) == 0
    assert composed == [
        GatewaySettings(
            model=str(checkpoint),
            served_model_name="-x",
            host="127.0.0.1",
            port=free_port,
            control="tcp://127.0.0.1:9",
            api_keys=("-key", "another"),
            api_key_files=(str(keys),),
            skip_server_warmup=True,
            request_timeout_s=7.5,
            queue_timeout_s=0.25,
            max_queued=9,
            shutdown_timeout_s=0.0,
            generation_config=str(folder),
            override_generation_config='{"top_k": 5}',
            max_model_len=99,
            secret="/s",
            log_level="error",
            log_format="json",
            record="/x y",
        )
    ]


def test_serve_gives_its_flags_to_the_gateway_and_to_every_worker(checkpoint, composed):
    decided = {
        "--gateway",
        "--role",
        "--bind",
        "--name",
        "--cores",
        "--nnodes",
        "--node-rank",
        "--rendezvous",
        "--fabric-host",
    }
    own = [(flag, value) for flag, value in WORKER_FLAGS if flag not in decided]
    assert main.run(["serve", str(checkpoint), "--port=0", "--api-key=k", *in_words(own)]) == 0
    front, prefill, decode = composed
    assert (front.api_keys, front.max_model_len, front.log_format, front.record) == (
        ("k",),
        99,
        "json",
        "/logs",
    )
    ours = {
        "gateways",
        "role",
        "bind",
        "name",
        "cores",
        "threads",
        "nnodes",
        "node_rank",
        "rendezvous",
        "fabric_settings",
        "kv_events",
        "kv_events_rank",
    }
    expected = every_worker_setting(checkpoint)
    for worker in (prefill, decode):
        differ = {
            f
            for f in WorkerSettings.__struct_fields__
            if getattr(worker, f) != getattr(expected, f)
        }
        assert differ <= ours
        assert worker.fabric_settings == msgspec.structs.replace(
            expected.fabric_settings, host="127.0.0.1"
        )
        assert worker.threads == 3
        assert worker.kv_events.topic == "kv@w@m"


@pytest.mark.parametrize("kind", ["worker", "gateway"])
def test_a_child_gets_the_settings_planned(kind, checkpoint, monkeypatch):
    gateway = GatewaySettings(model="/m", served_model_name="m", api_keys=("secret",), port=1)
    settings = {"worker": every_worker_setting(checkpoint), "gateway": gateway}[kind]
    seen = []
    monkeypatch.setitem(child.KINDS, kind, (child.KINDS[kind][0], seen.append))
    program = child.program("decode-0", settings)
    assert program.argv[-2:] == (kind, "decode-0")
    assert not any("secret" in word or word == "/s" for word in program.argv), (
        "ps shows a command line to everybody"
    )
    child.run(kind, program.document)
    assert seen == [settings]


@pytest.mark.parametrize("spoil", [{"new_setting": 1}, {"threads": "many"}, {"log_level": "loud"}])
def test_a_child_refuses_settings_of_another_version(spoil):
    document = msgspec.json.encode(msgspec.to_builtins(SHARED) | spoil)
    with pytest.raises(
        ConfigError,
        match=r"this worker come from another version of Baton " r"\(.*\); restart the service",
    ):
        child.run("worker", document)


def test_the_plan_of_a_service():
    prefill, first, second = plan(ServeSettings(decode=2, prefill_page_size=16), cores=(0, 1, 2, 3))
    assert [w.name for w in (prefill, first, second)] == ["prefill-0", "decode-0", "decode-1"]
    assert [w.page_tokens for w in (prefill, first, second)] == [16, 64, 64]
    assert [w.cores for w in (prefill, first, second)] == [(0, 1), (2,), (3,)]
    assert [w.threads for w in (prefill, first, second)] == [2, 1, 1]
    assert {w.kv_bytes for w in (prefill, first, second)} == {3 << 20}
    (alone,) = plan(ServeSettings(role="unified", decode=2, prefill_tp=2))
    assert (alone.name, alone.role, alone.tp) == ("unified-0", Role.UNIFIED, 1)


def test_each_worker_publishes_at_a_port_of_its_own():
    said = KvEventsConfig(enable_kv_cache_events=True, replay_endpoint="tcp://127.0.0.1:6557")
    workers = plan(kv_events=said)
    assert [w.kv_events_rank for w in workers] == [0, 1, 2]
    assert [w.kv_events.endpoint for w in workers] == [
        f"tcp://127.0.0.1:{port}" for port in (5557, 5558, 5559)
    ]
    assert [w.kv_events.replay_endpoint for w in workers] == [
        f"tcp://127.0.0.1:{port}" for port in (6557, 6558, 6559)
    ]
    assert {w.kv_events for w in plan()} == {KvEventsConfig()}


@pytest.mark.parametrize(
    ("said", "sharers"),
    [
        (HostKvMemory(), [1, 2, 2]),
        (HostKvMemory(sharers=3), [3, 6, 6]),
        (HostKvMemory(1 << 30), [1, 1, 1]),
    ],
)
def test_workers_of_a_kind_on_one_machine_share_its_free_memory(said, sharers):
    workers = plan(host_kv_memory=said)
    assert [w.host_kv_memory.sharers for w in workers] == sharers
    assert {w.host_kv_memory.nbytes for w in workers} == {said.nbytes}
    alone = plan(ServeSettings(prefill=2))
    assert [w.host_kv_memory.sharers for w in alone] == [2, 2, 1], "prefill has its own part"


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("auto", HostKvMemory()),
        ("auto/3", HostKvMemory(sharers=3)),
        ("0", HostKvMemory(0)),
        ("2GiB", HostKvMemory(2 << 30)),
    ],
)
def test_host_memory_as_people_write_it(said, meant, checkpoint, composed):
    assert main.run(["worker", GATEWAY, str(checkpoint), f"--host-kv-memory={said}"]) == 0
    assert composed[0].host_kv_memory == meant


@pytest.mark.parametrize("said", ["auto/0", "auto/", "auto/x", "all", "-1"])
def test_host_memory_that_cannot_be_is_refused(said, checkpoint, composed, capsys):
    assert main.run(["worker", GATEWAY, str(checkpoint), f"--host-kv-memory={said}"]) == 2
    assert "--host-kv-memory" in capsys.readouterr().err


def test_cores_are_divided_over_ranks_and_a_worker_has_those_of_its_own():
    prefill, decode = plan(ServeSettings(prefill_tp=2, prefill_pp=2), cores=tuple(range(10)))
    assert (prefill.cores, prefill.threads) == ((0, 1, 2, 3, 4, 5, 6, 7), 2)
    assert (decode.cores, decode.threads) == ((8, 9), 2)
    assert rank_cores(prefill) == ((0, 1), (2, 3), (4, 5), (6, 7))
    third = msgspec.structs.replace(prefill, rank=2, rendezvous="h:1", cores=(4, 5))
    assert rank_cores(third)[0] == (4, 5)
    assert (list(prefill.others_here), list(third.others_here)) == ([1, 2, 3], [])


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"tp": 3, "nnodes": 2, "rendezvous": "h:1"},
            r"3 ranks \(tp 3 x pp 1\) cannot be " r"divided evenly over 2 nodes",
        ),
        (
            {"tp": 2, "nnodes": 2, "node_rank": 2, "rendezvous": "h:1"},
            "node rank 2: .* between 0 and 1",
        ),
        ({"tp": 2, "nnodes": 2}, "2 nodes need an address .* --rendezvous"),
        ({"tp": 2, "rank": 2, "rendezvous": "h:1"}, "rank 2 of 2"),
        ({"tp": 0}, "--tp 0: it must be at least 1"),
        ({"pp": -1}, "--pp -1: it must be at least 1"),
        ({"prefill_ahead": 0.0}, "--prefill-ahead 0.0: it must lie above 0"),
        (
            {"handoff_timeout_s": 0.0},
            "--handoff-timeout 0: it must lie between 0.001 and 86400 seconds",
        ),
        (
            {"watchdog_timeout_s": 0.1},
            "--watchdog-timeout 0.1: it must lie between 0.5 and 86400 seconds; 0 switches it off",
        ),
        ({"gateways": ()}, "at least one gateway .* --gateway"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        msgspec.structs.replace(SHARED, **changes)


@pytest.mark.parametrize("seconds", [-1.0, 0.5, 86_401.0, float("nan")])
def test_an_interval_in_which_nothing_can_be_verified_is_refused(seconds):
    with pytest.raises(
        ConfigError,
        match=f"--cache-verify-interval {seconds:g}: .* between 1 and 86400 "
        "seconds; 0 switches it off",
    ):
        plan(cache_verify_interval_s=seconds)


@pytest.mark.parametrize("seconds", [-1.0, 86_401.0])
def test_a_shutdown_may_take_no_time_or_a_day(seconds):
    settings = GatewaySettings(model="/m", served_model_name="m", shutdown_timeout_s=0.0)
    with pytest.raises(
        ConfigError,
        match=f"--shutdown-timeout {seconds:g}: it must lie between 0 and 86400 seconds",
    ):
        msgspec.structs.replace(settings, shutdown_timeout_s=seconds)


def test_ranks_of_a_machine():
    second = msgspec.structs.replace(plan()[0], tp=2, pp=2, nnodes=2, node_rank=1, rendezvous="h:1")
    assert (second.own_rank, second.ranks_here, list(second.others_here)) == (2, 2, [3])


def test_threads_of_a_worker_by_hand_are_its_cores_divided_over_its_ranks_here(
    checkpoint, composed
):
    flags = ["--cores=0,1,2,3,4,5,6,7", "--tp=4", "--nnodes=2", "--rendezvous=h:1"]
    assert main.run(["worker", GATEWAY, str(checkpoint), *flags]) == 0
    assert composed[0].threads == 4


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
    assert main.run(["worker", str(checkpoint), GATEWAY, *flags]) == 0
    assert composed[0].prefix_caching == kept
