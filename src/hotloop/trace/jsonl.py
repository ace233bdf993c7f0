"""Spans as lines of JSON, one a span, to carry runs from one store to another or to read them with other programs.

A line has the fields of `Span` by their names. What comes from a file is validated before use.
"""

from collections.abc import Iterable, Iterator

import msgspec

from hotloop.core.errors import ConfigError
from hotloop.trace.span import Span

_decoder = msgspec.json.Decoder(Span)


def render_line(span: Span) -> bytes:
    return msgspec.json.encode(span) + b"\n"


def parse_lines(lines: Iterable[bytes]) -> Iterator[Span]:
    """Raises ConfigError with the number of the line that is none; empty ones are passed over."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                span = _decoder.decode(line)
                if span.end_ns < span.start_ns:
                    raise ValueError(f"it lasts from {span.start_ns} to {span.end_ns}")
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
                raise ConfigError(f"line {number} is not a span: {error}") from None
            yield span
