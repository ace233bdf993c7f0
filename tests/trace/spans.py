"""Spans made up for tests, with as little said as possible."""

import time
from itertools import count
from typing import Any

from hotloop.trace.span import Span

TRACE = "0af7651916cd43dd8448eb211c80319c"
MS = 1_000_000
DAWN_NS = time.time_ns() // MS * MS
"""When all of it happens: what is too old is not kept."""
_numbers = count(1)


def span(
    name: str,
    begin_ms: int,
    end_ms: int,
    parent: Span | None = None,
    *,
    trace_id: str = TRACE,
    service: str = "agent",
    session: str = "",
    error: str = "",
    **attributes: Any,
) -> Span:
    return Span(
        trace_id=parent.trace_id if parent else trace_id,
        span_id=f"{next(_numbers):016x}",
        parent_id=parent.span_id if parent else None,
        name=name,
        service=service,
        start_ns=DAWN_NS + begin_ms * MS,
        end_ns=DAWN_NS + end_ms * MS,
        session=session,
        attributes=attributes,
        error=error,
    )
