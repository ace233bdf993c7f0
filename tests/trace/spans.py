"""Spans made up for tests, with as little said as possible."""

import time
from itertools import count
from typing import Any

from hotloop.trace import names
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


SERVER = "server:m@1"
USAGE = {
    "num_prompt": 100,
    "num_cached": 60,
    "num_new": 30,
    "num_recomputed": 10,
    "num_output": 20,
    "num_forced": 4,
    "num_accepted": 6,
    "num_drafted": 9,
    "causes": [{"reason": "diverged", "num_tokens": 8}, {"reason": "block", "num_tokens": 2}],
}


def a_request(begin: int, end: int, parent: Span | None = None, **facts: Any) -> list[Span]:
    """2 ms to prepare, 3 in the queue, 10 to read, the rest but for 1 to write."""
    request = span(names.REQUEST, begin, end, parent, service=SERVER, **{**USAGE, **facts})
    inside = {"parent": request, "service": SERVER}
    return [
        request,
        span(names.QUEUE, begin + 2, begin + 5, **inside),
        span(names.PREFILL, begin + 5, begin + 15, **inside),
        span(names.DECODE, begin + 15, end - 1, **inside),
    ]
