"""A span: one thing that took time, in one process, as part of one trace. How it is written to a file, and how a trace
is passed on over HTTP.

Times are unix nanoseconds, ids lower-case hex, as W3C trace context has them. A span is recorded when it is
over, and never changes; only a run is recorded twice, when it begins and when it ends: of two spans of one id the one
that ends later counts. Which names and attributes there are is in `names`.
"""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from cachetools import FIFOCache

from hotloop.core.errors import ConfigError
from hotloop.core.sharing import UNSHARED, Sharing

TRACEPARENT = "traceparent"  # the header

# A later version may have more to say behind the flags; 00 has not, and ff is none.
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_IS_SAMPLED = 0x01

MAX_IDLE_S = 1800.0  # who comes back later than this begins anew
MAX_SESSIONS = 4096
MAX_REQUESTS = 1000  # in one trace: it is drawn, and in the end given up, as a whole

TraceId = Annotated[str, msgspec.Meta(pattern=r"^(?!0+$)[0-9a-f]{32}\Z")]
SpanId = Annotated[str, msgspec.Meta(pattern=r"^(?!0+$)[0-9a-f]{16}\Z")]
UnixNs = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """`attributes` are JSON values; `error` is empty where all went well."""

    trace_id: TraceId
    span_id: SpanId
    parent_id: SpanId | None = None
    name: str
    service: str  # who recorded it, and which one of them: `agent`, `router:8780`, `server:tiny@8701`
    start_ns: UnixNs
    end_ns: UnixNs
    session: str = ""
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    error: str = ""
    tenant: str = ""  # whose request it is part of: a hash of the key, where a server or a router has told

    @property
    def is_root(self) -> bool:
        return self.parent_id is None


@dataclass(frozen=True, slots=True)
class TraceContext:
    """What one process tells the next: which trace this is part of, and which span it is a child of."""

    trace_id: str
    span_id: str
    is_sampled: bool = True  # what the caller's own tracing does; ours records either way

    def child(self) -> "TraceContext":
        """The same trace, with a span of its own to be the parent."""
        return TraceContext(self.trace_id, new_span_id(), self.is_sampled)


class Clock:
    """Moments of `time.monotonic` in unix time. One for all spans of a request keeps them consistent."""

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.monotonic_ns()

    def unix_ns(self, monotonic_s: float) -> int:
        return self._offset_ns + round(monotonic_s * 1e9)

    def monotonic_s(self, unix_ns: int) -> float:
        return (unix_ns - self._offset_ns) / 1e9

    def now_ns(self) -> int:
        return self._offset_ns + time.monotonic_ns()


def new_trace_id() -> str:
    return os.urandom(16).hex()


def new_span_id() -> str:
    return os.urandom(8).hex()


def parse_traceparent(header: str | None) -> TraceContext | None:
    """None for a header that is missing or not one: then a trace begins here."""
    found = _TRACEPARENT.fullmatch((header or "").strip())
    if not found:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if (more and version == "00") or not int(trace_id, 16) or not int(span_id, 16):
        return None
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & _IS_SAMPLED))


def render_traceparent(context: TraceContext) -> str:
    return f"00-{context.trace_id}-{context.span_id}-{'01' if context.is_sampled else '00'}"


def own_trace_id(trace_id: str, tenant: str) -> str:
    """A trace id that two tenants never share: it carries a mark of the tenant. One with the mark stays as it is, so
    that a router and the replica behind it record the same trace."""
    if not tenant:
        return trace_id
    mark = hashlib.sha256(tenant.encode()).hexdigest()[:8]
    if trace_id[8:16] == mark:
        return trace_id
    digest = hashlib.sha256(f"{tenant} {trace_id}".encode()).hexdigest()
    return digest[:8] + mark + digest[16:32]


_decoder = msgspec.json.Decoder(Span)


def render_line(span: Span) -> bytes:
    """As a line of JSON, with the fields of `Span` by their names."""
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


class RecentTraces:
    """Which trace a client's turns belong to that sends no trace context: those of one session, while it goes on. Used
    from one thread. The longest unused session is forgotten; one that never ends begins another trace some time.
    """

    def __init__(
        self,
        *,
        max_idle_s: float = MAX_IDLE_S,
        clock: Callable[[], float] = time.monotonic,
        sharing: Sharing = UNSHARED,
    ) -> None:
        self._max_idle_s = max_idle_s
        self._clock = clock
        self._traces: FIFOCache[str, tuple[str, float, int]] = FIFOCache(MAX_SESSIONS)
        self._keep = sharing.share("trace", tuple[str, tuple[str, float, int]], self._put)

    def join(self, header: str | None, session: str, tenant: str = "") -> tuple[TraceContext, str | None]:
        """A span of one's own to begin, and its parent: as the client says, else in its session's trace, else alone.
        The trace of a `tenant` is its own, whatever trace it names."""
        if given := parse_traceparent(header):
            trace_id = own_trace_id(given.trace_id, tenant)
            return TraceContext(trace_id, new_span_id(), given.is_sampled), given.span_id
        trace_id = self._find(session) if session else new_trace_id()
        return TraceContext(own_trace_id(trace_id, tenant), new_span_id()), None

    def _find(self, session: str) -> str:
        now = self._clock()
        trace_id, used_at, num_requests = self._traces.get(session, ("", 0.0, 0))
        if not trace_id or now - used_at > self._max_idle_s or num_requests >= MAX_REQUESTS:
            trace_id, num_requests = new_trace_id(), 0
        self._keep((session, (trace_id, now, num_requests + 1)))
        return trace_id

    def _put(self, used: tuple[str, tuple[str, float, int]]) -> None:
        session, trace = used
        self._traces[session] = trace
