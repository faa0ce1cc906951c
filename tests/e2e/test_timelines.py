"""Where the time of requests went that real processes served, and what a collector is told of it."""

import http.server
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from tests.e2e.service import split

from baton.gateway.timeline import GATEWAY

PROMPT = list(range(1, 70))


class Collector:
    """A collector that takes OTLP over HTTP, as OpenTelemetry's own messages, and keeps it."""

    def __init__(self) -> None:
        collector, self.spans = self, dict[str, list[tuple[str, str, int, int]]]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"

    def take(self, told: ExportTraceServiceRequest) -> None:
        for resource in told.resource_spans:
            attributes = {a.key: a.value.string_value for a in resource.resource.attributes}
            for span in (span for scope in resource.scope_spans for span in scope.spans):
                self.spans.setdefault(span.trace_id.hex(), []).append(
                    (
                        attributes["service.instance.id"],
                        span.name,
                        span.start_time_unix_nano,
                        span.end_time_unix_nano,
                    )
                )

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def trace_of(number: int) -> str:
    return f"{number + 1:032x}"


@pytest.mark.timeout(180)
def test_two_hundred_requests(tiny: Path, tmp_path: Path, collector: Collector) -> None:
    """Mixed lengths, eight at a time, some of whose clients leave. What the gateway says of each is
    whole, and agrees with what its client saw."""
    flags = ("--otlp-traces-endpoint", collector.url)
    with split(tmp_path, tiny, gateway=flags) as service:
        ids, seen = {}, {}
        todo, lock = list(range(200)), threading.Lock()

        def client() -> None:
            while True:
                with lock:
                    if not todo:
                        return
                    number = todo.pop()
                began = time.monotonic()
                answer = service.http.post(
                    "/v1/completions",
                    json={
                        "model": "m",
                        "prompt": PROMPT[: 1 + number % 60],
                        "max_tokens": 1 + number % 24,
                        "ignore_eos": True,
                    },
                    headers={"traceparent": f"00-{trace_of(number)}-00f067aa0ba902b7-01"},
                )
                took = time.monotonic() - began
                with lock:
                    ids[number], seen[number] = answer.json()["id"], took

        threads = [threading.Thread(target=client) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        service.wait_clean()
        timelines = {
            number: service.http.get(f"/debug/requests/{id}").json() for number, id in ids.items()
        }
    assert len(timelines) == 200
    for number, timeline in timelines.items():
        path = timeline["path"]
        assert path[0]["start_us"] == 0
        assert all(a["end_us"] == b["start_us"] for a, b in pairwise(path))
        assert path[-1]["end_us"] == timeline["total_us"] <= 1e6 * seen[number]
        assert timeline["first_us"] in {phase["end_us"] for phase in path}
        assert timeline["generated_tokens"] == 1 + number % 24
        wheres = {phase["where"] for phase in timeline["workers"]}
        assert wheres == {"prefill", "decode"}
        assert "unknown" not in {phase["name"] for phase in timeline["workers"]}
    # spans: the collector was told the same before the gateway ended
    assert collector.spans.keys() >= {trace_of(number) for number in range(200)}
    for number, timeline in timelines.items():
        told = collector.spans[trace_of(number)]
        (request,) = (span for span in told if span[1] == "llm_request")
        assert round((request[3] - request[2]) / 1_000) == timeline["total_us"]
        phases = {(where, name) for where, name, *_ in told if name != "llm_request"}
        assert {where for where, _ in phases} <= {"prefill", "decode", GATEWAY}
        assert {("prefill", "computing"), ("decode", "queued")} <= phases


@pytest.mark.timeout(120)
def test_a_gateway_ends_although_its_collector_does_not_answer(tiny: Path, tmp_path: Path) -> None:
    flags = ("--otlp-traces-endpoint", "http://127.0.0.1:9/v1/traces")
    with split(tmp_path, tiny, gateway=flags) as service:
        assert len(service.ids(PROMPT, max_tokens=2)) == 2
        service.wait_clean()
        gateway = service.processes["gateway"]
        gateway.popen.terminate()
        gateway.popen.wait(6)  # of which it waits two for the collector, where it would take ten
