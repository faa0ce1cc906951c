"""What a collector of OpenTelemetry is told of a request."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from tests.gateway.test_timelines import REQUEST, ROOM, Watched, ordinary

from baton.core.door import Fail
from baton.core.events import TimerDue
from baton.core.gateway.request import Say
from baton.core.messages import FailCode
from baton.gateway.spans import REQUEST as REQUEST_SPAN
from baton.gateway.spans import RequestSpans

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collected:
    """Timelines that tell a collector, which keeps what it is told."""

    def __init__(self, traceparent: str = "") -> None:
        self.exporter, self.watched = InMemorySpanExporter(), Watched()
        self.spans = RequestSpans(
            SimpleSpanProcessor(self.exporter), self.exporter, gateway="gateway-1", model="m"
        )
        self.watched.timelines.on_begin += [self._begins(traceparent), self.spans.began]
        self.watched.timelines.on_end.append(self.spans.ended)

    @staticmethod
    def _begins(traceparent: str):
        def begins(moments) -> None:
            moments.traceparent = traceparent

        return begins

    @property
    def all(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    @property
    def request(self) -> ReadableSpan:
        (found,) = (span for span in self.all if span.name == REQUEST_SPAN)
        return found


def us(span: ReadableSpan) -> tuple[int, int]:
    """From its request's arrival, which is 1,000 s after 1970."""
    return tuple(round((t - 1_000 * 10**9) / 1_000) for t in (span.start_time, span.end_time))


def instance(span: ReadableSpan) -> str:
    return str(span.resource.attributes["service.instance.id"])


def test_a_span_for_the_request_and_one_for_each_phase() -> None:
    collected = Collected()
    ordinary(collected.watched)
    request = collected.request
    assert us(request) == (0, 19_000)
    assert instance(request) == "gateway-1"
    told = dict(request.attributes)
    assert told["gen_ai.request.id"] == "cmpl-1"
    assert told["gen_ai.usage.prompt_tokens"] == 5
    assert told["gen_ai.usage.completion_tokens"] == 3
    assert told["gen_ai.latency.time_to_first_token"] == pytest.approx(0.008)
    parts = [told[f"gen_ai.latency.time_in_{part}"] for part in ("queue", "model_inference")]
    assert sum(parts) == pytest.approx(told["gen_ai.latency.e2e"]) == pytest.approx(0.019)
    children = [span for span in collected.all if span is not request]
    assert {span.parent.span_id for span in children} == {request.context.span_id}
    assert {(instance(s), s.name, us(s)) for s in children if instance(s) == "prefill-0"} == {
        ("prefill-0", "queued", (2_500, 4_000)),
        ("prefill-0", "computing", (4_000, 8_000)),
        ("prefill-0", "offered", (8_000, 11_000)),
        ("prefill-0", "ending", (11_000, 11_200)),
    }
    assert {instance(span) for span in children} == {"gateway-1", "prefill-0", "decode-0"}


def test_a_trace_of_the_client_goes_on() -> None:
    collected = Collected(f"00-{TRACE}-{PARENT}-01")
    ordinary(collected.watched)
    assert {f"{span.context.trace_id:032x}" for span in collected.all} == {TRACE}
    assert f"{collected.request.parent.span_id:016x}" == PARENT


def test_what_is_no_traceparent_is_left_out() -> None:
    collected = Collected("00-nonsense")
    ordinary(collected.watched)
    assert collected.request.parent is None


def test_a_client_that_wants_no_trace_gets_none() -> None:
    collected = Collected(f"00-{TRACE}-{PARENT}-00")
    ordinary(collected.watched)
    assert collected.all == []


def test_engines_go_on_with_the_trace_while_the_request_is_open() -> None:
    collected = Collected(f"00-{TRACE}-{PARENT}-01")
    collected.watched.arrives(0)
    (header,) = collected.spans.headers(ROOM).items()
    version, trace, parent, flags = header[1].split("-")
    assert (header[0], version, trace, flags) == ("traceparent", "00", TRACE, "01")
    collected.watched.at(5, TimerDue(), Say(Fail(REQUEST, FailCode.OVERLOADED, "")))
    assert parent == f"{collected.request.context.span_id:016x}"
    assert collected.spans.headers(ROOM) == {}


def test_an_error_is_one() -> None:
    collected = Collected()
    collected.watched.arrives(0)
    collected.watched.at(5_000, TimerDue(), Say(Fail(REQUEST, FailCode.QUEUE_TIMEOUT, "secret")))
    status = collected.request.status
    assert (status.status_code, status.description) == (StatusCode.ERROR, "queue_timeout")
    assert [span.name for span in collected.all] == ["queued", REQUEST_SPAN]
