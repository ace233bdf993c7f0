"""Spans as lines of JSON, one a span, to carry runs from one store to another or to read them with other programs.

A line has the fields of `Span` by their names. What comes from a file is validated before use.
"""

import re
from collections.abc import Iterable, Iterator

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.trace.span import Span

_TRACE_ID = re.compile(r"(?!0+$)[0-9a-f]{32}")
_SPAN_ID = re.compile(r"(?!0+$)[0-9a-f]{16}")
_MAX_NS = 2**63 - 1

_decoder = msgspec.json.Decoder(Span)


def render_line(span: Span) -> bytes:
    return msgspec.json.encode(span) + b"\n"


def parse_lines(lines: Iterable[bytes]) -> Iterator[Span]:
    """Raises ConfigError with the number of the line that is none; empty ones are passed over."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield _check(_decoder.decode(line))
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
                raise ConfigError(f"line {number} is not a span: {error}") from None


def _check(span: Span) -> Span:
    if not _TRACE_ID.fullmatch(span.trace_id):
        raise ValueError(f"its trace_id is {span.trace_id!r:.60}")
    if not _SPAN_ID.fullmatch(span.span_id):
        raise ValueError(f"its span_id is {span.span_id!r:.60}")
    if span.parent_id is not None and not _SPAN_ID.fullmatch(span.parent_id):
        raise ValueError(f"its parent_id is {span.parent_id!r:.60}")
    if not 0 <= span.start_ns <= span.end_ns <= _MAX_NS:
        raise ValueError(f"it lasts from {span.start_ns} to {span.end_ns}")
    return span
