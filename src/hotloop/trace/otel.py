"""Spans as OpenTelemetry has them, sent to a collector by OTLP over HTTP, for Langfuse, Phoenix, Jaeger and their kin.

Needs the extra `otel`; only this module imports it. Of the spans that tell of one question only the outermost counts
its tokens, so that they are not added up twice. Ids, parents and times are the same as in the store.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags

from hotloop.core.errors import RemoteError
from hotloop.trace import names
from hotloop.trace.content import Content
from hotloop.trace.span import Span
from hotloop.trace.tracer import Losses
from hotloop.trace.tree import SpanNode, is_open

_PATH = "/v1/traces"
_PREFIX = "hotloop."  # of what has no place in the conventions
# What the conventions for generative AI call an operation, which is the first word of a span's name, and whom it is
# done to, the second; and the attributes of these. A question is counted once, by whoever asked first.
_OPERATIONS = {names.RUN: "invoke_agent", names.CHAT: "chat", names.TOOL: "execute_tool"}
_OBJECTS = {names.RUN: names.AGENT, names.CHAT: names.MODEL, names.TOOL: names.TOOL_NAME}
_ATTRIBUTES = {
    names.AGENT: "gen_ai.agent.name",
    names.RUN_ID: "gen_ai.agent.id",
    names.TOOL_NAME: "gen_ai.tool.name",
    names.CALL_ID: "gen_ai.tool.call.id",
    names.MODEL: "gen_ai.request.model",
    names.ANSWER_ID: "gen_ai.response.id",
    names.NUM_PROMPT: "gen_ai.usage.input_tokens",
    names.NUM_OUTPUT: "gen_ai.usage.output_tokens",
    names.NUM_CACHED: "gen_ai.usage.cache_read.input_tokens",
}
_SCOPE = InstrumentationScope("hotloop")
_KINDS = {names.CHAT: SpanKind.CLIENT, names.ROUTE: SpanKind.SERVER, names.REQUEST: SpanKind.SERVER}
_PATIENCE_S = 5.0  # how long the last spans may take to be sent

Value = str | bool | int | float | Sequence[str]


class OtelTracer:
    """Sends spans to a collector in batches, from a thread of its own; one that is not there loses them."""

    is_on = True
    journal = None
    losses = Losses()  # what the exporter loses it does not tell

    def __init__(self, endpoint: str, *, content: Content | None = None, patience_s: float = _PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._content = content or Content()
        self.keeps_content = self._content.is_kept
        processor = BatchSpanProcessor(_exporter(endpoint))
        self._end: Callable[[ReadableSpan], None] = processor.on_end
        self._stop: Callable[[], None] = processor.shutdown

    def record(self, span: Span) -> None:
        if not is_open(span):  # a collector takes a span once
            self._end(as_otel(self._content.clean(span)))

    def close(self) -> None:
        """A collector that is not there is tried again and again, which must not delay shutdown."""
        stopping = threading.Thread(target=self._stop, name="hotloop-otel", daemon=True)
        stopping.start()
        stopping.join(self._patience_s)


def send(spans: Iterable[Span], endpoint: str) -> None:
    """All that are over, now. Raises RemoteError where the collector does not take them."""
    exporter = _exporter(endpoint)
    stop: Callable[[], None] = exporter.shutdown
    try:
        if exporter.export([as_otel(span) for span in spans if not is_open(span)]) is not SpanExportResult.SUCCESS:
            raise RemoteError(f"{endpoint} did not take the spans")
    finally:
        stop()


def as_otel(span: Span) -> ReadableSpan:
    return ReadableSpan(
        name=_name(span),
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=_resource(span.service),
        attributes=_attributes(span),
        kind=_KINDS.get(span.name, SpanKind.INTERNAL),
        instrumentation_scope=_SCOPE,
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(),
        start_time=span.start_ns,
        end_time=span.end_ns,
    )


def _exporter(endpoint: str) -> OTLPSpanExporter:
    base = endpoint.rstrip("/")
    return OTLPSpanExporter(endpoint=base if base.endswith(_PATH) else base + _PATH)


def _context(trace_id: str, span_id: str) -> SpanContext:
    return SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _resource(service: str) -> Resource:
    kind, _, instance = service.partition(":")
    return Resource({"service.namespace": "hotloop", "service.name": kind, "service.instance.id": instance or kind})


def _role(span: Span) -> str:
    """What a span is to the conventions: a question that nobody of ours asked is one where it came in."""
    is_first = span.parent_id is None and span.name in (names.ROUTE, names.REQUEST)
    return names.CHAT if is_first else span.name


def _name(span: Span) -> str:
    role = _role(span)
    if role not in _OPERATIONS:
        return _PREFIX + span.name
    return f"{_OPERATIONS[role]} {span.attributes.get(_OBJECTS[role], '')}".strip()


def _attributes(span: Span) -> dict[str, Value]:
    attributes = {_PREFIX + name: _plain(value) for name, value in span.attributes.items() if value is not None}
    if span.session:
        attributes["gen_ai.conversation.id"] = span.session
    role = _role(span)
    if role not in _OPERATIONS:
        return attributes
    attributes["gen_ai.operation.name"] = _OPERATIONS[role]
    for name, other in _ATTRIBUTES.items():
        if span.attributes.get(name) not in (None, "") and (
            role == names.CHAT or not other.startswith("gen_ai.usage.")
        ):
            attributes[other] = _plain(span.attributes[name])
    if names.FINISH_REASON in span.attributes:
        attributes["gen_ai.response.finish_reasons"] = [str(span.attributes[names.FINISH_REASON])]
    if span.name == names.REQUEST:
        attributes["gen_ai.provider.name"] = "hotloop"
        request = SpanNode(span)  # all that is computed of a prompt is kept
        num_written = request.count(names.NUM_PROMPT) - request.count(names.NUM_CACHED)
        attributes["gen_ai.usage.cache_write.input_tokens"] = max(num_written, 0)
    return attributes


def _plain(value: Any) -> Value:
    """As OpenTelemetry can carry it: what is made of parts becomes JSON."""
    if isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        return list(value)
    return msgspec.json.encode(value).decode()
