"""The seam spans go through. Whoever times something is handed a `Tracer` and tells it; what becomes of it is not
their business.

A tracer never blocks, never raises and may be called from any thread: nothing may go wrong because it was recorded.
"""

from typing import Protocol

from hotloop.trace.span import Span


class Tracer(Protocol):
    """Takes spans as they end."""

    @property
    def is_on(self) -> bool:
        """Whether anybody listens; if not, spans need not be made."""
        ...

    @property
    def keeps_content(self) -> bool:
        """Whether what was said is to be recorded (`names.CONTENT`), not only how much of it and how long it took."""
        ...

    def record(self, span: Span) -> None: ...

    def close(self) -> None:
        """Take note of what was recorded so far, and take no more."""
        ...


class NullTracer:
    """Nobody listens."""

    is_on = False
    keeps_content = False

    def record(self, span: Span) -> None:
        pass

    def close(self) -> None:
        pass


class TeeTracer:
    """Several at once, such as a store and a collector."""

    def __init__(self, *tracers: Tracer) -> None:
        self.tracers = tracers

    @property
    def is_on(self) -> bool:
        return any(each.is_on for each in self.tracers)

    @property
    def keeps_content(self) -> bool:
        return any(each.keeps_content for each in self.tracers)

    def record(self, span: Span) -> None:
        for each in self.tracers:
            each.record(span)

    def close(self) -> None:
        for each in self.tracers:
            each.close()


class ListTracer:
    """Keeps spans in a list, for tests and for programs that look at their own runs."""

    is_on = True

    def __init__(self, *, keeps_content: bool = False) -> None:
        self.keeps_content = keeps_content
        self.spans: list[Span] = []

    def record(self, span: Span) -> None:
        self.spans.append(span)

    def close(self) -> None:
        pass
