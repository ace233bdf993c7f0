"""Turns that are not over. A span is recorded when it has ended, so what is done in a turn is known before the turn is:
until then one is made up for it, from what is known. It has the id of the real one, which will take its place.
"""

from collections.abc import Sequence

from hotloop.trace import names
from hotloop.trace.span import Span
from hotloop.trace.tree import is_open

_PARTS = frozenset({names.CHAT, names.TOOL, names.FORESEEN})


def with_open_turns(spans: Sequence[Span]) -> list[Span]:
    """These spans, and the turns that are missing from runs that go on."""
    runs = sorted((span for span in spans if is_open(span)), key=lambda span: span.start_ns)
    known = {span.span_id for span in spans}
    parts: dict[str, list[Span]] = {}
    for span in spans:
        if runs and span.name in _PARTS and span.parent_id and span.parent_id not in known:
            parts.setdefault(span.parent_id, []).append(span)
    return [*spans, *(_make_up(turn_id, within, runs, spans) for turn_id, within in parts.items())]


def _make_up(turn_id: str, within: Sequence[Span], runs: Sequence[Span], spans: Sequence[Span]) -> Span:
    """Of runs within runs it is believed to be the innermost's: the one that began last."""
    start_ns = min(span.start_ns for span in within)
    run = next((run for run in reversed(runs) if run.start_ns <= start_ns), runs[0])
    num_turns = sum(span.name == names.TURN and span.parent_id == run.span_id for span in spans)
    return Span(
        trace_id=run.trace_id,
        span_id=turn_id,
        parent_id=run.span_id,
        name=names.TURN,
        service=run.service,
        start_ns=start_ns,
        end_ns=max(span.end_ns for span in within),
        session=run.session,
        attributes={names.INDEX: num_turns + 1},
    )
