"""Tells a collector of OpenTelemetry where the time of each request went: a span for the request,
and below it one for each of its phases (OTLP over HTTP; extra `otel`).

The gateway tells for its workers too, each as an instance of the service of its own: it knows all
phases on one clock. What the SDK reads from the environment counts: OTEL_SERVICE_NAME,
OTEL_RESOURCE_ATTRIBUTES, OTEL_TRACES_SAMPLER, OTEL_EXPORTER_OTLP_HEADERS and OTEL_BSP_*.

The names of attributes are vLLM's, which follow the semantic conventions for generative AI.
"""

from collections.abc import Mapping
from threading import Thread

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from baton import __version__
from baton.core.ids import Room
from baton.gateway.timeline import GATEWAY, Moments, Timeline, TimelinePhase

REQUEST = "llm_request"
SERVICE = "baton"
ENDED_WELL = frozenset({"stop", "length", "cancelled"})


class RequestSpans:
    """The spans of one gateway and its workers.

    Args:
        processor: gets every span that has ended
        exporter: the one of the processor
    """

    def __init__(
        self, processor: SpanProcessor, exporter: SpanExporter, *, gateway: str, model: str
    ) -> None:
        self._processor, self._exporter = processor, exporter
        self._gateway, self._model = gateway, model
        self._tracers: dict[str, Tracer] = {}
        self._open: dict[Room, Span] = {}
        self._context = TraceContextTextMapPropagator()

    def began(self, moments: Moments) -> None:
        """A request has come; if it has a `traceparent`, its span is a child of that."""
        parent = self._context.extract({"traceparent": moments.traceparent})
        self._open[moments.room] = self._tracer(self._gateway).start_span(
            REQUEST, parent, SpanKind.SERVER, start_time=round(moments.wall * 1e9)
        )

    def headers(self, room: Room) -> Mapping[str, str]:
        """Return the headers with which another service continues the trace of a request."""
        found: dict[str, str] = {}
        if (span := self._open.get(room)) is not None:
            self._context.inject(found, set_span_in_context(span))
        return found

    def ended(self, moments: Moments) -> None:
        """A request has ended everywhere."""
        span = self._open.pop(moments.room)
        if not span.is_recording():  # it was not sampled
            return
        timeline = moments.timeline()
        began, context = round(timeline.arrived * 1e9), set_span_in_context(span)
        for phase in (*_of_gateway(timeline), *timeline.workers):
            where = self._gateway if phase.where == GATEWAY else phase.where
            child = self._tracer(where).start_span(
                phase.name,
                context,
                attributes={"baton.epoch": phase.epoch},
                start_time=began + 1000 * phase.start_us,
            )
            child.end(began + 1000 * phase.end_us)
        span.set_attributes(self._attributes(timeline, moments))
        if timeline.end not in ENDED_WELL:
            span.set_status(StatusCode.ERROR, timeline.end)
        span.end(began + 1000 * timeline.total_us)

    def _attributes(self, timeline: Timeline, moments: Moments) -> dict[str, str | int | float]:
        found: dict[str, str | int | float] = {
            "gen_ai.response.model": self._model,
            "gen_ai.request.id": timeline.id,
            "gen_ai.usage.prompt_tokens": timeline.prompt_tokens,
            "gen_ai.usage.completion_tokens": timeline.generated_tokens,
            "gen_ai.latency.e2e": timeline.total_us / 1e6,
            "baton.room": timeline.room,
            "baton.end": timeline.end,
            "baton.cached_tokens": timeline.cached_tokens,
        }
        if timeline.first_us is not None and (spent := moments.spent) is not None:
            found |= {
                "gen_ai.latency.time_to_first_token": timeline.first_us / 1e6,
                "gen_ai.latency.time_in_queue": spent.queue_us / 1e6,
                "gen_ai.latency.time_in_model_prefill": spent.prefill_us / 1e6,
                "gen_ai.latency.time_in_model_decode": spent.decode_us / 1e6,
                "gen_ai.latency.time_in_model_inference": (
                    (spent.prefill_us + spent.decode_us) / 1e6
                ),
            }
        return found

    def _tracer(self, instance: str) -> Tracer:
        """Return what makes the spans of one process."""
        if instance not in self._tracers:
            own = {"service.name": SERVICE, "service.instance.id": instance}
            provider = TracerProvider(resource=Resource.create(own), shutdown_on_exit=False)
            provider.add_span_processor(self._processor)
            self._tracers[instance] = provider.get_tracer("baton", __version__)
        return self._tracers[instance]

    def close(self, within_s: float) -> None:
        """Send what is left, for so long: the SDK tries again and again to reach a collector."""
        sending = Thread(target=self._processor.shutdown, daemon=True)
        sending.start()
        sending.join(within_s)
        self._exporter.shutdown()  # ends a wait for the next try
        sending.join(within_s)


def _of_gateway(timeline: Timeline) -> list[TimelinePhase]:
    return [phase for phase in timeline.path if phase.where == GATEWAY]
