"""Whoever times something is handed a `Tracer` and tells it; what becomes of it is not their business.

A tracer never blocks, never raises and may be called from any thread: nothing may go wrong because it was recorded.
"""

import logging
import sys
import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

from hotloop.trace.journal import Journal
from hotloop.trace.span import Span

log = logging.getLogger(__name__)

_SPAN_BYTES = 2000  # of one that records no content


@dataclass(frozen=True, slots=True)
class Losses:
    """What a tracer could not do, so far."""

    num_dropped: int = 0  # spans that could not be written in time: the oldest go
    num_failed: int = 0  # times that writing failed; what was to be written is kept and tried again

    def __add__(self, other: "Losses") -> "Losses":
        return Losses(self.num_dropped + other.num_dropped, self.num_failed + other.num_failed)


class Tracer(Protocol):
    @property
    def is_on(self) -> bool:
        """Whether spans are recorded; if not, spans need not be made."""

    @property
    def keeps_content(self) -> bool:
        """Whether what was said is to be recorded (`names.CONTENT`), not only how much of it and how long it took."""

    @property
    def losses(self) -> "Losses": ...

    @property
    def journal(self) -> Journal | None:
        """Where runs write what it takes to go on with them, if that is kept."""

    def record(self, span: Span) -> None: ...

    def close(self) -> None:
        """Take note of what was recorded so far, and take no more."""


class TeeTracer:
    """Several at once, such as a store and a collector."""

    def __init__(self, *tracers: Tracer) -> None:
        self.tracers = tracers
        self.is_on = any(each.is_on for each in tracers)
        self.keeps_content = any(each.keeps_content for each in tracers)

    @property
    def journal(self) -> Journal | None:
        return next((each.journal for each in self.tracers if each.journal), None)

    @property
    def losses(self) -> Losses:
        return sum((each.losses for each in self.tracers), Losses())

    def record(self, span: Span) -> None:
        for each in self.tracers:
            each.record(span)

    def close(self) -> None:
        for each in self.tracers:
            each.close()


class NullTracer(TeeTracer):
    """Records nothing."""


class ListTracer(TeeTracer):
    """Keeps spans in a list, for tests and for programs that look at their own runs; one that is told again, once."""

    def __init__(self, *, keeps_content: bool = False) -> None:
        super().__init__()
        self.is_on, self.keeps_content = True, keeps_content
        self.spans: list[Span] = []
        self._seen: set[tuple[str, str]] = set()

    def record(self, span: Span) -> None:
        key = span.trace_id, span.span_id
        if key in self._seen:
            self.spans[:] = [each for each in self.spans if (each.trace_id, each.span_id) != key]
        self._seen.add(key)
        self.spans.append(span)


class SpanQueue:
    """Spans that wait to be written, for all threads. Bounded in number and in bytes: the oldest are dropped, which is
    counted, and told once until all have been taken."""

    def __init__(self, max_spans: int, max_bytes: int) -> None:
        self.num_dropped = 0
        self._max_spans = max_spans
        self._max_bytes = max_bytes
        self._spans: deque[tuple[Span, int]] = deque()
        self._num_bytes = 0
        self._is_dropping = False
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._spans)

    def put(self, span: Span) -> None:
        num_bytes = _count_bytes(span)
        with self._lock:
            self._spans.append((span, num_bytes))
            self._num_bytes += num_bytes
            while len(self._spans) > self._max_spans or self._num_bytes > self._max_bytes:
                self._num_bytes -= self._spans.popleft()[1]
                self.num_dropped += 1
                is_first, self._is_dropping = not self._is_dropping, True
                if is_first:
                    log.warning("spans are recorded faster than the trace is written: the oldest are dropped")

    def take(self, max_spans: int, max_bytes: int) -> tuple[list[Span], int]:
        """The oldest, and their bytes: at least one if there is one."""
        taken: list[Span] = []
        num_bytes = 0
        with self._lock:
            while self._spans and len(taken) < max_spans and (not taken or num_bytes < max_bytes):
                span, size = self._spans.popleft()
                taken.append(span)
                num_bytes += size
            self._num_bytes -= num_bytes
            self._is_dropping = self._is_dropping and bool(self._spans)
        return taken, num_bytes


def _count_bytes(span: Span) -> int:
    """Roughly, in memory: it is what was said that makes one large."""
    said = (value for value in span.attributes.values() if isinstance(value, str))
    return _SPAN_BYTES + len(span.error) + sum(map(sys.getsizeof, said))
