"""A request's way through the router as spans: one for all of it, and one for each try that failed.

The trace goes on at the replica: the parent it is told is the router's own span, not the client's.
"""

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from hotloop.core.request import Priority
from hotloop.router.placement.policy import ReplicaChoice
from hotloop.router.request import RoutedRequest
from hotloop.router.summary import AnswerSummary
from hotloop.trace import names
from hotloop.trace.span import TRACEPARENT, Clock, RecentTraces, Span, TraceContext, new_span_id, render_traceparent
from hotloop.trace.tracer import Tracer

Headers = Mapping[bytes, bytes]

_HEADER = TRACEPARENT.encode()


class RouteRecorder:
    def __init__(self, tracer: Tracer) -> None:
        self.tracer = tracer
        self.service = "router"
        self._recent = RecentTraces()

    def open(self, request: RoutedRequest, headers: Headers, request_id: str) -> "RouteSpan":
        """To be entered: it is recorded when it is left. Where nobody listens, the client's own headers go on."""
        if not self.tracer.is_on or request.is_question:
            return RouteSpan(self, request, headers, request_id)
        header, own = request.headers.get(TRACEPARENT), request.tenant.id if request.tenant.is_apart else ""
        context, parent_id = self._recent.join(header, request.session, own)
        sent = {**headers, _HEADER: render_traceparent(context).encode()}
        return RouteSpan(self, request, sent, request_id, context, parent_id)


@dataclass(slots=True)
class RouteSpan(AbstractContextManager["RouteSpan"]):
    """What is known of one request's way so far. `headers` are those to send on."""

    recorder: RouteRecorder
    request: RoutedRequest
    headers: Headers
    request_id: str
    context: TraceContext | None = None
    parent_id: str | None = None
    facts: dict[str, Any] = field(init=False)
    _began_at: float = field(default_factory=time.monotonic)
    _clock: Clock = field(default_factory=Clock)
    _error: str = ""
    _has_ended: bool = False

    def __post_init__(self) -> None:
        self.facts = {
            names.ENDPOINT: self.request.api,
            names.MODEL: self.request.model,
            names.PRIORITY: Priority(self.request.priority).name.lower(),
            names.REQUEST_ID: self.request_id,
            names.TRIED: [],
            names.QUEUE_NS: 0,
        }

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is not None:
            self._error = str(error) or type(error).__name__
        if self.context:
            self._record(names.ROUTE, self.context, self.parent_id, self._began_at, self.facts, self._error)

    def hang_up(self) -> None:
        """The client has left; an answer that had ended is no error."""
        if not self._has_ended:
            self._error = "the client disconnected"

    def claim(self, replica: str, wait_s: float) -> None:
        self.facts[names.TRIED].append(replica)
        self.facts[names.QUEUE_NS] += round(wait_s * 1e9)

    def fail(self, replica: str, why: str, since: float) -> None:
        if self.context:
            context = TraceContext(self.context.trace_id, new_span_id())
            self._record(names.ATTEMPT, context, self.context.span_id, since, {names.REPLICA: replica}, why)

    def begin(self, choice: ReplicaChoice, status: int) -> None:
        self.facts |= {
            names.REPLICA: choice.name,
            names.REASON: choice.reason,
            names.NUM_MATCHED: choice.matched_tokens,
            names.STATUS: status,
            names.FIRST_BYTE_NS: self._clock.now_ns(),
        }

    def end(self, summary: AnswerSummary) -> None:
        facts = {
            names.ANSWER_ID: summary.answer_id,
            names.NUM_PROMPT: summary.num_prompt,
            names.NUM_CACHED: summary.num_cached,
            names.NUM_OUTPUT: summary.num_output,
        }
        self.facts |= {name: value for name, value in facts.items() if value is not None}
        self._error = "the answer broke off" if summary.is_broken else ""
        self._has_ended = True

    def _record(
        self, name: str, context: TraceContext, parent_id: str | None, since: float, facts: dict[str, Any], error: str
    ) -> None:
        self.recorder.tracer.record(
            Span(
                trace_id=context.trace_id,
                span_id=context.span_id,
                parent_id=parent_id,
                name=name,
                service=self.recorder.service,
                start_ns=self._clock.unix_ns(since),
                end_ns=self._clock.now_ns(),
                session=self.request.session_name,
                tenant=self.request.tenant.id,
                attributes=facts,
                error=error,
            )
        )
