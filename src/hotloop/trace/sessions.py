"""Which trace a client's turns belong to that sends no trace context: those of one session, while it goes on, are one.

Bounded: the longest unused session is forgotten, and one that never ends begins another trace after so many requests.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

from hotloop.trace.span import TraceContext, new_span_id, new_trace_id, parse_traceparent

MAX_IDLE_S = 1800.0  # who comes back later than this begins anew
MAX_SESSIONS = 4096
MAX_REQUESTS = 1000  # in one trace: it is drawn, and in the end given up, as a whole


class RecentTraces:
    """Used from one thread."""

    def __init__(self, *, max_idle_s: float = MAX_IDLE_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_idle_s = max_idle_s
        self._clock = clock
        self._traces: OrderedDict[str, tuple[str, float, int]] = OrderedDict()

    def join(self, header: str | None, session: str) -> tuple[TraceContext, str | None]:
        """A span of one's own to begin, and its parent: as the client says, else in its session's trace, else alone."""
        if given := parse_traceparent(header):
            return given.child(), given.span_id
        trace_id = self._find(session) if session else new_trace_id()
        return TraceContext(trace_id, new_span_id()), None

    def _find(self, session: str) -> str:
        now = self._clock()
        trace_id, used_at, num_requests = self._traces.pop(session, ("", 0.0, 0))
        if not trace_id or now - used_at > self._max_idle_s or num_requests >= MAX_REQUESTS:
            trace_id, num_requests = new_trace_id(), 0
        self._traces[session] = trace_id, now, num_requests + 1
        if len(self._traces) > MAX_SESSIONS:
            self._traces.popitem(last=False)
        return trace_id
