"""Whoever times something is handed a `Tracer` and tells it; what becomes of it is not their business.

A tracer never blocks, never raises and may be called from any thread: nothing may go wrong because it was recorded.
"""

from dataclasses import dataclass
from typing import Protocol

from hotloop.trace.span import Span


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
